"""Which memory serves a model: found out by trying."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from surerag.errors import ConfigurationError
from surerag.readers.local.attention_memory import AttentionMemory
from surerag.readers.local.forking_memory import ForkingMemory
from surerag.readers.local.memory import Memory, Part, join
from surerag.readers.local.model import CausalModel
from surerag.readers.local.opaque_memory import (
    JoinedMemory,
    OpaqueMemory,
    PaddedMemory,
    RecomputedMemory,
)
from surerag.readers.local.shared_attention import PLAIN, SHARED

# Two rows of different lengths, one of them shorter than what convolutions look back on.
_SHORT, _LONG = [0, 1], [1, 1, 0, 1, 0, 0, 1]


def memory_kind(model: CausalModel) -> type[Memory]:
    """Find out what a model can remember by: the most able of the kinds that hold when they are tried.

    Raises:
        ConfigurationError: If the model does not even answer when it reads everything anew.
    """
    try:
        expected = RecomputedMemory.empty(model, 1).feed(model.tensor([_SHORT]))
    except Exception as error:
        raise ConfigurationError(
            f"{model.origin} does not say what follows a text: {type(error).__name__}: {error}",
            hint="pass a model that AutoModelForCausalLM loads",
        ) from error
    if not model.arguments & {"past_key_values", "cache_params"}:
        return RecomputedMemory
    try:
        layers = model.fresh_cache().layers
        plain = all(type(layer) in {DynamicLayer, DynamicSlidingWindowLayer} for layer in layers)
        masked = {"past_key_values", "attention_mask", "position_ids"} <= model.arguments
        if plain and masked and not model.stateful and _pads_well(model, AttentionMemory):
            return ForkingMemory if _forks_well(model) else AttentionMemory
        if _goes_on_from_cache(model, expected):
            return _opaque_kind(model)
        reason = "it does not go on from a cache as if it read everything anew"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"{model.origin} reads its whole text again for every token, which is slow, since its cache cannot "
        f"be used: {reason}",
        stacklevel=5,
    )
    return RecomputedMemory


def _opaque_kind(model: CausalModel) -> type[OpaqueMemory]:
    found: type[OpaqueMemory] = OpaqueMemory
    for kind, holds in ((JoinedMemory, _joins_well), (PaddedMemory, _pads_well)):
        try:
            if not holds(model, kind):
                return found
        except Exception:
            # Whatever a model does not stand is not done with it.
            return found
        found = kind
    return found


def _pads_well(model: CausalModel, kind: type[Memory]) -> bool:
    """Try whether rows say the same alone and behind padding, before and after they go on."""
    padded = kind.empty(model, 2, 1)
    behind = [model.pad_token] * (len(_LONG) - len(_SHORT))
    tokens = model.tensor([[*behind, *_SHORT], _LONG])
    found = padded.feed_until([len(_SHORT), len(_LONG)], tokens)
    return _all_alike(model, kind, [found, *_following(model, padded)])


def _forks_well(model: CausalModel) -> bool:
    """Try whether rows that share beginnings say the same as alone, when they read and when they go on."""
    windows = any(type(layer) is not DynamicLayer for layer in model.fresh_cache().layers)
    if windows or model.compiled or model.config._attn_implementation not in (PLAIN, SHARED):
        return False
    try:
        prefix = ForkingMemory.empty(model, 2, 1)
        behind = [model.pad_token] * 2
        prefix.feed_until([5, 7], model.tensor([[*behind, *_LONG[:5]], _LONG]))
        stems = [Part(prefix, 1, 4), Part(prefix, 0, 5), Part(prefix, 1, 7), Part(prefix, 0, 2)]
        tails = [[1, 1, 0], [0, 0, 1], [1, 0], [0, 1, 1]]
        forked = ForkingMemory.forked(stems, 1)
        tokens = model.tensor([[*[model.pad_token] * (3 - len(tail)), *tail] for tail in tails])
        lengths = [part.length + len(tail) for part, tail in zip(stems, tails, strict=True)]
        found = [forked.feed_until(lengths, tokens), *_following(model, forked)]
        rows = [
            [*(_LONG[:5], _LONG)[part.row][: part.length], *tail]
            for part, tail in zip(stems, tails, strict=True)
        ]
        return _all_alike(model, AttentionMemory, found, rows)
    except Exception:
        return False


def _joins_well(model: CausalModel, kind: type[Memory]) -> bool:
    """Try whether rows say the same alone and joined after they were read."""
    short, long = (kind.empty(model, 1, 1) for _ in range(2))
    found = torch.cat([long.feed(model.tensor([_LONG])), short.feed(model.tensor([_SHORT]))])[[1, 0]]
    joined = join([short.part(0), long.part(0)], 1)
    return _all_alike(model, kind, [found, *_following(model, joined)])


def _all_alike(
    model: CausalModel,
    kind: type[Memory],
    found: Sequence[Tensor],
    rows: Sequence[Sequence[int]] = (_SHORT, _LONG),
) -> bool:
    for row, ids in enumerate(rows):
        alone = kind.empty(model, 1, 1)
        expected = [alone.feed(model.tensor([ids])), *_following(model, alone)]
        if not all(
            _alike(model, one, other[row : row + 1]) for one, other in zip(expected, found, strict=True)
        ):
            return False
    return True


def _following(model: CausalModel, memory: Memory) -> Iterator[Tensor]:
    """Yield what follows two more tokens."""
    for token in (1, 0):
        yield memory.feed(model.tensor([[token]] * len(memory.lengths)))


def _goes_on_from_cache(model: CausalModel, expected: Tensor) -> bool:
    """Try whether the model's state is in the cache that it is given, and nowhere else.

    Some models keep their state in their own modules: reading something else in between, as every
    batch does, would overwrite it.
    """
    first, second = model.tensor([[0]]), model.tensor([[1]])
    memory, other = OpaqueMemory.empty(model, 1), OpaqueMemory.empty(model, 1)
    memory.feed(first)
    other.feed(second)
    return _alike(model, memory.feed(second), expected)


def _tolerance(model: CausalModel) -> float:
    """Return how far two ways to the same logits may lie apart, in their standard deviations.

    Half precision is off by a hundredth. A mask that is left out shows in most of a logit, but a state that
    took in a little too much may show in a hundredth.
    """
    return 1e-4 if model.exact else 0.05


def _alike(model: CausalModel, one: Tensor, other: Tensor) -> bool:
    return bool((one - other).square().mean().sqrt() <= _tolerance(model) * one.std())
