"""Refusals in the services' own words, and what is asked instead."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from surerag.messages import SamplingParams
from surerag.readers.refusals import LeftOutWarning, Understood, needed, refusals_in, tell_left_out

ASKED: dict[str, Any] = {
    "temperature": 0.0, "top_p": 1.0, "n": 10, "seed": 1, "stop": ["x"], "max_tokens": 9,
    "logprobs": True, "top_logprobs": 20, "stream_options": {}, "top_k": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("Unsupported value: 'temperature' does not support 0.0 with this model.", ["temperature"]),
        ("Unsupported parameter: 'temperature' is not supported with this model.", ["temperature"]),
        ("temperature: is deprecated for this model", ["temperature"]),
        ("`temperature` may only be set to 1 when thinking is enabled.", ["temperature"]),
        ("`temperature` and `top_p` cannot both be specified for this model.", ["temperature", "top_p"]),
        ("You are not allowed to request logprobs from this model.", ["logprobs"]),
        ("Logprobs is not supported for the current model.", ["logprobs"]),
        ("deepseek-reasoner does not support logprobs or top_logprobs", ["logprobs", "top_logprobs"]),
        ("Unrecognized request argument supplied: seed", ["seed"]),
        ("Argument not supported on this model: stop", ["stop"]),
        ("top_k: Extra inputs are not permitted", ["top_k"]),
        ("body -> stream_options: extra fields not permitted", ["stream_options"]),
        ("We could not find a seed in your prompt, and n stops short.", []),
    ],
)
def test_what_is_refused_is_understood(said: str, refused: list[str]) -> None:
    assert [refusal.name for refusal in refusals_in(said, ASKED)] == refused


@pytest.mark.parametrize(
    ("said", "name", "most"),
    [
        ("Invalid value for 'top_logprobs': must be less than or equal to 5.", "top_logprobs", 5),
        ("Invalid 'n': integer above maximum value. Expected a value <= 8, but got 10 instead.", "n", 8),
        ("'n' : number must be at most 1", "n", 1),
        ("This model supports only n=1", "n", 1),
        ("Requested sample top_logprobs of 20, which is greater than max allowed: 8", "top_logprobs", 8),
    ],
)
def test_limits_are_kept_to(said: str, name: str, most: int) -> None:
    learnt = Understood().learnt(said, ASKED, needed=ASKED)
    assert learnt is not None
    assert learnt.render(ASKED) == {**ASKED, name: most}


def test_what_is_called_otherwise_is_renamed() -> None:
    said = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
    learnt = Understood().learnt(said, ASKED, needed=ASKED)
    assert learnt is not None
    body = learnt.render(ASKED)
    assert (body["max_completion_tokens"], "max_tokens" in body) == (9, False)
    assert learnt.render(ASKED | {"max_completion_tokens": 9}) == body
    assert learnt.learnt(said, ASKED) is None


def test_what_is_needed_is_not_left_out() -> None:
    said = "Unsupported parameter: 'logprobs' is not supported with this model."
    assert Understood().learnt(said, ASKED, needed(SamplingParams())) is None
    learnt = Understood().learnt(said, ASKED, needed(SamplingParams(trace="none")))
    assert learnt is not None
    assert "logprobs" not in learnt.render(ASKED)
    drawn = "Unsupported parameter: 'temperature' is not supported with this model."
    assert (
        Understood().learnt(drawn, ASKED, needed(SamplingParams(n=5, temperature=0.7, trace="none"))) is None
    )
    assert (
        Understood().learnt(drawn, ASKED, needed(SamplingParams(n=5, temperature=1.0, trace="none")))
        is not None
    )
    assert Understood().learnt(drawn, ASKED, needed(SamplingParams(trace="none"))) is not None


def test_what_is_felt_is_told() -> None:
    with pytest.warns(LeftOutWarning, match="gpt-x refuses temperature: it is asked without"):
        tell_left_out("gpt-x", ["temperature", "seed"], SamplingParams())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell_left_out("gpt-x", ["temperature", "seed", "stream_options"], SamplingParams(temperature=1.0))


def test_of_two_that_exclude_each_other_the_last_that_can_goes() -> None:
    said = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    learnt = Understood().learnt(said, ASKED, needed=["temperature"])
    assert learnt is not None
    assert learnt.dropped == {"top_p"}
    assert Understood().learnt(said, ASKED, needed=["temperature", "top_p"]) is None


def test_words_that_are_names_as_well_are_words_beside_a_quoted_name() -> None:
    said = (
        "Unsupported parameter: 'temperature' is not supported with reasoning models. Please include or stop."
    )
    asked = {**ASKED, "reasoning": {}, "include": []}
    assert [refusal.name for refusal in refusals_in(said, asked)] == ["temperature"]


def test_what_can_be_left_out_is_also_where_something_needed_is_refused_with_it() -> None:
    said = "Unsupported parameters: 'seed', 'logprobs' are not supported."
    learnt = Understood().learnt(said, ASKED, needed=["logprobs"])
    assert learnt is not None
    assert learnt.dropped == {"seed"}


def test_two_that_learn_at_the_same_time_know_both() -> None:
    one = Understood(frozenset({"seed"}), {"n": 4, "top_k": 3}, {"max_tokens": "max_completion_tokens"})
    both = one.joined(Understood(frozenset({"stop"}), {"n": 2}))
    assert both == Understood(frozenset({"seed", "stop"}), {"n": 2, "top_k": 3}, dict(one.renamed))
