"""How often the statistics are wrong, and how often they show what is there: simulated levels and power.

    python -m studies.levels              # 1,000 samples a row
    python -m studies.levels --samples 100

Requirements are drawn where they just do not hold (level: at most 5 % may pass) and where both systems are
equal (power). Intervals should hold the true mean in 95 %. Calibrations are checked on the distribution that
they were drawn from.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from studies.common import console, print_table
from surerag.calibration import CalibrationRow, calibrate_abstention, calibrate_threshold
from surerag.evaluation.gate import choose_test
from surerag.measures.statistics import paired_difference

Floats = NDArray[np.float64]
Rng = np.random.Generator
Pairs = Callable[[Rng, int], tuple[Floats, Floats]]
LEVEL = 0.05
SIZES = (50, 100, 250, 500)
CALIBRATED = 250
"""Questions of a calibration."""


def percent(values: Any) -> str:
    """Return a mean in percent."""
    return f"{100 * np.mean(np.asarray(values, dtype=float)):.1f}"


def discordant(lost: float, gained: float, right: float = 0.7) -> Pairs:
    """Return pairs of right and wrong answers; ``lost`` and ``gained`` are shares of the questions."""

    def draw(rng: Rng, n: int) -> tuple[Floats, Floats]:
        kind = rng.choice(4, size=n, p=[lost, gained, right - lost, 1 - right - gained])
        return np.isin(kind, (1, 2)).astype(float), np.isin(kind, (0, 2)).astype(float)

    return draw


def graded(change: float, changed: float) -> Pairs:
    """Return pairs of graded scores, of which a share is changed by ``change`` on average."""

    def draw(rng: Rng, n: int) -> tuple[Floats, Floats]:
        old = rng.uniform(0.4, 0.8, n)
        return old + (rng.random(n) < changed) * (change + rng.uniform(-0.2, 0.2, n)), old

    return draw


def costs(ratio: float, sigma: float) -> Pairs:
    """Return log-normal costs of two systems with this ratio of their means."""

    def draw(rng: Rng, n: int) -> tuple[Floats, Floats]:
        return ratio * rng.lognormal(0, sigma, n), rng.lognormal(0, sigma, n)

    return draw


REQUIREMENTS: Sequence[tuple[str, bool, float, float, Pairs, Pairs]] = (
    ("accuracy(a) >= accuracy(b) - 0.05", False, 1.0, -0.05, discordant(0.1, 0.05), discordant(0.05, 0.05)),
    ("accuracy(a) >= accuracy(b) + 0.02", False, 1.0, 0.02, discordant(0.04, 0.06), discordant(0.02, 0.12)),
    ("accuracy(a) >= 0.95 * accuracy(b)", False, 0.95, 0.0, discordant(0.06, 0.025), discordant(0.03, 0.03)),
    ("accuracy(a) >= 0.7", False, 0.0, 0.7, discordant(0.1, 0.1), discordant(0.0, 0.1)),
    ("f1(a) >= f1(b) - 0.05", False, 1.0, -0.05, graded(-0.2, 0.25), graded(0.0, 0.25)),
    ("f1(a) >= 0.95 * f1(b)", False, 0.95, 0.0, graded(-0.12, 0.25), graded(0.0, 0.25)),
    ("tokens(a) <= 0.8 * tokens(b)", True, 0.8, 0.0, costs(0.8, 0.5), costs(0.6, 0.5)),
    ("tokens(a) <= 0.8 * tokens(b), heavy tails", True, 0.8, 0.0, costs(0.8, 1.0), costs(0.6, 1.0)),
    ("tokens(a) <= 1.13", True, 0.0, math.exp(0.125), costs(1.0, 0.5), costs(0.8, 0.5)),
)


def passes(draw: Pairs, rng: Rng, n: int, at_most: bool, scale: float, offset: float, cost: bool) -> bool:
    """Return whether a requirement passes on one sample of pairs."""
    a, b = draw(rng, n)
    test = choose_test(a, b, scale, not cost)
    return (test.shows_below if at_most else test.shows_above)(offset) <= LEVEL


def requirement_rows(samples: int, rng: Rng) -> Iterator[list[str]]:
    """Yield how often each form of requirement passes where it just does not hold, and where it does."""
    for text, at_most, scale, offset, edge, better in REQUIREMENTS:
        cost = text.startswith("tokens")
        cells = [
            percent([passes(draw, rng, n, at_most, scale, offset, cost) for _ in range(samples)])
            for draw in (edge, better)
            for n in SIZES
        ]
        yield [text, *cells]


DIFFERENCES: Sequence[tuple[str, float, tuple[float, float] | None, Callable[[Rng, int], Floats]]] = (
    (
        "right or wrong, 15 % differ",
        -0.05,
        (-1, 1),
        lambda g, n: g.choice([1.0, -1, 0], n, p=[0.05, 0.1, 0.85]),
    ),
    (
        "right or wrong, 4 % differ",
        0.0,
        (-1, 1),
        lambda g, n: g.choice([1.0, -1, 0], n, p=[0.02, 0.02, 0.96]),
    ),
    ("right or wrong, half differ", 0.1, (-1, 1), lambda g, n: g.choice([1.0, -1, 0], n, p=[0.3, 0.2, 0.5])),
    ("graded, 15 % differ", 0.0375, (-1, 1), lambda g, n: (g.random(n) < 0.15) * g.uniform(-0.5, 1, n)),
    ("graded, all differ", 0.1, (-1, 1), lambda g, n: np.clip(g.normal(0.1, 0.2, n), -1, 1)),
    ("costs, exponential", 1.0, None, lambda g, n: g.exponential(1, n)),
    ("costs, log-normal, σ = 1", math.exp(0.5), None, lambda g, n: g.lognormal(0, 1, n)),
)


def coverage_rows(samples: int, rng: Rng, sizes: Sequence[int]) -> Iterator[list[str]]:
    """Yield, for each kind of difference, how often its interval holds the true mean."""
    for name, mean, bounds, draw in DIFFERENCES:
        cells = []
        for n in sizes:
            intervals = [
                paired_difference(draw(rng, n), np.zeros(n), bounds=bounds).interval for _ in range(samples)
            ]
            cells.append(percent([i is not None and i[0] <= mean <= i[1] for i in intervals]))
        yield [name, *cells]


def answers(rng: Rng, n: int, right: float, informs: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Return uncertainties, lower by ``informs`` standard deviations for right answers, and who is right."""
    is_right = rng.random(n) < right
    return rng.standard_normal(n) - informs * is_right, is_right


