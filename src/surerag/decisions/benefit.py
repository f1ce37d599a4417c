"""A gate fitted to what matters: how likely acting mends an answer, less how likely it spoils one.

Doubt and benefit are different questions. A reader may doubt what retrieval cannot mend, and be sure of what
it would; on real records, uncertainty tells wrong answers far better than it tells where retrieval helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.rows import DecisionRow, common_signals, outcomes_of, signal_of
from surerag.decisions.saved import Saved
from surerag.errors import ConfigurationError, InputError
from surerag.extras import extra

Floats = NDArray[np.float64]

STRENGTHS = (0.03, 0.1, 0.3, 1.0)
"""Inverse strengths of regularisation to choose from, by cross-validated likelihood."""

_LEAST_OF_A_KIND = 10


@dataclass(frozen=True, slots=True)
class BenefitModel(Saved):
    """A multinomial logistic regression of "mends", "neither", "spoils" on features at hand; numbers only.

    It estimates and promises nothing. Calibrate its benefit like any signal, on rows it was not fitted on.

    Attributes:
        features: Names of the signals that it reads.
        lowest: Of each feature; smaller values are taken for this.
        highest: Of each feature; larger and infinite values are taken for this.
        weights: Of spoiling, neither and mending, on features scaled to [-1, 1]; shape [3, k].
        intercepts: Of the three.
        strength: Inverse strength of regularisation that was chosen.
        n: Questions that it was fitted on.

    Example:
        >>> model = BenefitModel(("p",), (0.0,), (2.0,), ((-1.0,), (0.0,), (1.0,)), (0.0, 0.0, 0.0), 1.0, 100)
        >>> round(model.benefit({"p": 2.0}), 3), round(model.benefit({"p": 1.0}), 3)
        (0.575, 0.0)
    """

    _called: ClassVar[str] = "a benefit model"

    features: tuple[str, ...]
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    intercepts: tuple[float, ...]
    strength: float
    n: int

    def __post_init__(self) -> None:
        """Check that the numbers fit together."""
        k = len(self.features)
        shapes = [len(self.lowest), len(self.highest), *map(len, self.weights)]
        if k == 0 or len(self.weights) != 3 or len(self.intercepts) != 3 or set(shapes) != {k}:
            raise ConfigurationError(
                f"a benefit model of {k} features needs a lowest and highest of each, three rows of weights "
                f"and three intercepts, found {shapes} and {len(self.intercepts)}",
                hint="load what to_dict() or save() wrote",
            )

    def benefit(self, signals: Mapping[str, float]) -> float:
        """Return P(mends) - P(spoils), in [-1, 1].

        Raises:
            InputError: If a feature is missing.
        """
        missing = [name for name in self.features if name not in signals]
        if missing:
            there = ", ".join(signals) or "nothing"
            raise InputError(
                f"the benefit model reads {', '.join(missing)}, and there is {there}",
                hint="give the signals that it was fitted on",
            )
        return float(self.benefits(np.array([[signals[name] for name in self.features]]))[0])

    def benefits(self, values: Floats) -> Floats:
        """Return the benefit of many questions; ``values`` has shape [n, k]."""
        scaled = _scaled(values, np.array(self.lowest), np.array(self.highest))
        logits = scaled @ np.array(self.weights).T + np.array(self.intercepts)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares = odds / odds.sum(axis=1, keepdims=True)
        found: Floats = shares[:, 2] - shares[:, 0]
        return found


def fit_benefit(
    rows: Sequence[DecisionRow],
    features: Sequence[str] | None = None,
    *,
    strength: float | None = None,
    seed: int = 0,
) -> BenefitModel:
    """Fit a benefit model to questions of which both answers were judged.

    Args:
        rows: The questions.
        features: Names of signals to read; None for all that every row has.
        strength: Inverse strength of the L2 penalty; None chooses by five-fold likelihood.
        seed: Of the folds.

    Raises:
        InputError: If a row lacks a label or a feature, or too few questions are mended or spoiled to fit.
        MissingExtraError: If scikit-learn is not installed.
    """
    with extra("decisions"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_score

    names = tuple(common_signals(rows) if features is None else features)
    if not names:
        raise InputError("there are no features to fit", hint="give rows that share signals")
    values = np.stack([signal_of(rows, name) for name in names], axis=1)
    benefit = outcomes_of(rows).benefit
    kinds = np.sign(benefit).astype(int)
    counts = [int((kinds == kind).sum()) for kind in (-1, 0, 1)]
    if min(counts[0], counts[2]) < _LEAST_OF_A_KIND or counts[1] == 0:
        raise InputError(
            f"acting spoils {counts[0]} and mends {counts[2]} of {len(rows)} questions, of either of which "
            f"{_LEAST_OF_A_KIND} are needed to fit a benefit",
            hint="take more questions, or calibrate a single signal",
        )
    lowest, highest = _ends(values)
    scaled = _scaled(values, lowest, highest)
    # A score that changes by half counts half.
    weight = np.where(kinds == 0, 1.0, np.abs(benefit))
    if strength is None:
        folds = StratifiedKFold(5, shuffle=True, random_state=seed)
        likelihood = [
            cross_val_score(
                LogisticRegression(C=one, max_iter=1000), scaled, kinds, cv=folds, scoring="neg_log_loss"
            ).mean()
            for one in STRENGTHS
        ]
        strength = STRENGTHS[int(np.argmax(likelihood))]
    fitted = LogisticRegression(C=strength, max_iter=1000).fit(scaled, kinds, sample_weight=weight)
    return BenefitModel(
        names,
        tuple(map(float, lowest)),
        tuple(map(float, highest)),
        tuple(tuple(map(float, row)) for row in fitted.coef_),
        tuple(map(float, fitted.intercept_)),
        float(strength),
        len(rows),
    )


def cross_fitted(
    rows: Sequence[DecisionRow], features: Sequence[str] | None = None, *, folds: int = 5, seed: int = 0
) -> Floats:
    """Return each question's benefit by a model that was fitted on the other folds, shape [n].

    Raises:
        InputError: If there are fewer questions than folds, or too few are mended or spoiled.
    """
    if not 2 <= folds <= len(rows):
        raise InputError(f"expected 2 to {len(rows)} folds, got {folds}")
    names = tuple(common_signals(rows) if features is None else features)
    # Each fold has its share of every kind: else a model that knows base rates alone would rank by folds.
    order = np.random.default_rng(seed).permutation(len(rows))
    order = order[np.argsort(outcomes_of(rows).benefit[order], kind="stable")]
    fold = np.empty(len(rows), dtype=int)
    fold[order] = np.arange(len(rows)) % folds
    found = np.empty(len(rows))
    for one in range(folds):
        model = fit_benefit([row for row, at in zip(rows, fold, strict=True) if at != one], names, seed=seed)
        held = [row for row, at in zip(rows, fold, strict=True) if at == one]
        found[fold == one] = model.benefits(
            np.array([[row.signals[name] for name in model.features] for row in held])
        )
    return found


def _ends(values: Floats) -> tuple[Floats, Floats]:
    """Return the first and last hundredth of each feature's finite values, lest tails rule the scale."""
    lowest, highest = np.empty(values.shape[1]), np.empty(values.shape[1])
    for at, column in enumerate(values.T):
        finite = column[np.isfinite(column)]
        ends = np.quantile(finite, [0.01, 0.99]) if len(finite) else np.zeros(2)
        lowest[at], highest[at] = ends
    return lowest, highest


def _scaled(values: Floats, lowest: Floats, highest: Floats) -> Floats:
    """Return features in [-1, 1]; one that is always the same is 0."""
    width = highest - lowest
    inside = np.clip(values, lowest, highest)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled: Floats = np.where(width > 0, 2 * (inside - lowest) / width - 1, 0.0)
    return scaled
