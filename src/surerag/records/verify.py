"""Is a folder what it says it is? Digests, and then all that can be computed again from what was recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from surerag.drivers.progress import counted_not_logged
from surerag.errors import InputError, SureragError
from surerag.evaluation.serialise import to_json
from surerag.methods.seper.component import SePer
from surerag.records.judging import JUDGES
from surerag.records.packing import FIGURES, OWN, PACK, TABLES, figures_of, files_in, read_pack, tables_text
from surerag.records.rows import Pass, TraceRow
from surerag.records.schema import ASKED, QUESTIONS, trace_row
from surerag.records.signals import meaning_clusters, signals_of
from surerag.records.trace import Trace
from surerag.runs import MANIFEST, File, Part, check_file, digest_of, records_in
from surerag.types import Generation, Passage

_CLOSE = 1e-6
_WINDOW = 64


class TamperedError(InputError):
    """A folder is not what it says it is."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One thing that was looked into.

    Attributes:
        what: In words.
        held: Whether it could be looked into; if so it holds, or there was an error.
    """

    what: str
    held: bool = True


def verify(folder: str | Path) -> Iterator[Checked]:
    """Yield what holds of a trace, or of a folder that ``surerag field-test`` packed, as it is found.

    Files have the digests that the manifest names, and there are no others. Answers are judged again, signals
    computed again from the token log-probabilities, meanings of samples from their texts, ΔSePer from the
    samples and judgements; every answer is one that the reader gave to what was asked; and every figure and
    table is made again from the rows. Somebody who makes up a reader's answers and all that follows from them
    is not found out: compare the fingerprint with the one that the author published.

    Raises:
        TamperedError: At the first thing that does not hold.
        InputError: If the folder holds neither a trace nor a pack.
    """
    path = Path(folder)
    if (path / PACK).exists():
        yield from _packed(path)
    elif (path / MANIFEST).exists():
        yield from _trace(path)
    else:
        raise InputError(
            f"{path} holds neither {PACK} nor {MANIFEST}",
            hint="give a folder that `surerag field-test` or `surerag record` wrote",
        )


def _packed(path: Path) -> Iterator[Checked]:
    told = read_pack(path)
    here = files_in(path)
    if missing := sorted(told.files.keys() - set(here)):
        raise TamperedError(f"{path / missing[0]} is missing", hint=_AGAIN)
    if more := sorted(set(here) - told.files.keys()):
        raise TamperedError(f"{path / more[0]} was added: {PACK} does not name it", hint=_AGAIN)
    for name, digest in told.files.items():
        if digest_of(path / name) != digest:
            raise TamperedError(f"{path / name} was changed: its digest is another one", hint=_AGAIN)
    for name in told.traces:
        if f"{name}/{MANIFEST}" not in told.files:
            raise TamperedError(f"{path} holds no trace {name!r}, which {PACK} names", hint=_AGAIN)
    yield Checked(f"{len(here)} files as {PACK} names them")
    for name in told.traces:
        for found in _trace(path / name):
            yield Checked(f"{name}: {found.what}", found.held)
    figures = figures_of(path, told.traces)
    stored = json.loads((path / FIGURES).read_text(encoding="utf-8"))
    difference = _difference(json.loads(to_json(figures)), stored, FIGURES)
    if difference:
        raise TamperedError(f"{path / FIGURES} does not follow from the traces: {difference}", hint=_AGAIN)
    yield Checked(f"all figures of {FIGURES} computed again from the traces: equal")
    if (path / TABLES).read_text(encoding="utf-8") == tables_text(figures):
        yield Checked(f"{_tables(path)} tables of {TABLES} written again: equal")
    elif told.surerag == OWN:
        raise TamperedError(f"{path / TABLES} does not follow from the traces", hint=_AGAIN)
    else:
        why = f"surerag {told.surerag} wrote it, and this is {OWN}: trust {FIGURES}"
        yield Checked(f"{TABLES} reads otherwise when written again; {why}", False)


_AGAIN = "get the folder again from where it was published; if it is your own, pack it again"


def _trace(path: Path) -> Iterator[Checked]:
    trace = Trace(path)
    manifest = trace.manifest
    if not manifest.complete:
        raise TamperedError(f"{path} is not complete", hint="run the command that records it again")
    named = {file.name for file in manifest.files}
    if more := sorted(file.name for file in path.glob("*.parquet") if file.name not in named):
        raise TamperedError(f"{path / more[0]} was added: {MANIFEST} does not name it", hint=_AGAIN)
    for file in manifest.files:
        try:
            check_file(path, file)
        except InputError as error:
            raise TamperedError(str(error)) from error
    yield Checked(f"{len(named)} parts with the digests of {MANIFEST}")
    tally = _Tally(trace)
    for part in manifest:
        tally.part(part)
    yield from tally.found()
    yield from _seper(trace)


class _Tally:
    """Looks into the rows of a trace, part by part."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._judge = JUDGES.get(str(trace.about.get("judge")))
        self._imported = "imported" in trace.about
        self._scored = self._unscored = self._signals = self._asked = self._rows = 0

    def part(self, part: Part) -> None:
        """Look into one part.

        Raises:
            TamperedError: At the first thing that does not hold.
        """
        given = self._given(part.files[ASKED]) if ASKED in part.files else None
        rows = 0
        for record in records_in(self._trace.path(part.files[QUESTIONS])):
            row = trace_row(record)
            rows += 1
            for one in row.passes:
                self._look(row, one, given)
        if rows != part.files[QUESTIONS].rows:
            raise self._wrong(
                f"{part.files[QUESTIONS].name} holds {rows} rows, not {part.files[QUESTIONS].rows}"
            )
        self._rows += rows

    def found(self) -> Iterator[Checked]:
        """Yield what held."""
        yield Checked(f"{self._rows:,} questions, as many as there should be")
        if self._scored:
            yield Checked(f"{self._scored:,} answers judged again: the same")
        if self._unscored:
            why = "no texts, or a rule of one's own"
            yield Checked(f"{self._unscored:,} scores cannot be found again: {why}", False)
        if self._signals:
            yield Checked(f"{self._signals:,} signals computed again: the same")
        if self._asked:
            yield Checked(f"{self._asked:,} answers are what the reader answered when asked")
        else:
            yield Checked("what was asked is not in the trace, so answers stand for themselves", False)

    def _look(self, row: TraceRow, one: Pass, given: set[str] | None) -> None:
        where = f"question {row.id!r}, {one.condition}"
        if one.text is not None and not self._trace.hashed and _digest(one.text) != one.sha256:
            raise self._wrong(f"{where}: the answer does not have its digest")
        self._score(row, one, where)
        if not self._imported:
            self._known(one, where)
        if given is not None:
            if _identity(one.text or "", one.trace and one.trace.logprobs) not in given:
                raise self._wrong(f"{where}: the reader never gave this answer with these log-probabilities")
            self._asked += 1

    def _score(self, row: TraceRow, one: Pass, where: str) -> None:
        if one.correct is None:
            return
        if self._judge is None or one.text is None or row.golds is None or self._imported:
            self._unscored += 1
            return
        right = float(self._judge(one.text, row.golds))
        if not math.isclose(right, one.correct, abs_tol=_CLOSE):
            raise self._wrong(f"{where}: the score is {one.correct:g}, and judged again it is {right:g}")
        self._scored += 1

    def _known(self, one: Pass, where: str) -> None:
        clusters = tuple(sample.cluster for sample in one.samples)
        if one.samples and all(sample.text is not None for sample in one.samples):
            again = meaning_clusters([Generation(sample.text or "") for sample in one.samples])
            if again != clusters:
                raise self._wrong(f"{where}: its samples mean other things than is said")
        silent = any(math.isinf(value) for value in one.signals.values())
        text = one.text if one.text is not None else "" if silent else "?"
        traces = [sample.trace for sample in one.samples if sample.trace is not None]
        scores = [found.score for found in one.retrieved if found.score is not None]
        again_signals = signals_of(text, one.trace, clusters, traces, scores)
        if one.text is None and one.trace is None:
            again_signals = {**again_signals, "length": one.signals.get("length", 0.0)}
        if difference := _difference(dict(again_signals), dict(one.signals), "signals"):
            raise self._wrong(f"{where}: {difference}")
        self._signals += len(again_signals)

    def _given(self, asked: File) -> set[str]:
        path = self._trace.path(asked)
        columns = ("kind", "samples")
        return {
            _identity(sample["text"], sample["logprobs"])
            for record in records_in(path, columns)
            if record["kind"] == "generate"
            for sample in record["samples"]
        }

    def _wrong(self, why: str) -> TamperedError:
        return TamperedError(f"{self._trace.folder}: {why}", hint=_AGAIN)


