"""What there is to learn from, and what of it is held back."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from surerag.errors import InputError
from surerag.training.rewriter.options import FineTuning

_FEW = 20
"""Of fewer queries, none is held back."""

logger = logging.getLogger("surerag")


class Material(NamedTuple):
    """What there is to learn from: token ids.

    Attributes:
        rows: To learn from.
        held_back: To choose a checkpoint by.
    """

    rows: list[dict[str, Any]]
    held_back: list[dict[str, Any]]


def material_of(
    rows: Sequence[dict[str, Any]],
    lengths: Sequence[int],
    queries: Sequence[str],
    settings: FineTuning,
    window: int | None,
) -> Material:
    """Leave out rows that are too long, and hold back some, drawn at random; those of a query stay together.

    Args:
        rows: All of them.
        lengths: Their tokens.
        queries: Whose they are.
        settings: Say how many, how long, and the seed.
        window: Tokens that the base reads; None if it does not say.

    Raises:
        InputError: If none is left.
    """
    longest = min(settings.max_tokens, window or settings.max_tokens)
    fitting = [(row, q) for row, n, q in zip(rows, lengths, queries, strict=True) if n <= longest]
    if not fitting:
        raise InputError(
            f"all of {len(rows)} examples are longer than {longest} tokens",
            hint="raise max_tokens, or give shorter queries",
        )
    if left_out := len(rows) - len(fitting):
        logger.warning("%d of %d examples are longer than %d tokens", left_out, len(rows), longest)
    drawn = sorted({query for _, query in fitting}, key=lambda query: _drawn(settings.seed, query))
    held = drawn[: round(settings.validation * len(drawn))] if len(drawn) >= _FEW else []
    out = set(held)
    # One row a query, its first: further ones are no evidence of their own.
    first = {query: row for row, query in reversed(fitting)}
    return Material([row for row, query in fitting if query not in out], [first[query] for query in held])


def _drawn(seed: int, text: str) -> bytes:
    return hashlib.blake2b(f"{seed}\x1f{text}".encode("utf-8", "backslashreplace"), digest_size=8).digest()
