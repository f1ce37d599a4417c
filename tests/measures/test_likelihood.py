"""Uncertainties of an answer, by hand, and energy against a tiny model's logits."""

from __future__ import annotations

import numpy as np
import pytest

from surerag.measures import energy, length_normalized_entropy, lowest_probability, perplexity

LOGS = np.log([0.5, 0.25, 0.125])


def test_hand_worked() -> None:
    assert perplexity(LOGS) == pytest.approx(4.0)
    assert lowest_probability(LOGS) == pytest.approx(np.log(8))
    assert length_normalized_entropy([LOGS]) == pytest.approx(np.log(4))
    assert length_normalized_entropy([LOGS, np.log([1.0])]) == pytest.approx(np.log(4) / 2)


def test_energy_equals_its_definition_on_logits() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 30))
    at_one = np.log(np.exp(logits).sum(axis=1))
    at_two = np.log(np.exp(logits / 2).sum(axis=1))
    assert energy(at_one) == pytest.approx(-at_one.mean())
    assert energy(at_two, temperature=2.0) == pytest.approx(-2 * at_two.mean())


def test_larger_means_less_certain() -> None:
    sure, unsure = np.log([0.99, 0.99]), np.log([0.4, 0.4])
    assert perplexity(sure) < perplexity(unsure)
    assert lowest_probability(sure) < lowest_probability(unsure)
    assert length_normalized_entropy([sure]) < length_normalized_entropy([unsure])
    assert energy([9.0]) < energy([1.0])


@pytest.mark.parametrize("measure", [perplexity, lowest_probability, energy])
def test_no_tokens_is_an_error_not_a_number(measure: object) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        measure([])  # type: ignore[operator]
