"""Answers of services inside a method, checked: judgements of an entailer, vectors of an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.effects import ENTAILMENT, Program, TextKind, embed, entail
from surerag.errors import ServiceError
from surerag.messages import Pair
from surerag.services import checked_vectors

MAX_UNUSABLE = 0.1
"""Share of judgements that may be unusable; above it, what is made of them would be no measurement."""

Row = NDArray[np.float64]


class Judgements(NamedTuple):
    """Probabilities of contradiction, neutral and entailment by (premise, hypothesis).

    A row is zeros where the entailer's reply could not be used, as are ``unusable`` of them.
    """

    rows: Mapping[tuple[str, str], Row]
    unusable: int = 0

    def entails(self, premise: str, hypothesis: str) -> bool:
        """Whether entailment is the likeliest label; of a tie, and of an unusable reply, it is not."""
        return bool(self.rows[premise, hypothesis].argmax() == ENTAILMENT)

    def equivalent(self, first: str, second: str) -> bool:
        """Whether two statements entail each other; an empty one is equivalent to an empty one only."""
        if first == second or not first or not second:
            return first == second
        return self.entails(first, second) and self.entails(second, first)


def judge(pairs: Sequence[Pair]) -> Program[Judgements]:
    """Ask the entailer about pairs.

    Raises:
        ServiceError: If it returns something other than three probabilities a pair, or cannot be used in more
            than a tenth of all pairs.
    """
    if not pairs:
        return Judgements({})
    rows = np.asarray((yield from entail(pairs)), dtype=np.float64)
    if rows.shape != (len(pairs), 3) or not np.isfinite(rows).all():
        raise ServiceError(
            f"expected {len(pairs)} rows of three probabilities, got an array of shape {rows.shape}",
            hint="let the entailer return contradiction, neutral and entailment for each pair",
        )
    unusable = int((rows.sum(axis=1) == 0).sum())
    if unusable > MAX_UNUSABLE * len(pairs):
        raise ServiceError(
            f"{unusable} of {len(pairs)} replies of the entailer name no single one of entailment, "
            "contradiction and neutral, so that nothing can be measured by them",
            hint="judge with NLIEntailer.from_pretrained(…), or with a larger model in JudgeEntailer(reader)",
        )
    by_pair = {(pair.premise, pair.hypothesis): row for pair, row in zip(pairs, rows, strict=True)}
    return Judgements(by_pair, unusable)


def embed_unit(texts: Sequence[str], kind: TextKind) -> Program[NDArray[np.float64]]:
    """Ask the encoder for vectors of length 1, one for each text, or raise ServiceError."""
    return unit_vectors((yield from embed(texts, kind)), len(texts))


def unit_vectors(rows: Any, count: int) -> NDArray[np.float64]:
    """Return so many vectors, scaled to length 1, or raise ServiceError; zero vectors stay."""
    vectors = checked_vectors(rows, count, np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float64] = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return unit
