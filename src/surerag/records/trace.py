"""A trace as it is read: question by question, and as the services that answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from surerag.decisions.rows import DecisionRow
from surerag.errors import ConfigurationError
from surerag.places import Anywhere
from surerag.records.rows import TraceRow, decision_rows
from surerag.records.schema import ASKED, QUESTIONS, TIMES, TRACE, trace_row
from surerag.runs import File, check_file, read_manifest, records_in
from surerag.runs.store import fetched

if TYPE_CHECKING:
    from surerag.records.replay import ReplayEntailer, ReplayReader, ReplayRetriever

RETRIEVER: Final = "retriever"
SUMMARY_INDEX: Final = "summaries"


class Trace:
    """A recorded run, read from its folder as it is needed.

    Args:
        folder: What ``surerag record`` or :func:`surerag.records.record` wrote; of a URL, a copy of what it
            names is made on this disk, and read.
        check: Whether to compare each file with its digest before it is read.

    Raises:
        InputError: If the folder holds no trace, or one of another version of the format; and, when it is
            read, if a file is missing or was changed.

    Example:
        >>> for row in Trace("my-trace"):                                       # doctest: +SKIP
        ...     print(row.question, row.under("none").signals["perplexity"])
    """

    def __init__(self, folder: str | Anywhere, *, check: bool = True) -> None:
        self.folder = fetched(folder, TRACE)
        self.manifest = read_manifest(self.folder, TRACE)
        self._check = check
        self._checked: set[str] = set()

    def __repr__(self) -> str:
        return f"Trace({str(self.folder)!r})"

    def __len__(self) -> int:
        """Questions."""
        return self.manifest.rows

    def __iter__(self) -> Iterator[TraceRow]:
        """Yield the questions in order, holding some at a time."""
        for part in self.manifest:
            records = records_in(self.path(part.files[QUESTIONS]))
            if TIMES in part.files:
                times = records_in(self.path(part.files[TIMES]))
                yield from (trace_row(one, took["seconds"]) for one, took in zip(records, times, strict=True))
            else:
                yield from map(trace_row, records)

    @property
    def about(self) -> Mapping[str, Any]:
        """What was recorded, and how."""
        return self.manifest.about

    @property
    def hashed(self) -> bool:
        """Whether digests stand in place of texts."""
        return bool(self.about.get("hash_texts"))

    def path(self, file: File) -> Path:
        """Return a file's path, having found once that it is what the manifest says."""
        if not self._check or file.name in self._checked:
            return self.folder / file.name
        found = check_file(self.folder, file)
        self._checked.add(file.name)
        return found

    def decision_rows(self, without: str = "none", with_: str = "retrieval") -> Iterator[DecisionRow]:
        """Yield what a decision is calibrated on; see :func:`surerag.records.decision_rows`.

        A signal that a recorded method decides by is there under the method's own name (``rag.signal``) as
        well, so that a component can be calibrated on them.

        Args:
            without: Condition of the answer that there is before the decision.
            with_: Condition of the answer after acting.
        """
        own: Mapping[str, str] = self.about.get("signals", {})
        for row in decision_rows(self, without, with_):
            known = {name: row.signals[ours] for name, ours in own.items() if ours in row.signals}
            yield replace(row, signals={**row.signals, **known})

    def reader(self, name: str | None = None) -> ReplayReader:
        """Return a reader that gives the recorded answers, and no others.

        Args:
            name: Of the model; the reader that was recorded if left out. A rewriter has its own.

        Raises:
            ConfigurationError: If texts were not kept, or there is no model of this name.
        """
        from surerag.records.replay import ReplayReader

        return ReplayReader(self, name)

    def retriever(self, name: str = RETRIEVER) -> ReplayRetriever:
        """Return a retriever that finds what was found for the recorded queries.

        Args:
            name: ``"retriever"``, ``"summaries"``, or ``"rewriting"`` where DynQR had one of its own.

        Raises:
            ConfigurationError: If texts were not kept.
        """
        from surerag.records.replay import ReplayRetriever

        return ReplayRetriever(self, name)

    def entailer(self) -> ReplayEntailer:
        """Return an entailer that judges the recorded pairs as they were judged.

        Raises:
            ConfigurationError: If texts were not kept, or no pair was judged.
        """
        from surerag.records.replay import ReplayEntailer

        return ReplayEntailer(self)

    def needs_texts(self, what: str) -> None:
        """Refuse what digests cannot serve.

        Raises:
            ConfigurationError: If texts were not kept.
        """
        if self.hashed:
            raise ConfigurationError(
                f"{self.folder} holds digests in place of texts, and {what} needs texts",
                hint="its signals, scores and costs are there: iterate over it, or use decision_rows(); "
                "to ask again what was asked, record without hash_texts",
            )
        if any(ASKED not in part.files for part in self.manifest):
            raise ConfigurationError(
                f"{self.folder} does not hold what was asked, and {what} needs it",
                hint="a table that was imported has answers and signals only: use decision_rows()",
            )
