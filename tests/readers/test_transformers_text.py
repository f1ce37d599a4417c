"""From prompts to tokens and back: templates, control tokens, whole characters, stop texts, streams."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from surerag.errors import InputError
from surerag.messages import Message, Prompt, SamplingParams, as_messages
from surerag.readers.local import TransformersReader
from surerag.readers.local.detokenizing import (
    ByteDetokenizer,
    StopScanner,
    TextDetokenizer,
    detokenizers_of,
)
from surerag.readers.local.encoding import PromptEncoder
from tests.readers.sizes import BEGIN_ID, END_ID, ROLE_ID, WORDS
from tests.readers.tiny_models import BEGIN, END, PAD, ROLE, metaspace_tokenizer, tiny_model, tiny_tokenizer

CONVERSATION = (Message("system", "Be brief."), Message("user", "Where?"), Message("assistant", "In Velm."))


def applied(tokenizer: Any, prompt: Prompt) -> list[int]:
    turns = [{"role": message.role, "content": message.content} for message in as_messages(prompt)]
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))


@pytest.mark.parametrize("prompt", ["Where?", "  spaces \n kept ", "Ünïcödé 🙂", CONVERSATION])
def test_prompts_are_encoded_as_the_chat_template_does(prompt: Prompt) -> None:
    tokenizer = tiny_tokenizer(chat=True)
    assert PromptEncoder(tokenizer).encode(prompt) == applied(tokenizer, prompt)


@pytest.mark.parametrize("control", [BEGIN, END, PAD, ROLE])
@pytest.mark.parametrize("shape", ["{}", "a {} b", "{}{}", "x{}", "{} \U000f5a100\U000f5a11", "<|en{}d|>"])
def test_control_tokens_in_a_document_are_plain_text(control: str, shape: str) -> None:
    tokenizer = tiny_tokenizer(chat=True)
    document = shape.replace("{}", control)
    ids = PromptEncoder(tokenizer).encode(document)
    harmless = PromptEncoder(tokenizer).encode("harmless")
    assert [i for i in ids if i >= BEGIN_ID] == [i for i in harmless if i >= BEGIN_ID]
    # Nothing is lost, and the template's own tokens stand where they stood.
    assert tokenizer.decode(ids) == tokenizer.decode(harmless).replace("harmless", document)


def test_control_tokens_are_text_in_plain_prompts_and_continuations_too() -> None:
    for chat in (True, False):
        encoder = PromptEncoder(tiny_tokenizer(chat=chat))
        plain = encoder.encode("q")
        ids = encoder.encode_with("q", f"so {END} it is")
        assert END_ID not in ids
        assert tiny_tokenizer().decode(ids) == f"so {END} it is"
        assert [i for i in encoder.encode(f"q {ROLE}") if i >= BEGIN_ID] == [
            i for i in plain if i >= BEGIN_ID
        ]


@pytest.mark.parametrize("document", ["In</s>Velm", "Where <s>is</s>", "[INST] In", "<unk>In"])
def test_tokenizers_with_pieces_for_their_control_tokens_are_guarded_too(document: str) -> None:
    tokenizer = metaspace_tokenizer()
    encoder = PromptEncoder(tokenizer)
    mark = tokenizer.convert_tokens_to_ids("[INST]")
    control = {0, 1, mark}
    assert encoder.encode("In Velm") == applied(tokenizer, "In Velm")
    ids = encoder.encode(document)
    assert [i for i in ids if i in control] == [0, mark, 1]
    # The spaces that the control token takes with it are taken here as well.
    assert ids[:2] == applied(tokenizer, "In Velm")[:2]
    assert PromptEncoder(tokenizer, chat_template=False).encode(document).count(0) == 1


def test_tokenizers_in_python_are_guarded_too() -> None:
    tokenizer = ByT5Tokenizer(extra_ids=0)
    tokenizer.chat_template = "{{ messages[0]['content'] }}</s>"
    ids = PromptEncoder(tokenizer).encode("Velm</s>, Örn")
    assert ids.count(tokenizer.eos_token_id) == 1
    detokenizer = detokenizers_of(tokenizer)()
    assert "".join(detokenizer.feed(i) for i in ids) == "Velm</s>, Örn"


def test_the_begin_token_is_not_doubled() -> None:
    tokenizer = metaspace_tokenizer()
    assert PromptEncoder(tokenizer).encode("In Velm").count(0) == 1
    assert (
        PromptEncoder(tokenizer, chat_template=False).encode("In Velm") == tokenizer("In Velm")["input_ids"]
    )


def test_without_a_template_conversations_are_joined_plainly() -> None:
    tokenizer = tiny_tokenizer(chat=True)
    ids = PromptEncoder(tokenizer, chat_template=False).encode(CONVERSATION)
    assert tokenizer.decode(ids) == "Be brief.\n\nWhere?\n\nIn Velm."


def test_a_template_without_a_system_role_gets_it_in_the_first_turn() -> None:
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ messages[0]['content'] }}|"
    )
    assert tokenizer.decode(PromptEncoder(tokenizer).encode(CONVERSATION)) == "Be brief.\n\nWhere?|"


def test_template_options_reach_the_template() -> None:
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = "{% if enable_thinking %}think {% endif %}{{ messages[0]['content'] }}"
    thinking = PromptEncoder(tokenizer, template_options={"enable_thinking": True})
    assert tokenizer.decode(thinking.encode("now")) == "think now"


def test_continuations_follow_the_prompt_in_one_text() -> None:
    tokenizer = metaspace_tokenizer()
    encoder = PromptEncoder(tokenizer, chat_template=False)
    assert encoder.encode_with("Where", " Velm") == tokenizer.convert_tokens_to_ids(["▁Velm"])
    # "i" and "s" would fuse; the prompt stays as it is, and no space is added to the continuation.
    assert encoder.encode_with("In i", "s")[-1] == tokenizer.convert_tokens_to_ids("s")


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="no tokens"):
        PromptEncoder(tiny_tokenizer()).encode("")


@given(st.text(min_size=1, max_size=40))
def test_pieces_join_to_the_text_and_never_break_a_character(text: str) -> None:
    tokenizer = tiny_tokenizer()
    detokenizer = detokenizers_of(tokenizer)()
    ids = tokenizer(text, split_special_tokens=True)["input_ids"]
    pieces = [detokenizer.feed(i) for i in ids]
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, ROLE_ID), max_size=30))
def test_pieces_join_to_the_text_for_any_tokens(ids: list[int]) -> None:
    tokenizer = tiny_tokenizer()
    detokenizer = detokenizers_of(tokenizer)()
    joined = "".join(detokenizer.feed(i) for i in ids) + detokenizer.flush()
    assert joined == tokenizer.decode(ids, skip_special_tokens=True)


@given(st.text(max_size=20), st.lists(st.integers(0, ROLE_ID + 10), max_size=30))
def test_tokens_that_are_bytes_have_the_text_that_the_library_gives_them(text: str, ids: list[int]) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<tool>", "two words, Örn"])
    detokenizer = detokenizers_of(tokenizer)()
    assert isinstance(detokenizer, ByteDetokenizer)
    ids = [*tokenizer(f"{text}<tool>two words, Örn")["input_ids"], *ids]
    pieces = [detokenizer.feed(i) for i in ids]
    assert "".join(pieces) + detokenizer.flush() == tokenizer.backend_tokenizer.decode(ids)
    assert not any(piece.endswith("\ufffd") for piece in pieces)


@given(st.lists(st.integers(0, 15), max_size=30))
def test_pieces_join_to_the_text_where_tokens_depend_on_their_neighbours(ids: list[int]) -> None:
    tokenizer = metaspace_tokenizer()
    detokenizer = detokenizers_of(tokenizer)()
    assert isinstance(detokenizer, TextDetokenizer)
    joined = "".join(detokenizer.feed(i) for i in ids) + detokenizer.flush()
    assert joined == tokenizer.decode(ids, skip_special_tokens=True)


@given(st.text("ab\n", max_size=20), st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=3), st.data())
def test_stop_texts_are_found_however_the_text_arrives(text: str, stop: list[str], data: Any) -> None:
    scanner, rest, shown = StopScanner(stop), text, ""
    while rest and not scanner.stopped:
        size = data.draw(st.integers(1, len(rest)))
        scanner.feed(rest[:size])
        rest = rest[size:]
        shown = max(shown, scanner.text[: scanner.safe], key=len)
    ends = [text.find(s) for s in stop if s in text]
    assert scanner.stopped == bool(ends)
    if not ends:
        assert scanner.text == text
    # What was shown on the way is the beginning of the answer: no part of a stop text leaks.
    assert scanner.text.startswith(shown)


SAMPLED = SamplingParams(temperature=1.0, max_tokens=16, seed=4)


@pytest.fixture(scope="module")
def reader() -> TransformersReader:
    return TransformersReader(tiny_model("llama"), tiny_tokenizer(chat=True))


def test_a_stop_text_ends_the_answer_and_its_trace(reader: TransformersReader) -> None:
    whole = reader.generate(["Where?"], SAMPLED)[0][0]
    assert whole.trace is not None
    first, second, *_ = whole.text.split()
    # The stop text begins inside one token and ends inside the next.
    stop = f"{first[-1]} {second[0]}"
    expected = whole.text[: whole.text.find(stop)]
    stopping = replace(SAMPLED, stop=("never", stop))
    cut = reader.generate(["Where?"], stopping)[0][0]
    assert cut.text == expected.strip()
    assert cut.finish == "stop"
    assert cut.trace is not None
    # The token that reaches into the stop text counts, its text up to there.
    assert "".join(cut.trace.tokens).strip() == cut.text
    assert cut.trace.logprobs == whole.trace.logprobs[: len(cut.trace)]
    assert cut.completion_tokens > len(cut.trace)


def test_a_stop_text_at_the_very_start_leaves_nothing(reader: TransformersReader) -> None:
    first = reader.generate(["Where?"], SAMPLED)[0][0].text.split()[0]
    cut = reader.generate(["Where?"], replace(SAMPLED, stop=(f" {first}",)))[0][0]
    assert (cut.text, cut.finish) == ("", "stop")
    assert cut.trace is not None
    assert len(cut.trace) == 0


@pytest.mark.parametrize("stop", [(), ("zzz",), (" ",)])
def test_streams_join_to_the_text(reader: TransformersReader, stop: tuple[str, ...]) -> None:
    sampling = replace(SAMPLED, stop=stop)
    whole = reader.generate(["Where?"], sampling)[0][0]
    chunks = list(reader.stream("Where?", sampling))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [chunk.generation for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].generation is not None
    assert chunks[-1].generation.text == whole.text


def test_streams_show_whole_characters_and_no_part_of_a_stop_text() -> None:
    tokenizer = tiny_tokenizer()
    script = tokenizer("né 🙂 so END", add_special_tokens=False)["input_ids"]
    model = tiny_model("llama")
    prompt = tokenizer("?")["input_ids"]

    def recite(module: Any, inputs: Any, keywords: dict[str, Any], output: Any) -> Any:
        step = int(keywords["position_ids"].max()) + 1 - len(prompt)
        output.logits = torch.nn.functional.one_hot(
            torch.full_like(output.logits[..., 0], script[min(step, len(script) - 1)], dtype=torch.long),
            output.logits.shape[-1],
        ).float()
        return output

    hook = model.register_forward_hook(recite, with_kwargs=True)
    try:
        reader = TransformersReader(model, tokenizer)
        chunks = list(reader.stream("?", SamplingParams(max_tokens=len(script), stop=(" END",))))
    finally:
        hook.remove()
    assert "".join(chunk.text for chunk in chunks) == "né 🙂 so"
    assert not any("\ufffd" in chunk.text or "E" in chunk.text for chunk in chunks)
    assert len([chunk for chunk in chunks if chunk.text]) > 3


def test_tiny_models_say_words() -> None:
    # What the tests above rely on.
    answer = TransformersReader(tiny_model("llama"), tiny_tokenizer()).generate(["Where?"], SAMPLED)[0][0]
    assert all(i in WORDS for i in tiny_tokenizer()(" " + answer.text)["input_ids"])
