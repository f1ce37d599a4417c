"""Whether training worked: every rewriter on queries that none of them learnt from, paired."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from surerag.errors import InputError
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.measures import exact_match
from surerag.readers.protocol import BaseReader, Capabilities, Reader
from surerag.services import Retriever
from surerag.training.rewriter.asking import IsCorrect
from surerag.training.rewriter.options import SampleOptions
from surerag.training.rewriter.queries import Query, as_queries
from surerag.training.rewriter.results import StageProgress
from surerag.training.rewriter.sampling import sample
from surerag.training.rewriter.tables import queries_of
from surerag.types import Generation, Prompt, Sampling, as_messages

AS_ASKED = "as asked"
_USABLE = (None, "unchanged")


class Outcome(NamedTuple):
    """What came of one query; None where it was not measured.

    Attributes:
        uncertainty: Of the answer; the logarithm, where the metric is a perplexity.
        correct: Whether it is right.
        found: Whether the passages contain a gold answer.
        words: Of the query that was searched with.
        rewritten: Whether that was another than was asked.
    """

    uncertainty: float | None
    correct: bool | None
    found: bool | None
    words: int
    rewritten: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """A rewriter on all held-out queries.

    Attributes:
        name: How it is called.
        outcomes: One a query, in the same order for all.
    """

    name: str
    outcomes: tuple[Outcome, ...]

    def mean(self, what: str) -> float | None:
        """Return the mean of a field over the queries where it was measured; None if it never was."""
        values = [float(value) for one in self.outcomes if (value := getattr(one, what)) is not None]
        return sum(values) / len(values) if values else None

    def against(self, other: Measured, what: str) -> PairedDifference | None:
        """Compare with another rewriter on the queries where both were measured; None if there is none."""
        pairs = [
            (float(mine), float(its))
            for one, two in zip(self.outcomes, other.outcomes, strict=True)
            if (mine := getattr(one, what)) is not None and (its := getattr(two, what)) is not None
        ]
        if not pairs:
            return None
        return paired_difference([mine for mine, _ in pairs], [its for _, its in pairs])


@dataclass(frozen=True, slots=True)
class HeldOut:
    """All rewriters, each compared with the one before it.

    Attributes:
        measured: The query as it was asked, then the rewriters in the order in which they were made.
        metric: The uncertainty, in words.
    """

    measured: tuple[Measured, ...]
    metric: str

    @property
    def n(self) -> int:
        """Held-out queries."""
        return len(self.measured[0].outcomes)

    def lines(self) -> list[list[str]]:
        """Return a table: a heading, then a row a rewriter; changes with their 95 % interval."""
        found = [["", self.metric, "change", "right", "change", "found", "words", "rewritten"]]
        for before, one in zip((None, *self.measured), self.measured, strict=False):
            found.append(
                [
                    one.name,
                    _number(one.mean("uncertainty")),
                    _change(one, before, "uncertainty", 1),
                    _percent(one.mean("correct")),
                    _change(one, before, "correct", 100),
                    _percent(one.mean("found")),
                    _number(one.mean("words")),
                    _percent(one.mean("rewritten")),
                ]
            )
        return found

    def __str__(self) -> str:
        """Tell the table as Markdown."""
        rows = [f"| {' | '.join(line)} |" for line in self.lines()]
        rule = "|---|" + "---:|" * (len(self.lines()[0]) - 1)
        note = f"{self.n:,} held-out queries; changes are paired, against the row above, with 95 % intervals."
        return "\n".join([rows[0], rule, *rows[1:], "", note])


def measure(
    queries: Sequence[Query],
    rewriters: Mapping[str, Reader | str | Path],
    reader: Reader,
    retriever: Retriever,
    output: str | Path,
    options: SampleOptions | None = None,
    *,
    is_correct: IsCorrect = exact_match,
    corpus: str = "",
    progress: StageProgress = False,
) -> HeldOut:
    """Rewrite held-out queries once with each rewriter, search, answer and measure.

    A reply that is no rewrite leaves its query as it is, as in use. What is done is kept in ``output``.

    Args:
        queries: That nobody learnt from.
        rewriters: By name, in the order in which they were made.
        reader: Answers.
        retriever: Finds passages.
        output: Folder for everything.
        options: As in sampling; one rewrite is written, greedily.
        is_correct: Whether an answer matches one of the gold answers.
        corpus: What the retriever searches, in words that change with it.
        progress: How far it is.

    Raises:
        InputError: If there is no query.
    """
    options = replace(options or SampleOptions(), rewrites=1, temperature=0.0, top_p=1.0)
    asked = as_queries(queries)
    if not rewriters:
        raise InputError("there is no rewriter to measure", hint="name at least one")
    everyone: dict[str, Reader | str | Path] = {AS_ASKED: _AsAsked(asked, options), **rewriters}
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for name, rewriter in everyone.items():
        done = sample(
            asked,
            rewriter,
            reader,
            retriever,
            Path(output) / name.replace(" ", "-"),
            options,
            is_correct=is_correct,
            corpus=corpus,
            on_change="reuse",
            progress=progress,
        )
        rows[name] = {group[0]["query"]: group[0] for group in queries_of(done.samples, "samples")}
    common = [query.text for query in asked if all(query.text in found for found in rows.values())]
    logarithm = options.metric == "perplexity"
    measured = tuple(
        Measured(name, tuple(_outcome(found[text], rows[AS_ASKED][text], logarithm) for text in common))
        for name, found in rows.items()
    )
    return HeldOut(measured, "log perplexity" if logarithm else "uncertainty")


class _AsAsked(BaseReader):
    """Rewrites nothing."""

    def __init__(self, queries: Sequence[Query], options: SampleOptions) -> None:
        self._queries = {options.prompts["rewrite"].render(query=query.text): query.text for query in queries}

    @property
    def name(self) -> str:
        return AS_ASKED

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(logprobs=False, entropy=None, local=True)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        return [[Generation(self._queries[as_messages(prompt)[-1].content])] for prompt in prompts]


def _outcome(row: Mapping[str, Any], as_asked: Mapping[str, Any], logarithm: bool) -> Outcome:
    used = row if row["trouble"] in _USABLE else as_asked
    uncertainty = used["uncertainty"]
    if uncertainty is not None and not math.isfinite(uncertainty):
        uncertainty = None
    if uncertainty is not None and logarithm:
        uncertainty = math.log(uncertainty)
    return Outcome(
        uncertainty,
        used["correct"],
        used["found"],
        len(used["rewrite"].split()),
        row["trouble"] is None,
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _change(one: Measured, before: Measured | None, what: str, scale: int) -> str:
    gap = None if before is None else one.against(before, what)
    if gap is None:
        return "–"
    value, low, high = (scale * number for number in (gap.value, gap.low, gap.high))
    digits = 0 if scale == 100 else 2
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
