"""Our measures on the inputs of lm-polygraph's tests of estimators that need no model, and its figures.

Figures and inputs are those of IINemo/lm-polygraph (MIT), commits in brackets:
``test/test_estimator_numerics.py`` (bcc817b5387a), ``test/test_semantic_entropy.py`` (a57e4f147c0a),
``test/test_spilled_energy.py`` (22b3469aa7e7).
Where a figure of ours differs, the test's docstring says why. What lm-polygraph tests there and we do not
offer: pointwise mutual information and its conditional form (they need a second, unconditional pass), and
the "spilled" energies (differences of neighbouring steps).
"""

from __future__ import annotations

import numpy as np
import pytest

from surerag.measures import (
    answer_weights,
    discrete_semantic_entropy,
    energy,
    length_normalized_entropy,
    lowest_probability,
    perplexity,
    semantic_entropy,
    token_entropy,
)
from surerag.methods.dynqr.metrics import uncertainty_of
from surerag.readers.fake import reply

GREEDY = [[-1.0, -2.0, -3.0], [-4.0, -2.0]]
"""Log-probabilities of two greedy answers; the last of each is that of the end token."""

PARIS_LONDON = [2 / 3, 1 / 3]
THETA = np.array([[2.0, 1.0, 0.5, 0.0, -1.0], [0.0, 3.0, 1.0, 0.5, 0.25], [1.0, 1.0, 1.0, 1.0, 1.0]])
"""Raw logits of three steps over five tokens."""


def entropy_of(probabilities: list[float]) -> float:
    """Entropy as lm-polygraph's tests write it out, by hand."""
    p = np.array(probabilities)
    return float(-(p * np.log(p)).sum())


def logsumexp(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.log(np.exp(rows).sum(axis=-1))
    return found


@pytest.mark.parametrize(("answer", "theirs", "without_end"), [(GREEDY[0], 2.0, 1.5), (GREEDY[1], 3.0, 4.0)])
def test_perplexity(answer: list[float], theirs: float, without_end: float) -> None:
    """``Perplexity``: 2 and 3.

    Theirs is the mean negative log-probability, not exponentiated, of all tokens and the end token. Ours is
    exponentiated, as DynQR's threshold of 1.2 takes it, and our readers leave the end token out.
    """
    assert np.log(perplexity(answer)) == pytest.approx(theirs)
    assert np.log(perplexity(answer[:-1])) == pytest.approx(without_end)


@pytest.mark.parametrize("answer", GREEDY)
def test_sequence_probability(answer: list[float]) -> None:
    """``MaximumSequenceProbability``: 6 for both. We have no such measure; perplexity is it, by length."""
    assert len(answer) * np.log(perplexity(answer)) == pytest.approx(6.0)


@pytest.mark.parametrize(("answer", "theirs"), [(GREEDY[0], [1.0, 2.0]), (GREEDY[1], [4.0])])
def test_token_probability(answer: list[float], theirs: list[float]) -> None:
    """``MaximumTokenProbability``: [1, 2] and [4], a value for each token, the end token left out.

    Ours is the largest of them, in the same unit (−log) and without the end token, too.
    """
    assert lowest_probability(answer[:-1]) == pytest.approx(max(theirs))


@pytest.mark.parametrize(
    ("samples", "lengths", "normalised", "theirs"),
    [([-2.0, -6.0], [2, 3], 1.5, None), ([-3.0, -9.0], [1, 3], 3.0, 6.0)],
)
def test_monte_carlo_entropies(
    samples: list[float], lengths: list[int], normalised: float, theirs: float | None
) -> None:
    """``MonteCarloNormalizedSequenceEntropy``: 1.5 and 3; ``MonteCarloSequenceEntropy`` of the second: 6.

    Only the normalised one is among DynQR's metrics. The other is it with each answer taken as one token.
    """
    tokens = [np.full(length, total / length) for total, length in zip(samples, lengths, strict=True)]
    assert length_normalized_entropy(tokens) == pytest.approx(normalised)
    if theirs is not None:
        assert length_normalized_entropy([[total] for total in samples]) == pytest.approx(theirs)


def test_an_empty_sample_is_refused() -> None:
    """``MonteCarloSequenceEntropy``: 36, with an empty third answer of −100; 1.5 normalised, leaving it out.

    Our formula refuses an answer without tokens; DynQR's metric leaves it out, as theirs does.
    """
    assert length_normalized_entropy([[-2.0], [-6.0], [-100.0]]) == pytest.approx(36.0)
    with pytest.raises(ValueError, match="at least one token"):
        length_normalized_entropy([[-1.0, -1.0], [-2.0] * 3, []])
    two, three, empty = (
        reply("two words", logprobs=-1.0),
        reply("three more words", logprobs=-2.0),
        reply(""),
    )
    assert uncertainty_of("ln_entropy", two, [two, three, empty]) == pytest.approx(1.5)


@pytest.mark.parametrize("measure", [perplexity, lowest_probability, energy])
def test_an_empty_answer_is_refused(measure: object) -> None:
    """Theirs: NaN with a warning for means, 0 for the sequence's probability, empty for tokens.

    Ours raise: a number here would look like a measured one.
    """
    assert callable(measure)
    with pytest.raises(ValueError, match="at least one token"):
        measure([])


def test_token_entropies() -> None:
    """``EntropyCalculator``: [0, log 2], [−¼ log ¼ − ¾ log ¾], and nothing for an empty answer. The same."""
    with np.errstate(divide="ignore"):
        known = np.log([[1.0, 0.0], [0.5, 0.5]])
    assert token_entropy(known).tolist() == pytest.approx([0.0, np.log(2)])
    assert token_entropy(np.log([[0.25, 0.75]])).tolist() == pytest.approx([entropy_of([0.25, 0.75])])
    assert token_entropy(np.empty((0, 2))).shape == (0,)


def test_mean_token_entropy() -> None:
    """``MeanTokenEntropy``: 7/12 and ½ of given entropies, the end token's among them.

    The same of the same steps; but a reader's trace ends before the end token, so that of its own answers
    ours would be ⅜ and ¾.
    """
    for entropies, theirs, without_end in (([0.25, 0.5, 1.0], 7 / 12, 3 / 8), ([0.75, 0.25], 0.5, 0.75)):
        for steps, expected in ((entropies, theirs), (entropies[:-1], without_end)):
            said = reply("word " * len(steps), entropy=steps)
            assert uncertainty_of("token_entropy", said) == pytest.approx(expected)


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_empirical_semantic_entropy_whatever_the_number_of_samples(repeats: int) -> None:
    """``SemanticEntropy(frequency)`` of Paris twice as often as London: that of ⅔ and ⅓. The same."""
    clusters = [0] * (2 * repeats) + [1] * repeats
    assert discrete_semantic_entropy(clusters) == pytest.approx(entropy_of(PARIS_LONDON))


@pytest.mark.parametrize(("clusters", "theirs"), [([0, 0, 1, 1], np.log(2)), ([0, 0, 0], 0.0)])
def test_empirical_semantic_entropy(clusters: list[int], theirs: float) -> None:
    """``SemanticEntropy(frequency, direct)``: log 2 of halves, 0 of one class. The same."""
    assert discrete_semantic_entropy(clusters) == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("texts", "probabilities"),
    [(["Paris", "It is Paris", "London"], [0.1, 0.2, 0.7]), (["Paris", "Paris", "London"], [0.3, 0.3, 0.7])],
)
def test_direct_semantic_entropy(texts: list[str], probabilities: list[float]) -> None:
    """``SemanticEntropy(direct)``: that of 0.3 and 0.7, equal answers counted once on request.

    The same; counting equal answers once is our default (``weights="distinct"``), not an option.
    """
    weights = answer_weights(texts, np.log(probabilities))
    assert semantic_entropy(weights, [0, 0, 1]) == pytest.approx(entropy_of([0.3, 0.7]))


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-12])
def test_direct_semantic_entropy_is_normalised(scale: float) -> None:
    """``SemanticEntropy(direct)`` of 0.1, 0.2 | 0.1 at any scale: that of ¾ and ¼. The same."""
    logs = np.log(scale * np.array([0.1, 0.2, 0.1]))
    weights = answer_weights(["Paris", "It is Paris", "London"], logs)
    assert semantic_entropy(weights, [0, 0, 1]) == pytest.approx(entropy_of([0.75, 0.25]))