def _seper(trace: Trace) -> Iterator[Checked]:
    """Compute ΔSePer again, from the samples and judgements that were recorded."""
    settings = trace.about.get("settings", {})
    if "seper" not in settings:
        return
    if trace.hashed:
        yield Checked("ΔSePer cannot be computed again: no texts", False)
        return
    try:
        seper = SePer.from_dict(settings["seper"], reader=trace.reader(), entailer=trace.entailer())
    except SureragError as error:
        yield Checked(f"ΔSePer cannot be computed again: {error}", False)
        return
    top_n, retriever = settings["lazy"]["top_n"], trace.retriever()
    count = 0

    def cases() -> Iterator[tuple[str, tuple[str, ...], list[Passage]]]:
        for row in _measured(trace):
            question = row.question or ""
            yield question, row.golds or (), retriever.retrieve(question, top_n)

    try:
        # What single questions warn of was told when they were recorded.
        with counted_not_logged():
            results = seper.iter_many(cases(), window=_WINDOW)
            for row, result in zip(_measured(trace), results, strict=True):
                again = {
                    "delta_seper": result.delta,
                    "seper_before": result.before.seper,
                    "seper_after": result.after.seper,
                }
                stored = {name: row.measures.get(name) for name in again}
                if difference := _difference(again, stored, "measures"):
                    raise TamperedError(f"{trace.folder}: question {row.id!r}: {difference}", hint=_AGAIN)
                count += 1
    except TamperedError:
        raise
    except SureragError as error:
        raise TamperedError(f"{trace.folder}: ΔSePer cannot be computed again: {error}") from error
    yield Checked(f"ΔSePer of {count:,} questions computed again from samples and judgements: the same")


