"""Questions of the first two stages to their models, query by query."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from surerag.effects import Program, embed, generate
from surerag.errors import ContextLengthError, InputError, ServiceError
from surerag.measures.answers import normalize_answer
from surerag.methods.dynqr.algorithm import Asking
from surerag.methods.dynqr.options import DynQROptions
from surerag.methods.dynqr.result import Attempt, RewriteCosts, finite
from surerag.methods.dynqr.rewrites import read_rewrite
from surerag.training.rewriter.options import OnFailure
from surerag.training.rewriter.queries import Query
from surerag.types import Generation, Passage, Sampling

T = TypeVar("T")
logger = logging.getLogger("surerag")
IsCorrect = Callable[[str, Sequence[str]], bool]
"""Whether an answer matches one of the gold answers."""


class Tried(NamedTuple):
    """One query's rewrites as plain values, a row for each distinct one, and what they cost."""

    rows: list[dict[str, Any]]
    costs: RewriteCosts


def write_rewrites(query: Query, prompt: str, sampling: Sampling) -> Program[list[Generation]]:
    """Ask a rewriter (or a teacher) for rewrites of a query."""
    [replies] = yield from generate([prompt], sampling)
    return replies


def try_rewrites(
    query: Query,
    replies: Sequence[Generation],
    method: DynQROptions,
    with_uncertainty: bool,
    with_relevance: bool,
) -> Program[Tried]:
    """Retrieve with each distinct rewrite, answer the query from that, and measure (DynQR, Eq. 2 and 3).

    A rewrite that says the same as the query is tried like any other. One that is empty or was cut off is
    written down, and not tried. What depends on gold answers is left to :func:`judged`.
    """
    rows: dict[str, dict[str, Any]] = {}
    for place, reply in enumerate(replies):
        rewrite = read_rewrite(reply, query.text, method.rewrite_words)
        row = rows.setdefault(
            rewrite.text, {"sample": place, "times": 0, "rewrite": rewrite.text, "trouble": rewrite.trouble}
        )
        row["times"] += 1
    usable = [text for text, row in rows.items() if row["trouble"] in (None, "unchanged")]
    asking = Asking(query.text, method)
    contexts: dict[str, Sequence[Passage]] = {}
    for text in usable:
        contexts[text] = yield from asking.retrieve(text)
    answer = asking.answer if with_uncertainty else asking.answer_in_text
    attempts = (yield from answer(contexts)) if contexts else []
    for attempt in attempts:
        rows[attempt.query].update(_measured(attempt))
        if not with_uncertainty:
            del rows[attempt.query]["uncertainty"]
        if with_relevance:
            relevance = yield from _relevance(query.text, attempt.passages)
            rows[attempt.query]["relevance"] = relevance
    return Tried(list(rows.values()), _with_rewrites(asking.costs, replies))


def judged(tried: Tried, query: Query, is_correct: IsCorrect) -> list[dict[str, Any]]:
    """Return rows as they are written: whose they are, and what gold answers say of them.

    Nobody is asked for that: with other gold answers, the same rows are judged anew.
    """
    whose = {"query_id": query.id, "query": query.text, "golds": list(query.golds)}
    found = []
    for row in tried.rows:
        kept = {**whose, **row}
        texts = kept.pop("texts", None)
        if texts is not None:
            kept["correct"] = bool(is_correct(row["answer"], query.golds)) if query.golds else None
            kept["found"] = contains_answer(texts, query.golds) if query.golds else None
        if "uncertainty" in row and row["uncertainty"] is None:
            # An answer without a word is infinitely uncertain; the journal could not say so.
            kept["uncertainty"] = math.inf
        found.append(kept)
    return found


def contains_answer(texts: Sequence[str], golds: Sequence[str]) -> bool:
    """Whether some passage's text contains a gold answer, word for word after normalisation (RetPO's reward).

    Example:
        >>> contains_answer(["Ada was born in the Velm."], ["Orun", "velm"])
        True
        >>> contains_answer(["Velma was born."], ["Velm"])
        False
    """
    wanted = [gold for gold in map(normalize_answer, golds) if gold]
    plain = [f" {normalize_answer(text)} " for text in texts]
    return any(f" {gold} " in text for gold in wanted for text in plain)


def _measured(attempt: Attempt) -> dict[str, Any]:
    return {
        "texts": [passage.text for passage in attempt.passages],
        "passages": [passage.id or passage.text for passage in attempt.passages],
        "answer": attempt.answer,
        # JSON knows no infinity: an answer without a word has an uncertainty of null in the journal.
        "uncertainty": finite(attempt.uncertainty),
    }


def _relevance(query: str, passages: Sequence[Passage]) -> Program[float]:
    """Mean inner product of the query with what was retrieved; 0 for nothing (the frame of RaFe)."""
    if not passages:
        return 0.0
    [asked] = yield from embed([query], "query")
    found = yield from embed([passage.text for passage in passages], "document")
    return float(np.mean(found.astype(np.float64) @ asked.astype(np.float64)))


def _with_rewrites(costs: RewriteCosts, replies: Sequence[Generation]) -> RewriteCosts:
    written = RewriteCosts(
        rewrites=len(replies),
        prompt_tokens=replies[0].prompt_tokens if replies else 0,
        completion_tokens=sum(reply.completion_tokens for reply in replies),
    )
    return total([costs, written])


def total(costs: Sequence[RewriteCosts]) -> RewriteCosts:
    """Add costs up.

    Example:
        >>> total([RewriteCosts(answers=2), RewriteCosts(answers=1, rewrites=4)]).calls
        7
    """
    names = RewriteCosts.__slots__
    return RewriteCosts(**{name: sum(getattr(cost, name) for cost in costs) for name in names})


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Cut a sequence into pieces."""
    return (items[start : start + size] for start in range(0, len(items), size))


def key_of(*asked: Any) -> str:
    """Return the digest of what was asked: plain values."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode("ascii")).hexdigest()[:32]


def is_hopeless(failure: BaseException) -> bool:
    """Whether asking again would fail again: the query itself does not fit, and costs only itself."""
    return isinstance(failure, ContextLengthError | InputError)


def check_failures(failures: Sequence[BaseException], asked: int, done: str, on_failure: OnFailure) -> None:
    """Say that queries failed, after all others were asked; what cannot succeed is only left out.

    Raises:
        ServiceError: If asking again may help, or nothing else was done.
    """
    hopeless = [failure for failure in failures if is_hopeless(failure)]
    if hopeless and len(hopeless) < asked:
        logger.warning(
            "%d of %d queries do not fit and were left out, the first because: %s",
            len(hopeless),
            asked,
            hopeless[0],
        )
    passing = [failure for failure in failures if not is_hopeless(failure)]
    if len(failures) == asked or (passing and on_failure == "raise"):
        first = (passing or failures)[0]
        raise ServiceError(
            f"{len(passing or failures)} of {asked} queries could not be {done}, the first because: {first}",
            hint="run the same again: what was answered is kept, and only these are asked; "
            "or go on without them with --skip-failures (on_failure='skip')",
        ) from first
