"""Tokens are those of the answer, compared as bytes; any others are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.servers.fake_openai import FakeOpenAI

from surerag.errors import LogprobsError, ServiceError
from surerag.messages import SamplingParams
from surerag.readers.hosted import OpenAIReader
from surerag.readers.hosted.logprobs import number
from surerag.readers.hosted.parse import Api, Draft, Wanted
from surerag.readers.hosted.spelling import Token, spelled, spelled_by_first

FLUSS = "Velm liegt am Fluß"


def ask(server: FakeOpenAI, text: str, logprobs: Any, finish: str = "stop") -> list[str]:
    choice = {"message": {"content": text}, "finish_reason": finish, "logprobs": logprobs}
    server.fail(200, body=json.dumps({"choices": [choice]}).encode())
    reader = OpenAIReader("toy", base_url=server.base_url, top_logprobs=0)
    trace = reader.generate(["q"], SamplingParams())[0][0].trace
    assert trace is not None
    return list(trace.tokens)


def content(*tokens: str | tuple[str, list[int]]) -> Any:
    entries = [token if isinstance(token, tuple) else (token, None) for token in tokens]
    return {"content": [{"token": text, "logprob": -0.1, "bytes": given} for text, given in entries]}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (FLUSS, ["Velm"]),
        (FLUSS, ["Velm", " liegt", " am", " Flu"]),
        (FLUSS, ["Velm", " liegt", " am", " Fluss"]),
        ("Velm", ["Velm", " liegt", " am", " Fluß"]),
        ("Velm", ["Orun"]),
        ("Velm", ["Ve", "ln"]),
        ("東京", ["京", "東"]),
        ("東京", ["東"]),
    ],
)
def test_tokens_of_part_of_a_text_or_of_another_are_refused(
    server: FakeOpenAI, text: str, tokens: list[str]
) -> None:
    with pytest.raises(LogprobsError, match=r"cover a part|another text"):
        ask(server, text, content(*tokens), finish="length")


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        (["Velm", " liegt", " am", " Fluß"], 4),
        (["Velm", " liegt", " am", " Flu", ("\\xc3", [0xC3]), ("\\x9f", [0x9F])], 6),
        (["Velm", " liegt", " am", " Flu", "\\xc3", "bytes:\\x9f"], 6),
        (["Velm", " liegt", " am", " Flu", "�", "�"], 6),
        (["Velm", " liegt", " am", " Flu", "", ""], 6),
        (["\n", " Velm", " liegt", " am", " Fluß", "\n"], 5),
        (["Velm", " liegt", " am", " Fluß", "<end>", "!"], 4),
        (["Velm", " liegt", " am", " Fluß.\n"], 4),
    ],
)
def test_every_way_to_write_a_token_is_read(server: FakeOpenAI, tokens: list[Any], kept: int) -> None:
    assert len(ask(server, FLUSS, content(*tokens))) == kept


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_columns_of_unequal_length_are_refused(server: FakeOpenAI, api: Api) -> None:
    columns = {"tokens": ["ä", " ö"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{"ä": -0.1}]}
    choice = {"message": {"content": "ä ö"}, "text": "ä ö", "finish_reason": "stop", "logprobs": columns}
    server.fail(200, body=json.dumps({"choices": [choice]}).encode())
    with pytest.raises(LogprobsError, match="for 2 tokens"):
        OpenAIReader("toy", base_url=server.base_url, api=api, top_logprobs=0).generate(
            ["q"], SamplingParams()
        )


def cut(text: str, at: list[int]) -> list[Token]:
    """Cut a text into tokens between any two bytes, as tokenizers do."""
    data = text.encode()
    ends = sorted({min(place, len(data)) for place in at} | {len(data)})
    found, start = [], 0
    for end in ends:
        part = data[start:end]
        if part:
            found.append(Token(part.decode(errors="replace"), part))
        start = end
    return found


@given(text=st.text(max_size=40), at=st.lists(st.integers(0, 120), max_size=30))
def test_whatever_a_tokenizer_cuts_spells_its_text(text: str, at: list[int]) -> None:
    tokens = cut(text, at)
    for written in (tokens, [Token(token.text) for token in tokens]):
        found = spelled(text, written)
        assert found is not None
        assert found.whole


@given(text=st.text(min_size=1, max_size=40), at=st.lists(st.integers(0, 120), max_size=30), data=st.data())
def test_and_with_a_token_left_out_it_does_not(text: str, at: list[int], data: st.DataObject) -> None:
    tokens = cut(text, at)
    place = data.draw(st.integers(0, len(tokens) - 1))
    left = tokens[:place] + tokens[place + 1 :]
    joined = b"".join(token.given or b"" for token in left)
    white = b" \t\n\r\x0b\x0c"
    found = spelled(text, left)
    same = joined.strip(white) == text.encode().strip(white)
    assert (found is not None and found.whole) == same


@given(text=st.text(max_size=40), at=st.lists(st.integers(0, 120), max_size=30), count=st.integers(0, 30))
def test_the_first_tokens_spell_a_beginning(text: str, at: list[int], count: int) -> None:
    assert text.startswith(spelled_by_first(text, cut(text, at), count))


NAMES = ["index", "message", "delta", "content", "text", "logprobs", "tokens", "token_logprobs", "token"]
NAMES += ["top_logprobs", "logprob", "bytes", "finish_reason", "usage", "prompt_tokens"]
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(
    choice=st.dictionaries(st.sampled_from(NAMES), json_values, max_size=6),
    wanted=st.sampled_from([Wanted(True, 2, 100), Wanted(True, 0, 100), Wanted(False, 0, 100)]),
)
def test_whatever_a_server_says_is_an_answer_or_an_error_of_ours(
    choice: dict[str, Any], wanted: Wanted
) -> None:
    draft = Draft(wanted, limit=3)
    try:
        draft.feed(choice)
        generation = draft.generation()
    except ServiceError as error:
        str(error).encode()
        return
    generation.text.encode()
    if generation.trace is not None:
        assert all(math.isfinite(value) and value <= 0 for value in generation.trace.logprobs)


def test_halves_of_a_character_that_come_apart_are_joined() -> None:
    draft = Draft(Wanted(False, 0, 100))
    shown = [draft.feed({"text": text}) for text in ("a\ud83d", "\ude00b", "\ud83d")]
    shown.append(draft.feed({"text": "", "finish_reason": "stop"}))
    assert shown == ["a", "😀b", "", "�"]
    assert draft.generation().text == "a😀b�"


def test_numbers_of_numpy_are_numbers() -> None:
    # As llama.cpp's binding gives them, in this process.
    assert number("Velm", np.float32(-0.25)) == -0.25
    for value in (np.float32("nan"), np.bool_(True), np.float64(0.5)):
        with pytest.raises(LogprobsError):
            number("Velm", value)
