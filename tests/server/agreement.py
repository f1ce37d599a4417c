"""How far a server and the local reader may differ."""

from __future__ import annotations

from surerag import Sampling, TransformersReader
from surerag.readers import BaseReader

AGREEMENT = 0.02
"""Nats."""


SAMPLING = Sampling(max_tokens=12)


def largest_difference(
    local: TransformersReader, prompts: list[str], reader: BaseReader, theirs: list[str]
) -> float:
    """Compare greedy answers token by token, and the exact entropies with the server's intervals."""
    worst, compared = 0.0, 0
    expected, found = local.generate(prompts, SAMPLING), reader.generate(theirs, SAMPLING)
    for (ours,), (other,) in zip(expected, found, strict=True):
        assert ours.trace is not None
        assert other.trace is not None
        assert other.trace.entropy is not None
        assert ours.trace.entropy is not None
        assert ours.text == other.text
        for one, two in zip(ours.trace.logprobs, other.trace.logprobs, strict=True):
            worst = max(worst, abs(one - two))
            compared += 1
        bounds = zip(other.trace.entropy.lower, other.trace.entropy.upper, strict=True)
        for exact, (low, high) in zip(ours.trace.entropy.middle, bounds, strict=True):
            assert low - AGREEMENT <= exact <= high + AGREEMENT
    assert compared >= len(prompts)
    return worst
