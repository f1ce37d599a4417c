"""Prompts that are kept between calls: read once, with the same numbers, within a bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from surerag.errors import ConfigurationError
from surerag.messages import SamplingParams
from surerag.readers.local import TransformersReader
from tests.readers.same_answers import assert_same
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

CONTEXT = "Velm lies on the Orun, which springs in the hills of Tarn. " * 4
PROMPTS = [CONTEXT + "Where was Ada Tarn born?", CONTEXT + "Who is the mayor of Velm?", "The Orun"]
SAMPLED = SamplingParams(n=3, temperature=0.9, max_tokens=8, seed=5)
TEXTS = [" ba be bi", " bo", " bu ba"]


def reader_of(architecture: str = "llama", kept: int = 1 << 24, **options: Any) -> TransformersReader:
    return TransformersReader(tiny_model(architecture), tiny_tokenizer(), kept_prompt_bytes=kept, **options)


def store_of(reader: TransformersReader) -> Any:
    engine: Any = reader._engine
    return engine._prefill.store


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3", "gpt_oss", "gpt2"])
def test_to_generate_and_then_to_score_reads_prompts_once(architecture: str) -> None:
    plain, reader = reader_of(architecture, kept=0), reader_of(architecture)
    for found, expected in zip(
        reader.generate(PROMPTS, SAMPLED), plain.generate(PROMPTS, SAMPLED), strict=True
    ):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    read = reader.tokens_read
    for _ in range(2):
        scored = reader.score(PROMPTS, TEXTS)
        for trace, other in zip(scored, plain.score(PROMPTS, TEXTS), strict=True):
            assert trace.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        for found, expected in zip(
            reader.generate(PROMPTS[::-1], SAMPLED)[::-1], plain.generate(PROMPTS, SAMPLED), strict=True
        ):
            assert_same(found[0], expected[0])
    assert reader.tokens_read == read
    assert plain.tokens_read > 4 * read


def test_what_waits_is_not_touched_by_others_who_go_on_from_the_same_prompt() -> None:
    reader, plain = reader_of(), reader_of(kept=0)
    reader.score(PROMPTS[:1], TEXTS[:1])
    begun = [reader.begin(PROMPTS[:1], 2, SAMPLED)[0] for _ in range(2)]
    hot = SamplingParams(temperature=1.0, max_tokens=20, seed=9)
    reader.generate(PROMPTS[:1], hot)
    reader.score(PROMPTS[:1], TEXTS[1:2])
    (expected,) = plain.generate(PROMPTS[:1], SamplingParams(temperature=0.9, max_tokens=8, seed=5))[0]
    for item in begun:
        assert_same(reader.finish([item])[0], expected)
    assert_same(reader.generate(PROMPTS[:1], hot)[0][0], plain.generate(PROMPTS[:1], hot)[0][0])


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3", "gpt_oss", "gpt2"])
def test_a_conversation_that_goes_on_reads_what_was_added(architecture: str) -> None:
    plain, reader = reader_of(architecture, kept=0), reader_of(architecture)
    conversation = CONTEXT
    for turn in ("Where was Ada Tarn born?", " In Velm. And where is that?", " On the Orun."):
        conversation += turn
        before = reader.tokens_read
        for one, other in zip(
            reader.generate([conversation], SAMPLED)[0],
            plain.generate([conversation], SAMPLED)[0],
            strict=True,
        ):
            assert_same(one, other)
        added = reader.tokens_read - before
        assert added == reader.count_tokens(conversation if turn.startswith("Where") else turn)


def test_what_begins_alike_in_a_later_call_goes_on_from_there() -> None:
    reader, plain = reader_of(), reader_of(kept=0)
    reader.generate([CONTEXT + "Where was Ada Tarn born?"], SamplingParams(max_tokens=2))
    before = reader.tokens_read
    # Two go on from what was kept, one is its beginning, two share what no call has read.
    fresh = "Tarn has two mills and a bridge that Ada Tarn built when she was young. " * 2
    asked = [
        CONTEXT + "Who is the mayor?",
        CONTEXT + "Where is the Orun?",
        CONTEXT,
        fresh + "One.",
        fresh + "Two.",
    ]
    for found, expected in zip(reader.generate(asked, SAMPLED), plain.generate(asked, SAMPLED), strict=True):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    # Padding of rows in one pass reads some tokens of the beginning again.
    assert reader.tokens_read - before < reader.count_tokens(fresh) + 8 * 10
    # What others went on from is as it was.
    asked.insert(0, CONTEXT + "Where was Ada Tarn born?")
    read = reader.tokens_read
    scored = reader.score(asked, TEXTS * 2)
    for trace, other in zip(scored, plain.score(asked, TEXTS * 2), strict=True):
        assert trace.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert reader.tokens_read == read


def test_another_beginning_is_not_mistaken_for_it() -> None:
    reader, plain = reader_of(), reader_of(kept=0)
    reader.generate([CONTEXT], SamplingParams(max_tokens=2))
    other = CONTEXT.replace("Orun", "Ambel", 1) + "Who?"
    assert_same(reader.generate([other], SAMPLED)[0][2], plain.generate([other], SAMPLED)[0][2])
    assert reader.tokens_read > 0.9 * (reader.count_tokens(CONTEXT) + reader.count_tokens(other))


def test_no_more_is_kept_than_there_is_room_for() -> None:
    reader = reader_of()
    reader.generate(PROMPTS[:1], SamplingParams(max_tokens=2))
    one = store_of(reader).size
    small = reader_of(kept=2 * one + one // 2)
    asked = [f"{letter}{PROMPTS[0][1:]}" for letter in "abcd"]
    for prompt in asked:
        small.generate([prompt], SamplingParams(max_tokens=2))
        assert store_of(small).size <= store_of(small).most
    read = small.tokens_read
    small.generate(asked[2:], SamplingParams(max_tokens=2))
    assert small.tokens_read == read
    small.generate(asked[:1], SamplingParams(max_tokens=2))
    assert small.tokens_read > read
    # A prompt that is larger than all the room is read as if there were none.
    tiny = reader_of(kept=one // 2)
    tiny.generate(asked, SamplingParams(max_tokens=2))
    assert store_of(tiny).size == 0


def test_what_was_read_by_other_weights_is_forgotten() -> None:
    reader = reader_of("qwen2")
    reader.generate(PROMPTS, SAMPLED)
    read = reader.tokens_read
    with torch.no_grad():
        tiny_model("qwen2").get_output_embeddings().weight.mul_(1.0)
    reader.generate(PROMPTS, SAMPLED)
    assert reader.tokens_read == 2 * read


def test_nothing_is_kept_where_adapters_may_be_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_model("llama"), "_hf_peft_config_loaded", True, raising=False)
    reader = reader_of()
    reader.generate(PROMPTS, SAMPLED)
    assert store_of(reader).size == 0


def test_what_is_asked_for_now_has_the_memory_first() -> None:
    reader = reader_of()
    reader.generate(PROMPTS, SAMPLED)
    assert store_of(reader).size > 0
    sizes: list[int] = []

    def fail_once(*_: Any) -> None:
        sizes.append(store_of(reader).size)
        if len(sizes) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")

    hook = tiny_model("llama").register_forward_pre_hook(fail_once)
    answers = reader.generate([prompt + " Why?" for prompt in PROMPTS], SamplingParams(max_tokens=1))
    hook.remove()
    assert len(answers) == 3
    assert sizes[0] > 0
    assert sizes[1] == 0


def test_a_store_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="kept_prompt_bytes must be at least 0"):
        reader_of(kept=-1)
