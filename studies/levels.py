"""Simulations of the statistics: how often tests and intervals err, and tests find a difference.

    python -m studies.levels                    # all tables, in less than two minutes
    python -m studies.levels --samples 2000     # more samples a row
    python -m studies.levels shares groups      # some of the tables

Requirements are tested on samples whose true value equals the limit (at most 5 % of the samples may pass),
and on samples whose true value is better than the limit. Intervals of 95 % should contain the true value in
95 % of the samples. Calibrations are checked on the distribution from which their samples are drawn. The
questions of a document have a correlation of 0.2.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from studies.common import console, print_table, with_json, write_tables
from surerag.calibration import CalibrationRow, calibrate_abstention, calibrate_threshold
from surerag.evaluation.gate import parse_requirement, test_for
from surerag.evaluation.statistics import paired_p_value, questions_to_show
from surerag.measures import auroc
from surerag.measures.statistics import mean_interval, paired_difference

Floats = NDArray[np.float64]
Rng = np.random.Generator
Pairs = Callable[[Rng, int], tuple[Floats, Floats]]
LEVEL = 0.05
SIZES = (50, 100, 250, 500)
CALIBRATED = 250
"""Number of questions in a sample for a calibration."""
OF_DOCUMENT, CORRELATION = 5, 0.2


def percent(values: Any) -> str:
    """Return a mean in percent."""
    return f"{100 * np.mean(np.asarray(values, dtype=float)):.1f}"


def discordant(lost: float, gained: float, right: float = 0.7) -> Pairs:
    """Return pairs of right and wrong answers; systems differ in the shares ``lost`` and ``gained``."""

    def draw(rng: Rng, n: int) -> tuple[Floats, Floats]:
        kind = rng.choice(4, size=n, p=[lost, gained, right - lost, 1 - right - gained])
        return np.isin(kind, (1, 2)).astype(float), np.isin(kind, (0, 2)).astype(float)

    return draw


def graded(change: float, changed: float) -> Pairs:
    """Return pairs of graded scores; the share ``changed`` differs by ``change`` on average."""

    def draw(rng: Rng, n: int) -> tuple[Floats, Floats]:
        old = rng.uniform(0.4, 0.8, n)
        return old + (rng.random(n) < changed) * (change + rng.uniform(-0.2, 0.2, n)), old

    return draw


def costs(ratio: float, sigma: float) -> Pairs:
    """Return log-normal costs of two systems with this ratio of their medians."""

    def draw(rng: Rng, n: int) -> tuple[Floats, Floats]:
        return ratio * rng.lognormal(0, sigma, n), rng.lognormal(0, sigma, n)

    return draw


def stalls(often: float, usual: float) -> Pairs:
    """Return costs: a share ``often`` is 61, and the others are ``usual`` with a spread of 2 %."""

    def draw(rng: Rng, n: int) -> tuple[Floats, Floats]:
        values = np.where(rng.random(n) < often, 61.0, usual * (1 + 0.02 * rng.standard_normal(n)))
        return values, values

    return draw


def in_documents(rng: Rng, draw: Callable[[Rng, int], Any], n: int) -> Any:
    """Return values of n questions, shape [n, …], correlated within each document."""
    own, of_document = draw(rng, n), draw(rng, n)[documents(n)]
    common = rng.random(n) < math.sqrt(CORRELATION)
    return np.where(common.reshape(-1, *[1] * (own.ndim - 1)), of_document, own)


def _where(grouped: bool) -> str:
    return "; five questions a document" if grouped else ""


def documents(n: int) -> NDArray[np.intp]:
    """Return the document of each question."""
    return np.arange(n) // OF_DOCUMENT


REQUIREMENTS: Sequence[tuple[str, Pairs, Pairs]] = (
    ("accuracy(a) >= accuracy(b) - 0.05", discordant(0.1, 0.05), discordant(0.05, 0.05)),
    ("accuracy(a) >= accuracy(b) + 0.02", discordant(0.04, 0.06), discordant(0.02, 0.12)),
    ("accuracy(a) >= 0.95 * accuracy(b)", discordant(0.06, 0.025), discordant(0.03, 0.03)),
    ("accuracy(a) >= 0.7", discordant(0.1, 0.1), discordant(0.0, 0.1)),
    ("f1(a) >= f1(b) - 0.05", graded(-0.2, 0.25), graded(0.0, 0.25)),
    ("f1(a) >= 0.95 * f1(b)", graded(-0.12, 0.25), graded(0.0, 0.25)),
    ("tokens(a) <= 0.8 * tokens(b) in 50 % of questions", costs(0.8, 1.0), costs(0.4, 1.0)),
    ("tokens(a) <= 1.5 in 98 % of questions", stalls(0.02, 1.0), stalls(0.001, 1.0)),
    ("tokens(a) <= 2.2 capped at 61", stalls(0.02, 1.0), stalls(0.001, 1.0)),
)


def passes(text: str, draw: Pairs, rng: Rng, n: int, grouped: bool) -> bool:
    """Return True if a requirement passes on one sample of pairs."""
    requirement = parse_requirement(text)
    a, b = in_documents(rng, lambda g, n: np.stack(draw(g, n), axis=1), n).T if grouped else draw(rng, n)
    test, bound = test_for(requirement, a, b, documents(n) if grouped else None, 1 - LEVEL)
    below = requirement.at_most and requirement.share is None
    return (test.shows_below if below else test.shows_above)(bound) <= LEVEL


def requirement_rows(samples: int, rng: Rng) -> Iterator[list[str]]:
    """Yield how often each requirement passes if the true value equals the limit, and if it is better."""
    for text, edge, better in REQUIREMENTS:
        for grouped in (False, True):
            cells = [
                percent([passes(text, draw, rng, n, grouped) for _ in range(samples)])
                for draw in (edge, better)
                for n in SIZES
            ]
            yield [f"`{text}`{_where(grouped)}", *cells]


DIFFERENCES: Sequence[tuple[str, float, tuple[float, float] | None, Callable[[Rng, int], Floats]]] = (
    (
        "right or wrong answers; the systems differ in 15 % of the questions",
        -0.05,
        (-1, 1),
        lambda g, n: g.choice([1.0, -1, 0], n, p=[0.05, 0.1, 0.85]),
    ),
    (
        "right or wrong answers; the systems differ in 4 % of the questions",
        0.0,
        (-1, 1),
        lambda g, n: g.choice([1.0, -1, 0], n, p=[0.02, 0.02, 0.96]),
    ),
    (
        "right or wrong answers; the systems differ in half of the questions",
        0.1,
        (-1, 1),
        lambda g, n: g.choice([1.0, -1, 0], n, p=[0.3, 0.2, 0.5]),
    ),
    (
        "graded scores; the systems differ in 15 % of the questions",
        0.0375,
        (-1, 1),
        lambda g, n: (g.random(n) < 0.15) * g.uniform(-0.5, 1, n),
    ),
    (
        "graded scores; the systems differ in all questions",
        0.1,
        (-1, 1),
        lambda g, n: np.clip(g.normal(0.1, 0.2, n), -1, 1),
    ),
    ("costs; exponential distribution", 1.0, None, lambda g, n: g.exponential(1, n)),
    ("costs; log-normal distribution, σ = 1", math.exp(0.5), None, lambda g, n: g.lognormal(0, 1, n)),
)


def coverage_rows(samples: int, rng: Rng, sizes: Sequence[int]) -> Iterator[list[str]]:
    """Yield, for each kind of difference, how often its interval contains the true mean."""
    for name, mean, bounds, draw in DIFFERENCES:
        cells = []
        for n in sizes:
            intervals = [
                paired_difference(draw(rng, n), np.zeros(n), bounds=bounds).interval for _ in range(samples)
            ]
            cells.append(percent([i is not None and i[0] <= mean <= i[1] for i in intervals]))
        yield [name, *cells]


def share_rows(sizes: Sequence[int]) -> Iterator[list[str]]:
    """Yield how often the interval of a share contains the true share, computed exactly.

    The last two cells are the mean over all true shares and the lowest value.
    """
    with np.errstate(divide="ignore"):
        log_factorials = np.append(0, np.cumsum(np.log(np.arange(1, max(sizes) + 1))))
    shares = np.linspace(0.001, 0.999, 999)
    for n in sizes:
        counts = np.arange(n + 1)
        ends = np.array([mean_interval([1.0] * k + [0.0] * (n - k)).interval for k in counts])
        ways = (log_factorials[n] - log_factorials[counts] - log_factorials[n - counts])[:, None]
        chances = np.exp(ways + counts[:, None] * np.log(shares) + (n - counts)[:, None] * np.log1p(-shares))
        holds = (ends[:, :1] - 1e-12 <= shares) & (shares <= ends[:, 1:] + 1e-12)
        covers = (chances * holds).sum(axis=0)
        cells = [percent(covers[np.abs(shares - share).argmin()]) for share in SHARES]
        yield [
            f"n = {n}",
            *cells,
            percent(covers.mean()),
            f"{percent(covers.min())} (true share {100 * shares[covers.argmin()]:.1f} %)",
        ]


AREA = NormalDist().cdf(math.sqrt(0.5))
"""AUROC of an uncertainty that is lower by one standard deviation for right answers."""
SHARES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
SKEWED: Sequence[tuple[str, float, tuple[float, float] | None, Callable[[Rng, int], Floats]]] = (
    ("scores from 0 to 1, mostly near 0", 0.2 / 2.2, (0, 1), lambda g, n: g.beta(0.2, 2, n)),
    (
        "scores; 95 % are 1, and 5 % are 0.5",
        0.975,
        (0, 1),
        lambda g, n: np.where(g.random(n) < 0.05, 0.5, 1.0),
    ),
    (
        "scores; 97 % are 0, and 3 % are 0.67",
        0.0201,
        (0, 1),
        lambda g, n: np.where(g.random(n) < 0.03, 0.67, 0.0),
    ),
    ("costs; exponential distribution", 1.0, None, lambda g, n: g.exponential(1, n)),
    ("costs; log-normal distribution, σ = 1", math.exp(0.5), None, lambda g, n: g.lognormal(0, 1, n)),
    (
        "costs; 98 % are about 1, and 2 % are 61",
        2.2,
        None,
        lambda g, n: stalls(0.02, 1.0)(g, n)[0],
    ),
)


def skewed_rows(samples: int, rng: Rng, sizes: Sequence[int]) -> Iterator[list[str]]:
    """Yield how often the interval of a mean of skewed values contains the true mean."""
    for name, mean, bounds, draw in SKEWED:
        cells = []
        for n in sizes:
            intervals = [mean_interval(draw(rng, n), bounds=bounds).interval for _ in range(samples)]
            cells.append(percent([i is not None and i[0] <= mean <= i[1] for i in intervals]))
        yield [name, *cells]


GROUPED: Sequence[tuple[str, float, tuple[float, float], Callable[[Rng, int], Floats]]] = (
    *(
        (
            f"share of right answers; the true share is {100 * p:g} %",
            p,
            (0, 1),
            lambda g, n, p=p: (g.random(n) < p) * 1.0,
        )
        for p in (0.5, 0.8, 0.95)
    ),
    *(
        (f"difference between two systems; {name}", mean, bounds, draw)
        for name, mean, bounds, draw in DIFFERENCES[:5]
        if bounds
    ),
)


def grouped_rows(samples: int, rng: Rng) -> Iterator[list[str]]:
    """Yield how often intervals contain the true value, with and without regard to documents."""
    for name, mean, bounds, draw in GROUPED:
        cells = []
        for n in (50, 200):
            held = np.zeros(2)
            for _ in range(samples):
                values = in_documents(rng, draw, n)
                both = (mean_interval(values, one, bounds=bounds).interval for one in (documents(n), None))
                held += [i is not None and i.lower <= mean <= i.upper for i in both]
            cells += [percent(one / samples) for one in held]
        yield [name, *cells]
    cells = []
    for n in (50, 200):
        held = np.zeros(2)
        for _ in range(samples):
            uncertainty, right = in_documents(
                rng, lambda g, n: np.stack(answers(g, n, 0.7, 1.0), axis=1), n
            ).T
            areas = [auroc(uncertainty, right, one) for one in (documents(n), None)]
            held += [a is None or a.interval is None or a.interval[0] <= AREA <= a.interval[1] for a in areas]
        cells += [percent(one / samples) for one in held]
    yield [f"AUROC; the true AUROC is {AREA:.2f}", *cells]


COMPARED = (1, 3, 6)
"""Numbers of systems that are compared with the baseline; Holm's method adjusts for them."""


