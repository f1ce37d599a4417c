"""Further model families, recurrent ones among them: batched, and equal to one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from surerag.messages import SamplingParams, TokenTrace
from surerag.readers.local import TransformersReader
from surerag.readers.local.opaque_memory import JoinedMemory, OpaqueMemory, PaddedMemory
from tests.readers.families import HYBRIDS, TRANSFORMERS
from tests.readers.same_answers import traced
from tests.readers.sizes import PAD_ID
from tests.readers.tiny_models import ARCHITECTURES, DEVICE, tiny_model, tiny_tokenizer

PROMPTS = [
    "Where was Ada Tarn born?",
    "The Orun",
    "A much longer prompt about rivers, hills and cities that nobody has ever seen, and about their mayors",
    "x",
]
SAMPLED = SamplingParams(n=2, temperature=0.9, top_p=0.95, max_tokens=8, seed=5)


@contextmanager
def forwards(architecture: str) -> Iterator[list[tuple[int, ...]]]:
    """Note the shape of what goes into each pass."""
    shapes: list[tuple[int, ...]] = []

    def note(module: Any, arguments: Any, keywords: dict[str, Any]) -> None:
        shapes.append(tuple(keywords["input_ids"].shape))

    hook = tiny_model(architecture).register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield shapes
    finally:
        hook.remove()


def reader_of(architecture: str) -> TransformersReader:
    return TransformersReader(tiny_model(architecture), tiny_tokenizer())


def assert_close(one: TokenTrace, other: TokenTrace) -> None:
    assert one.tokens == other.tokens
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert one.entropy is not None and other.entropy is not None
    assert one.entropy.upper == pytest.approx(other.entropy.upper, abs=1e-4)


def test_there_are_as_many_families_as_we_say() -> None:
    assert len({*ARCHITECTURES, *HYBRIDS, *TRANSFORMERS}) >= 38


@pytest.mark.parametrize("architecture", [*HYBRIDS, *TRANSFORMERS])
def test_a_family_says_the_same_in_a_batch_alone_begun_and_scored(architecture: str) -> None:
    reader = reader_of(architecture)
    with forwards(architecture) as passes:
        together = reader.generate(PROMPTS, SAMPLED)
    # One for each step, and few to read four prompts of very different lengths.
    assert len(passes) <= SAMPLED.max_tokens + 3
    for prompt, row in zip(PROMPTS, together, strict=True):
        for one, other in zip(row, reader.generate([prompt], SAMPLED)[0], strict=True):
            assert one.text == other.text
            assert_close(traced(one), traced(other))
    begun = [reader.begin(PROMPTS[:2], 3, SAMPLED), reader.begin(PROMPTS[2:], 2, SAMPLED)]
    ended = reader.finish([begun[1][1], begun[0][0], begun[1][0], begun[0][1]])
    for answer, place in zip(ended, (3, 0, 2, 1), strict=True):
        assert answer.text == together[place][0].text
        assert_close(traced(answer), traced(together[place][0]))
    said = [(prompt, traced(row[0])) for prompt, row in zip(PROMPTS, together, strict=True) if row[0].text]
    scored = reader.score([prompt for prompt, _ in said], ["".join(trace.tokens) for _, trace in said])
    for trace, (_, expected) in zip(scored, said, strict=True):
        assert_close(trace, expected)


@pytest.mark.parametrize("architecture", [*HYBRIDS, *TRANSFORMERS])
def test_a_familys_greedy_answers_are_those_of_generate(architecture: str) -> None:
    model, tokenizer = tiny_model(architecture), tiny_tokenizer()
    sampling = SamplingParams(max_tokens=8)
    for prompt, (answer,) in zip(PROMPTS, reader_of(architecture).generate(PROMPTS, sampling), strict=True):
        ids = torch.tensor([tokenizer(prompt)["input_ids"]], device=DEVICE)
        plain: Any = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=PAD_ID
        )
        assert answer.text == tokenizer.decode(plain[0, ids.shape[1] :], skip_special_tokens=True).strip()


@pytest.mark.parametrize("architecture", [*HYBRIDS, "mamba", "falcon_h1"])
def test_recurrent_models_read_different_lengths_together(architecture: str) -> None:
    prompts = [("Where was Ada Tarn born? " * 5)[: 5 + 7 * place] for place in range(16)]
    reader = reader_of(architecture)
    assert issubclass(reader._engine._prefill._kind, PaddedMemory)
    with forwards(architecture) as passes:
        reader.generate(prompts, SamplingParams(temperature=1.0, max_tokens=16))
    # 16 steps for all, where there were 16 for each; and some to read them.
    assert len(passes) <= 16 + 4


@pytest.mark.parametrize("architecture", ["lfm2", "mamba", "falcon_h1", "qwen3_next"])
def test_what_a_mask_does_not_keep_out_of_a_state_is_read_apart_and_grown_together(architecture: str) -> None:
    def unmasked(module: Any, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        reading = keywords["input_ids"].shape[1] > 1
        return arguments, {**keywords, **({"attention_mask": None} if reading else {})}

    expected = reader_of(architecture).generate(PROMPTS, SAMPLED)
    hook = tiny_model(architecture).register_forward_pre_hook(unmasked, with_kwargs=True)
    try:
        reader = reader_of(architecture)
        assert reader._engine._prefill._kind is JoinedMemory
        with forwards(architecture) as passes:
            found = reader.generate(PROMPTS, SAMPLED)
    finally:
        hook.remove()
    assert len(passes) <= SAMPLED.max_tokens - 1 + len(PROMPTS)
    for one, other in zip(found, expected, strict=True):
        assert [answer.text for answer in one] == [answer.text for answer in other]


def test_a_hybrid_without_any_mask_is_never_padded() -> None:
    def unmasked(module: Any, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, {**keywords, "attention_mask": None}

    expected = reader_of("lfm2").generate(PROMPTS, SAMPLED)
    hook = tiny_model("lfm2").register_forward_pre_hook(unmasked, with_kwargs=True)
    try:
        reader = reader_of("lfm2")
        assert reader._engine._prefill._kind is OpaqueMemory
        found = reader.generate(PROMPTS, SAMPLED)
    finally:
        hook.remove()
    for one, other in zip(found, expected, strict=True):
        assert [answer.text for answer in one] == [answer.text for answer in other]
