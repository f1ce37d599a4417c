"""Given text, scored over an API."""

from typing import Any

import pytest
from tests.servers.fake_openai import FakeOpenAI, Quirks
from tests.servers.toy_model import ToyModel

from surerag.errors import CapabilityError, LogprobsError
from surerag.messages import Message, SamplingParams
from surerag.readers.hosted import OpenAIReader
from surerag.readers.hosted.parse import Wanted
from surerag.readers.hosted.score import score_trace

WANTED = Wanted(logprobs=True, top=2, vocabulary_size=100)


def reader_of(server: FakeOpenAI, **settings: Any) -> OpenAIReader:
    settings = {"api": "completions", "scoring": "echo", **settings}
    return OpenAIReader("toy", base_url=server.base_url, top_logprobs=3, **settings)


def test_echo_scores_are_those_of_the_model(server: FakeOpenAI) -> None:
    (trace,) = reader_of(server, score_entropies=True).score(["Where is Velm?"], [" on the river"])
    context, expected = "Where is Velm?", []
    for word in (" on", " the", " river"):
        expected.append(ToyModel().distribution(context)[word])
        context += word
    assert trace.tokens == (" on", " the", " river")
    assert trace.logprobs == pytest.approx(expected)
    assert trace.entropy is not None


@pytest.mark.parametrize("scoring", ["echo", "prompt_logprobs"])
def test_scores_of_a_greedy_answer_equal_its_own_trace(scoring: str) -> None:
    with FakeOpenAI(quirks=Quirks(prompt_logprobs=True)) as server:
        reader = reader_of(server, scoring=scoring)
        prompts = ["Where is Velm?", "Who was Ada?", "Which river?"]
        answers = [row[0] for row in reader.generate(prompts, SamplingParams(max_tokens=5))]
        spoken = [" " + answer.text for answer in answers]
        for trace, answer in zip(reader.score(prompts, spoken), answers, strict=True):
            assert answer.trace is not None
            assert trace.tokens == answer.trace.tokens
            assert trace.logprobs == pytest.approx(answer.trace.logprobs)


def test_chat_scores_where_the_server_has_prompt_logprobs() -> None:
    with FakeOpenAI(quirks=Quirks(prompt_logprobs=True)) as server:
        reader = reader_of(server, api="chat", scoring="prompt_logprobs")
        (trace,) = reader.score([(Message("system", "Be brief."), Message("user", "Where?"))], [" the river"])
        assert trace.tokens == (" the", " river")
        body = server.requests[0].body
        assert body["messages"][-1] == {"role": "assistant", "content": " the river"}
        assert body["continue_final_message"] is True


def test_an_empty_continuation_needs_no_request(server: FakeOpenAI) -> None:
    empty, other = reader_of(server).score(["a", "b"], ["", " Velm"])
    assert (len(empty), len(other)) == (0, 1)
    assert len(server.requests) == 1


async def test_async_scores_equal_sync(server: FakeOpenAI) -> None:
    reader = reader_of(server)
    assert await reader.ascore(["a"], [" Velm"]) == reader.score(["a"], [" Velm"])
    await reader.aclose()


def test_scoring_that_was_not_found_is_refused(server: FakeOpenAI) -> None:
    reader = reader_of(server, scoring=None)
    assert not reader.capabilities.score
    with pytest.raises(CapabilityError, match=r"[Cc]all probe\(\)"):
        reader.score(["a"], [" Velm"])


def test_what_was_generated_instead_of_echoed_is_no_score(server: FakeOpenAI) -> None:
    server.become(echo=False)
    with pytest.raises(LogprobsError, match="did not echo"):
        reader_of(server).score(["Where is Velm?"], [" on the river"])


def echoed(tokens: list[str], offsets: list[int] | None = None, text: str = "") -> dict[str, Any]:
    columns: dict[str, Any] = {
        "tokens": tokens,
        "token_logprobs": [None, *(-float(i) for i in range(1, len(tokens)))],
        "top_logprobs": [None, *({"x": -0.5, "y": -1.5} for _ in tokens[1:])],
    }
    if offsets is not None:
        columns["text_offset"] = offsets
    return {"choices": [{"text": text or "".join(tokens), "logprobs": columns}]}


def test_begin_tokens_and_generated_ones_are_left_out() -> None:
    answer = echoed(["<s>", "ab", "c", "d", "d"])
    assert score_trace("echo", answer, "abc", "d", WANTED).logprobs == (-3.0,)


def test_a_token_that_merges_prompt_and_continuation_counts() -> None:
    answer = echoed(["ab", "cd", "e", "x"])
    assert score_trace("echo", answer, "abc", "de", WANTED).tokens == ("cd", "e")


def test_half_characters_are_placed_by_the_servers_offsets() -> None:
    answer = echoed(["ab", "\ufffd", "\ufffd", "c"], [0, 2, 2, 3], "abéc")
    assert score_trace("echo", answer, "ab", "éc", WANTED).logprobs == (-1.0, -2.0, -3.0)


def test_tokens_that_cannot_be_placed_are_an_error() -> None:
    with pytest.raises(LogprobsError, match="cannot be told from its prompt"):
        score_trace("echo", echoed(["ab", "\ufffd", "\ufffd"], text="abé"), "ab", "é", WANTED)


@pytest.mark.parametrize(
    ("scoring", "field", "least"), [("echo", "logprobs", 1), ("prompt_logprobs", "prompt_logprobs", 0)]
)
def test_alternatives_are_asked_for_only_where_entropies_are(scoring: Any, field: str, least: int) -> None:
    with FakeOpenAI(quirks=Quirks(prompt_logprobs=True)) as server:
        plain = reader_of(server, scoring=scoring)
        (trace,) = plain.score(["Where is Velm?"], [" on the river"])
        assert trace.entropy is None
        assert server.requests[-1].body[field] == least
        (whole,) = reader_of(server, scoring=scoring, score_entropies=True).score(
            ["Where is Velm?"], [" on the river"]
        )
        assert server.requests[-1].body[field] == 3
        assert whole.entropy is not None
        assert whole.logprobs == pytest.approx(trace.logprobs)
