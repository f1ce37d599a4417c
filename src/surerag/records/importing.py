"""Tables that others recorded, as traces: say which column is what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.inputs import golds_field, read_records
from surerag.records.judging import Judge, judge_name, judge_of
from surerag.records.rows import NONE, RETRIEVAL, Found, Pass, TraceRow
from surerag.records.schema import QUESTIONS, TRACE, question_record, schemas
from surerag.records.trace import Trace
from surerag.runs import MANIFEST, Run
from surerag.storage import check_folder


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column of a table is what.

    Attributes:
        answers: Column of the answer under each condition, such as ``{"none": "closed_book_answer"}``.
        golds: Column of the gold answers: a text, or a list of them.
        question: Column of the question, if there is one.
        id: Column of the questions' names; by default they are numbered.
        signals: Column of each signal of each condition, such as ``{"none": {"perplexity": "ppl"}}``. A
            signal that is missing in a row is left out there.
        correct: Column of the score in [0, 1] of each condition's answer; others are judged.
        passages: Column with the texts of what was retrieved, for each condition.
    """

    answers: Mapping[str, str]
    golds: str = "answers"
    question: str | None = "question"
    id: str | None = None
    signals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    correct: Mapping[str, str] = field(default_factory=dict)
    passages: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.answers:
            raise ConfigurationError(
                "no column holds answers", hint='such as answers={"none": "…", "retrieval": "…"}'
            )
        for name in ("signals", "correct", "passages"):
            if unknown := sorted(getattr(self, name).keys() - self.answers.keys()):
                raise ConfigurationError(
                    f"{name} names conditions without answers: {', '.join(unknown)}",
                    hint=f"conditions are {', '.join(self.answers)}",
                )

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that a table has to have."""
        own = [name for name in (self.id, self.question) if name is not None]
        told = [column for signals in self.signals.values() for column in signals.values()]
        further = [*self.answers.values(), *told, *self.correct.values(), *self.passages.values()]
        return (*own, self.golds, *further)


ADARAGUE_SINGLE_HOP: Final = Columns(
    answers={NONE: "answer", RETRIEVAL: "answer_one_retrieval", "none, other prompt": "answer_no_retrieval"},
    golds="golds",
    question=None,
    id="id",
    signals={
        NONE: {
            "perplexity": "perplexity",
            "ln_entropy": "ln_entropy",
            "energy": "energy",
            "eigen_score": "eigen_score",
        }
    },
)
"""Llama-3.1-8B-Instruct on NQ and TriviaQA: s-nlp/AdaRAGUE, as a table of one row a question."""

ADARAGUE_2WIKI: Final = Columns(
    answers={NONE: "answer_no_retrieval", RETRIEVAL: "answer_one_retrieval"},
    golds="golds",
    question="question",
    id="id",
)
"""The same reader on 2WikiMultiHopQA, without uncertainties."""


def import_table(
    file: str | Path,
    folder: str | Path,
    columns: Columns,
    *,
    reader: str,
    judge: Judge = "contains",
    where: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    part_size: int = 256,
) -> Trace:
    """Make a trace of a table that somebody else recorded: JSONL or Parquet, a question a row.

    Its answers, scores and signals are there for every analysis; what was asked is not, so that it cannot be
    replayed. The table is read as it is written, some rows at a time.

    Args:
        file: The table.
        folder: Where the trace goes; it must not hold one.
        columns: Which column is what; further ones are ignored.
        reader: Whose answers they are.
        judge: Whether an answer is right, where no column says so.
        where: Values that rows must have to be taken, by column, such as ``{"dataset": "nq"}``.
        about: What else to say of the trace: plain values.
        part_size: Questions in a part.

    Raises:
        InputError: If the table cannot be read, a column is missing or holds something else, or no row is
            left.
        ConfigurationError: If the folder holds a trace already.
        StorageError: If the folder cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as made:
        ...     table = Path(made) / "mine.jsonl"
        ...     _ = table.write_text('{"q": "?", "gold": "Velm", "plain": "Orun", "rag": "Velm", "ppl": 2.5}')
        ...     trace = import_table(table, Path(made) / "trace", Columns(
        ...         {"none": "plain", "retrieval": "rag"}, golds="gold", question="q",
        ...         signals={"none": {"perplexity": "ppl"}}), reader="my model")
        ...     [row] = trace.decision_rows("none", "retrieval")
        >>> row.signals, row.benefit
        ({'perplexity': 2.5}, 1.0)
    """
    path, table = Path(folder), Path(file)
    check_folder(path)
    if (path / MANIFEST).exists():
        raise ConfigurationError(f"{path} holds a trace already", hint="write to another folder")
    told = {"reader": reader, "judge": judge_name(judge), "imported": table.name, "hash_texts": False}
    rows = _rows(table, columns, judge, where or {})
    if not (group := list(islice(rows, part_size))):
        raise InputError(f"{table} holds no row" + (f" where {dict(where)}" if where else ""))
    with Run.open(path, {**told, **(about or {})}, schemas(), kind=TRACE) as run:
        for unit in count():
            run.commit(unit, {QUESTIONS: [question_record(row) for row in group]})
            if not (group := list(islice(rows, part_size))):
                break
        run.finish()
    return Trace(path)


def _rows(table: Path, columns: Columns, judge: Judge, where: Mapping[str, Any]) -> Iterator[TraceRow]:
    right = judge_of(judge)
    for number, (place, record) in enumerate(read_records(table), start=1):
        if not isinstance(record, dict):
            raise InputError(f"{place}: the row must be an object, found {type(record).__name__}")
        if missing := [name for name in (*columns.names, *where) if name not in record]:
            raise InputError(
                f"{place}: the column {missing[0]!r} is missing",
                hint=f"the table has {', '.join(map(repr, record))}",
            )
        if any(record[name] != value for name, value in where.items()):
            continue
        golds = golds_field(record[columns.golds], place)
        question = None if columns.question is None else str(record[columns.question])
        yield TraceRow(
            id=str(number if columns.id is None else record[columns.id]),
            question=question,
            sha256="" if question is None else _digest(question),
            golds=golds,
            passes=tuple(
                _pass(condition, record, columns, golds, right, place) for condition in columns.answers
            ),
        )


def _pass(
    condition: str, record: Mapping[str, Any], columns: Columns, golds: Sequence[str], right: Any, place: Any
) -> Pass:
    text = record[columns.answers[condition]]
    text = "" if text is None else str(text)
    scored = columns.correct.get(condition)
    correct = float(right(text, golds)) if scored is None else _number(record[scored], scored, place)
    signals = {
        name: _number(record[column], column, place)
        for name, column in columns.signals.get(condition, {}).items()
        if record[column] is not None
    }
    shown = record[columns.passages[condition]] if condition in columns.passages else []
    return Pass(
        condition=condition,
        text=text,
        sha256=_digest(text),
        correct=correct,
        retrieved=tuple(Found(str(at), None, _digest(str(one))) for at, one in enumerate(shown)),
        signals=signals,
    )


def _number(value: Any, column: str, place: Any) -> float:
    if isinstance(value, str | bytes) or not isinstance(value, bool | int | float) or math.isnan(value):
        raise InputError(f"{place}: the column {column!r} must be a number, found {value!r}")
    return float(value)


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", errors="replace")).hexdigest()