def test_mean_semantic_entropy_is_another_estimate() -> None:
    """``SemanticEntropy()``, estimated by the mean: −(2 log 0.3 + log 0.7)/3 = 0.922. Ours: 0.611.

    Theirs averages −log p(class) over the samples, so that each class is weighted by how often it was
    sampled (⅔, ⅓); SePer's Eq. 5, which ours is, weights it by its likelihood (0.3, 0.7). Both agree where
    samples come as often as they are likely.
    """
    theirs = -(2 * np.log(0.3) + np.log(0.7)) / 3
    weights = answer_weights(["Paris", "It is Paris", "London"], np.log([0.1, 0.2, 0.7]))
    assert semantic_entropy(weights, [0, 0, 1]) == pytest.approx(entropy_of([0.3, 0.7]))
    assert theirs == pytest.approx(0.922, abs=5e-4)
    assert semantic_entropy(weights, [0, 0, 1]) == pytest.approx(0.611, abs=5e-4)
    agreeing = -(2 * np.log(2 / 3) + np.log(1 / 3)) / 3
    assert semantic_entropy([1 / 3, 1 / 3, 1 / 3], [0, 0, 1]) == pytest.approx(agreeing)


def test_marginal_energy() -> None:
    """``SpilledEnergy(marginal)``: minus the log-sum-exp of each step, pooled by its smallest value.

    Ours is pooled by the mean over the answer's tokens (DynQR, Table 5); of one step both are the same.
    """
    steps = logsumexp(THETA)
    assert steps[2] == pytest.approx(1 + np.log(5))
    assert energy(steps[:2]) == pytest.approx((-steps[:2]).mean())
    assert min(energy([step]) for step in steps[:2]) == pytest.approx((-steps[:2]).min())


def test_log_probability_from_energies() -> None:
    """Theirs: log p of a token is its raw logit less the log-sum-exp. So is what our measures are given."""
    chosen = np.array([THETA[0, 0], THETA[1, 1]])
    logs = chosen - logsumexp(THETA)[:2]
    expected = np.log(np.exp(chosen) / np.exp(THETA[:2]).sum(axis=1))
    assert (logs < 0).all()
    assert np.log(perplexity(logs)) == pytest.approx(-expected.mean())
    assert np.log(perplexity(logs)) == pytest.approx(-energy(logsumexp(THETA)[:2]) - chosen.mean())
