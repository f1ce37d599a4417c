"""What tests of the local reader share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from surerag.messages import Generation, SamplingParams, TokenTrace
from surerag.readers.local import TransformersReader
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

PROMPTS = ["Where was Ada born?", "The Orun", "A longer prompt about hills", "Who is the mayor of Velm?", "x"]
SAMPLED = SamplingParams(n=3, temperature=1.0, max_tokens=12, seed=8)
ONE = SamplingParams(temperature=1.0, max_tokens=12, seed=8)


def reader_of(architecture: str = "llama", *, chat: bool = False, **options: Any) -> TransformersReader:
    return TransformersReader(tiny_model(architecture), tiny_tokenizer(chat=chat), **options)


def texts(rows: list[list[Generation]]) -> list[list[str]]:
    return [[answer.text for answer in row] for row in rows]


def traced(answer: Generation) -> TokenTrace:
    assert answer.trace is not None
    return answer.trace


def assert_same(one: Generation, other: Generation) -> None:
    assert (one.text, one.finish, one.completion_tokens, one.thinking_tokens) == (
        other.text,
        other.finish,
        other.completion_tokens,
        other.thinking_tokens,
    )
    ours, theirs = traced(one), traced(other)
    assert ours.tokens == theirs.tokens
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert ours.logsumexp == pytest.approx(theirs.logsumexp, abs=1e-4)
    assert ours.end_logprob == pytest.approx(theirs.end_logprob, abs=1e-4)
    assert ours.entropy is not None and theirs.entropy is not None
    assert ours.entropy.upper == pytest.approx(theirs.entropy.upper, abs=1e-4)


@contextmanager
def watched(model: Any, check: Callable[[tuple[int, ...]], object] = id) -> Iterator[list[tuple[int, ...]]]:
    """Note the shape of the tokens of every pass, [rows, steps]; ``check`` may raise before a pass."""
    shapes: list[tuple[int, ...]] = []

    def note(module: Any, arguments: Any, keywords: dict[str, torch.Tensor]) -> None:
        check(tuple(keywords["input_ids"].shape))
        shapes.append(tuple(keywords["input_ids"].shape))

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield shapes
    finally:
        hook.remove()