def abstention_rows(samples: int, rng: Rng, n: int) -> Iterator[list[str]]:
    """Yield how often a bounded risk is broken, how often anything is answered, and which share."""
    for right, informs, risk in ((0.6, 2, 0.1), (0.8, 1, 0.1), (0.6, 0, 0.1), (0.9, 0.3, 0.2), (0.6, 2, 0.2)):
        uncertainty, is_right = answers(rng, 200_000, right, informs)
        order = np.argsort(uncertainty)
        ascending, wrong = uncertainty[order], np.cumsum(~is_right[order])
        broken, given = [], []
        for _ in range(samples):
            sample = [
                CalibrationRow(float(u), float(r))
                for u, r in zip(*answers(rng, n, right, informs), strict=True)
            ]
            count = int(
                np.searchsorted(ascending, calibrate_abstention(sample, max_risk=risk).threshold, "right")
            )
            broken.append(count > 0 and wrong[count - 1] / count > risk)
            given.append(count / len(ascending))
        yield [
            f"{100 * right:.0f} % right, uncertainty lower by {informs:g} σ; {100 * risk:.0f} % may be wrong",
            *(percent(values) for values in (broken, np.array(given) > 0, given)),
        ]


def threshold_rows(samples: int, rng: Rng, n: int) -> Iterator[list[str]]:
    """Yield how often a loss of two points is broken, how often one is certified, and what it saves."""

    def draw(size: int, repairs: float, spoils: float, informs: float) -> tuple[Floats, Floats, Floats]:
        kind = rng.choice(3, size=size, p=[repairs, spoils, 1 - repairs - spoils])
        right = rng.random(size) < 0.5
        uncertainty = rng.standard_normal(size) + informs * ((kind == 0) * 1.0 - (kind == 1))
        without, with_ = np.where(kind == 2, right, kind == 1), np.where(kind == 2, right, kind == 0)
        return uncertainty, without.astype(float), with_.astype(float)

    for repairs, spoils, informs in ((0.2, 0.1, 1.0), (0.2, 0.1, 0.0), (0.05, 0.03, 0.5)):
        uncertainty, without, with_ = draw(200_000, repairs, spoils, informs)
        broken, certified, skipped = [], [], []
        for _ in range(samples):
            rows = [
                CalibrationRow(float(row[0]), float(row[1]), float(row[2]))
                for row in zip(*draw(n, repairs, spoils, informs), strict=True)
            ]
            policy = calibrate_threshold(rows, max_loss=0.02)
            below = uncertainty <= policy.threshold
            broken.append(float(((with_ - without) * below).mean()) > 0.02)
            certified.append(policy.verdict != "infeasible")
            skipped.append(below.mean())
        yield [
            f"searching repairs {100 * repairs:.0f} %, spoils {100 * spoils:.0f} %, informs {informs:g} σ",
            *(percent(values) for values in (broken, certified, skipped)),
        ]


