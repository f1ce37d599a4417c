"""Whether two readers said the same, and thought the same of it."""

from __future__ import annotations

import pytest

from surerag.messages import Generation, TokenTrace


def traced(answer: Generation) -> TokenTrace:
    assert answer.trace is not None
    return answer.trace


def assert_same(one: Generation, other: Generation) -> None:
    assert one.text == other.text
    assert one.finish == other.finish
    ours, theirs = traced(one), traced(other)
    assert ours.tokens == theirs.tokens
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert ours.logsumexp == pytest.approx(theirs.logsumexp, abs=1e-4)
    assert ours.entropy is not None and theirs.entropy is not None
    assert ours.entropy.upper == pytest.approx(theirs.entropy.upper, abs=1e-4)
