"""The study of the regimes: the reader's records in each, beside those of a real reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from surerag.drivers.progress import Stages
from surerag.readers.protocol import Reader
from surerag.services import Encoder
from surerag.world.regimes import REGIMES, TODAY
from surerag_studies.claims import Claim
from surerag_studies.regimes.measuring import Figures, figures_of
from surerag_studies.regimes.real import REAL
from surerag_studies.regimes.rows import regime_rows

DOUBT = "perplexity"
"""The uncertainty that a real reader's records hold, too."""


class Range(NamedTuple):
    """From where to where a real reader's figure lies."""

    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Tell whether a figure lies in it."""
        return self.low <= value <= self.high


WRONG = Range(0.6, 0.8)
HURTS = Range(0.06, 0.12)
BENEFIT = Range(0.4, 0.65)


@dataclass(frozen=True, slots=True)
class RegimesStudy:
    """Everything that was found, with what it takes to find it again.

    Attributes:
        seed: Of every world.
        n: Questions of each.
        model: Identity of the reader.
        encoder: Identity of the model behind both indices.
        worlds: Today's world, and each regime.
        real: A real reader's figures.
        claims: Whether each regime's figures lie where a real reader's do.
    """

    seed: int
    n: int
    model: str
    encoder: str
    worlds: tuple[Figures, ...]
    real: tuple[Figures, ...]
    claims: tuple[Claim, ...]


def regimes_study(
    reader: Reader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    names: Sequence[str] = (TODAY.name, *REGIMES),
    cache: Path | None = None,
    stages: Stages = lambda _: False,
) -> RegimesStudy:
    """Ask one world of each regime, without and with retrieval.

    Args:
        reader: Reports entropies and log-probabilities.
        encoder: Behind both tiers.
        seed: Seed of the worlds, one that no share was chosen on (101 to 104, and 9301).
        n: Questions of each world.
        names: Of regimes.
        cache: A folder in which answers are kept.
        stages: Told how far each pass is.

    Raises:
        ConfigurationError: If there is no such regime.
    """
    found = []
    for name in names:
        rows = regime_rows(name, n, seed, reader=reader, encoder=encoder, cache=cache, stages=stages)
        found.append(figures_of(name, rows, DOUBT))
    claims = tuple(like_real(one) for one in found if one.name != TODAY.name)
    return RegimesStudy(seed, n, reader.name, encoder.name, tuple(found), REAL, claims)


def like_real(found: Figures) -> Claim:
    """Judge whether the figures of a regime lie where a real reader's do."""
    wrong = None if found.wrong is None else found.wrong.value
    benefit = None if found.benefit is None else found.benefit.value
    hurts = found.hurts.value
    if wrong is None or benefit is None:
        return Claim(_statement(found.name), "nothing to tell apart", holds=False)
    return Claim(
        _statement(found.name),
        f"{wrong:.3f}, {100 * hurts:.1f} %, {benefit:.3f}",
        WRONG.holds(wrong) and HURTS.holds(hurts) and BENEFIT.holds(benefit),
    )


def _statement(name: str) -> str:
    return (
        f"{name}: AUROC for wrong answers {WRONG.low:g} to {WRONG.high:g}, retrieval hurts "
        f"{100 * HURTS.low:g} to {100 * HURTS.high:g} %, AUROC for benefit {BENEFIT.low:g} to "
        f"{BENEFIT.high:g}"
    )