def power_rows(samples: int, rng: Rng) -> Iterator[list[str]]:
    """Yield how often a test finds a difference with the recommended number of questions."""
    for wins, losses in ((0.1, 0.05), (0.05, 0.02), (0.3, 0.1), (0.06, 0.01)):
        cells = []
        for tests in COMPARED:
            kinds = np.repeat(
                [0, 1, 2], np.round(np.array([wins, losses, 1 - wins - losses]) * 100).astype(int)
            )
            n = questions_to_show((kinds == 0) * 1.0, (kinds == 1) * 1.0, tests=tests) or 0
            draws = rng.choice(3, size=(samples, n), p=[wins, losses, 1 - wins - losses])
            shown = [paired_p_value(one == 0, one == 1) <= LEVEL / tests for one in draws]
            cells += [f"{n:,}", percent(shown)]
        yield [
            f"one system is better in {100 * wins:g} % of the questions, worse in {100 * losses:g} %",
            *cells,
        ]


def answers(
    rng: Rng, n: int, right: float, informs: float, grouped: bool = False
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return uncertainties and right answers; uncertainty is ``informs`` deviations lower for right ones."""

    def is_right_of(rng: Rng, n: int) -> NDArray[np.bool_]:
        return rng.random(n) < right

    is_right = in_documents(rng, is_right_of, n) if grouped else is_right_of(rng, n)
    return rng.standard_normal(n) - informs * is_right, is_right


ABSTENTIONS = (
    (0.6, 2, 0.1, False),
    (0.8, 1, 0.1, False),
    (0.6, 0, 0.1, False),
    (0.9, 0.3, 0.2, False),
    (0.6, 2, 0.2, False),
    (0.6, 2, 0.2, True),
    (0.6, 2, 0.1, True),
)


def abstention_rows(samples: int, rng: Rng, n: int) -> Iterator[list[str]]:
    """Yield how often the limit is exceeded, how often an answer is shown, and the share of shown answers."""
    for right, informs, risk, grouped in ABSTENTIONS:
        name = (
            f"limit: {100 * risk:.0f} % of the shown answers wrong; model: {100 * right:.0f} % of all "
            f"answers right, mean uncertainty of right answers "
            f"{f'{informs:g} σ below' if informs else 'equal to'} mean uncertainty of wrong answers"
        )
        uncertainty, is_right = answers(rng, 200_000, right, informs)
        order = np.argsort(uncertainty)
        ascending, wrong = uncertainty[order], np.cumsum(~is_right[order])
        broken, given = [], []
        for _ in range(samples):
            sample = [
                CalibrationRow(float(u), float(r), group=f"{i // OF_DOCUMENT}" if grouped else "")
                for i, (u, r) in enumerate(zip(*answers(rng, n, right, informs, grouped), strict=True))
            ]
            count = int(
                np.searchsorted(ascending, calibrate_abstention(sample, max_risk=risk).threshold, "right")
            )
            broken.append(count > 0 and wrong[count - 1] / count > risk)
            given.append(count / len(ascending))
        yield [
            f"{name}{_where(grouped)}",
            *(percent(values) for values in (broken, np.array(given) > 0, given)),
        ]


THRESHOLDS = (
    (0.2, 0.1, 1.0, False),
    (0.2, 0.1, 0.0, False),
    (0.05, 0.03, 0.5, False),
    (0.05, 0.03, 0.5, True),
)


def threshold_rows(samples: int, rng: Rng, n: int) -> Iterator[list[str]]:
    """Yield how often the limit is exceeded, how often a threshold is certified, and the saved searches."""

    def draw(
        size: int, repairs: float, spoils: float, informs: float, grouped: bool = False
    ) -> tuple[Floats, Floats, Floats]:
        def kind_of(rng: Rng, n: int) -> NDArray[np.intp]:
            return rng.choice(3, size=n, p=[repairs, spoils, 1 - repairs - spoils])

        kind = in_documents(rng, kind_of, size) if grouped else kind_of(rng, size)
        right = rng.random(size) < 0.5
        uncertainty = rng.standard_normal(size) + informs * ((kind == 0) * 1.0 - (kind == 1))
        without, with_ = np.where(kind == 2, right, kind == 1), np.where(kind == 2, right, kind == 0)
        return uncertainty, without.astype(float), with_.astype(float)

    for repairs, spoils, informs, grouped in THRESHOLDS:
        higher = (
            f"mean uncertainty of repaired answers {informs:g} σ higher than of unchanged answers, "
            f"mean uncertainty of spoiled answers {informs:g} σ lower than of unchanged answers"
        )
        name = (
            f"a search repairs {100 * repairs:.0f} % and spoils {100 * spoils:.0f} % of the first answers; "
            f"{higher if informs else 'mean uncertainty equal for repaired, spoiled and unchanged answers'}"
        )
        uncertainty, without, with_ = draw(200_000, repairs, spoils, informs)
        broken, certified, skipped = [], [], []
        for _ in range(samples):
            rows = [
                CalibrationRow(float(u), float(a), float(b), group=f"{i // OF_DOCUMENT}" if grouped else "")
                for i, (u, a, b) in enumerate(zip(*draw(n, repairs, spoils, informs, grouped), strict=True))
            ]
            policy = calibrate_threshold(rows, max_loss=0.02)
            below = uncertainty <= policy.threshold
            broken.append(float(((with_ - without) * below).mean()) > 0.02)
            certified.append(policy.verdict != "infeasible")
            skipped.append(below.mean())
        yield [
            f"{name}{_where(grouped)}",
            *(percent(values) for values in (broken, certified, skipped)),
        ]


Table = tuple[str, Sequence[str], Callable[[int, Rng], Iterator[list[str]]]]
_FEW = (20, 40, 60, 100)
TABLES: Mapping[str, Table] = {
    "requirements": (
        "Requirements that pass, % of four times as many samples",
        [
            "requirement",
            *(
                f"{truth}, n = {n}"
                for truth in ("true value at the limit", "true value better than the limit")
                for n in SIZES
            ),
        ],
        lambda samples, rng: requirement_rows(4 * samples, rng),
    ),
    "intervals": (
        "Intervals of 95 % of paired differences that contain the true mean, %",
        ["differences", *(f"n = {n}" for n in _FEW)],
        lambda samples, rng: coverage_rows(samples, rng, _FEW),
    ),
    "shares": (
        "Intervals of 95 % of a share that contain the true share, %; exact",
        [
            "questions",
            *(f"true share {100 * share:g} %" for share in SHARES),
            "mean over all true shares",
            "lowest over all true shares",
        ],
        lambda _, __: share_rows((10, 20, 40, 100, 200)),
    ),
    "skewed": (
        "Intervals of 95 % of means of skewed values that contain the true mean, %",
        ["values", *(f"n = {n}" for n in _FEW)],
        lambda samples, rng: skewed_rows(samples, rng, _FEW),
    ),
    "groups": (
        "Intervals of 95 % of questions in documents that contain the true value, %",
        [
            "values",
            *(
                f"n = {n}{ignored}"
                for n in (50, 200)
                for ignored in ("", ", questions treated as independent")
            ),
        ],
        grouped_rows,
    ),
    "power": (
        "How often a test finds a difference with the recommended number of questions, %",
        [
            "right answers",
            *(
                f"{n} system{'s' * (n > 1)} compared: {what}"
                for n in COMPARED
                for what in ("recommended number of questions", "difference found, %")
            ),
        ],
        power_rows,
    ),
    "abstention": (
        f"calibrate_abstention, n = {CALIBRATED}, % of a quarter of the samples",
        [
            "sample",
            "limit exceeded, % of the samples",
            "at least one answer shown, % of the samples",
            "shown answers, % of all answers",
        ],
        lambda samples, rng: abstention_rows(max(samples // 4, 1), rng, CALIBRATED),
    ),
    "thresholds": (
        f"calibrate_threshold, n = {CALIBRATED}, at most two points lost, % of a quarter of the samples",
        [
            "sample",
            "limit exceeded, % of the samples",
            "threshold certified, % of the samples",
            "searches saved, % of the questions",
        ],
        lambda samples, rng: threshold_rows(max(samples // 4, 1), rng, CALIBRATED),
    ),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="tables to print; all by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples")
    parser.add_argument("--samples", type=int, default=400, help="samples for each row")
    arguments = with_json(parser).parse_args()
    warnings.simplefilter("ignore")
    for name in arguments.tables or TABLES:
        started = time.monotonic()
        title, columns, rows = TABLES[name]
        found = rows(arguments.samples, np.random.default_rng(arguments.seed))
        print_table(title, columns, list(track(found, name, console=console)), name=name)
        seconds = time.monotonic() - started
        console.print(f"{arguments.samples:,} samples a row, seed {arguments.seed}; {seconds:.0f} s.\n")
    write_tables(arguments)


if __name__ == "__main__":
    main()