def print_requirements(samples: int, rng: Rng) -> None:
    """Print how often each form of requirement passes."""
    sizes = [f"n = {n}" for n in SIZES]
    rows = track(requirement_rows(samples, rng), "Requirements", total=len(REQUIREMENTS), console=console)
    title = f"Requirements that pass, % of {samples:,} samples (columns 2 to 5: just not met; 6 to 9: met)"
    print_table(title, ["requirement", *sizes, *sizes], list(rows))


def print_intervals(samples: int, rng: Rng) -> None:
    """Print how often intervals hold the true mean."""
    sizes = (20, 40, 60, 100)
    rows = track(coverage_rows(samples, rng, sizes), "Intervals", total=len(DIFFERENCES), console=console)
    title = f"Intervals of 95 % that hold the true mean, % of {samples:,} samples"
    print_table(title, ["differences", *(f"n = {n}" for n in sizes)], list(rows))


def print_abstention(samples: int, rng: Rng) -> None:
    """Print how often bounded risks are broken."""
    rows = track(abstention_rows(samples, rng, CALIBRATED), "Abstention", total=5, console=console)
    title = f"calibrate_abstention, n = {CALIBRATED}, % of {samples:,} samples"
    print_table(title, ["sample", "broken", "answers any", "answers"], list(rows))


def print_thresholds(samples: int, rng: Rng) -> None:
    """Print how often bounded losses are broken, of a tenth of the samples."""
    samples = max(samples // 10, 1)
    rows = track(threshold_rows(samples, rng, CALIBRATED), "Thresholds", total=3, console=console)
    title = f"calibrate_threshold, n = {CALIBRATED}, % of {samples:,} samples"
    print_table(title, ["sample", "broken", "certified", "not searched"], list(rows))


TABLES = {
    "requirements": print_requirements,
    "intervals": print_intervals,
    "abstention": print_abstention,
    "thresholds": print_thresholds,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="some of the tables; all by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples")
    parser.add_argument("--samples", type=int, default=1000, help="samples a row")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in arguments.tables or TABLES:
        started = time.monotonic()
        TABLES[name](arguments.samples, np.random.default_rng(arguments.seed))
        console.print(f"Seed {arguments.seed}; {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()