def _measured(rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    return (row for row in rows if "delta_seper" in row.measures)


def _tables(path: Path) -> int:
    return (path / TABLES).read_text(encoding="utf-8").count("\n### ")


def _identity(text: str, logprobs: Any) -> str:
    told = None if logprobs is None else [round(float(value), 6) for value in logprobs]
    return sha256(json.dumps([text, told]).encode("ascii")).hexdigest()[:32]


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", errors="replace")).hexdigest()


def _difference(again: Any, stored: Any, where: str) -> str:
    """Say where two values differ by more than rounding; empty where they do not."""
    if isinstance(again, Mapping) and isinstance(stored, Mapping):
        if again.keys() != stored.keys():
            named = ", ".join(sorted(again.keys() ^ stored.keys()))
            return f"{where} have other names: {named}"
        pairs: Iterable[tuple[Any, Any, Any]] = ((name, again[name], stored[name]) for name in again)
    elif isinstance(again, list) and isinstance(stored, list):
        if len(again) != len(stored):
            return f"{where} has {len(stored)} entries, computed again {len(again)}"
        pairs = ((at, one, other) for at, (one, other) in enumerate(zip(again, stored, strict=True)))
    elif _same(again, stored):
        return ""
    else:
        return f"{where} is {stored!r}, and computed again {again!r}"
    return next(
        (found for at, one, other in pairs if (found := _difference(one, other, f"{where}.{at}"))), ""
    )


def _same(again: Any, stored: Any) -> bool:
    numbers = (int, float)
    if isinstance(again, numbers) and isinstance(stored, numbers) and not isinstance(again, bool):
        return math.isclose(again, stored, rel_tol=_CLOSE, abs_tol=_CLOSE)
    return type(again) is type(stored) and bool(again == stored)
