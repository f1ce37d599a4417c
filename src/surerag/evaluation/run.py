"""The run: questions × systems → rows in one SQLite file; a killed run goes on where it ended."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import asdict, astuple, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from surerag.calibration import CalibrationRow
from surerag.certainty import DEFAULT_MEASURE, MEASURES, NO_LOGPROBS, WITHOUT_ALTERNATIVES, Certainty
from surerag.errors import (
    MISCONFIGURED,
    ConfigurationError,
    InputError,
    ServiceError,
    StorageError,
    check_at_least,
    check_kind,
    extra,
    writing,
)
from surerag.evaluation.questions import Question, as_questions
from surerag.evaluation.systems import EvaluationAnswer, System, as_answer, as_system
from surerag.measures import contains, exact_match, token_f1
from surerag.messages import Usage
from surerag.progress import Progress, reporting
from surerag.readers.failures import described
from surerag.readers.threads import maybe_await
from surerag.text import printable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

OnChange = Literal["refuse", "ask"]
Metric = Callable[[str, Sequence[str]], float]
"""From an answer and its references to a score in [0, 1]."""
METRICS: Mapping[str, Metric] = {"exact_match": exact_match, "f1": token_f1, "contains": contains}
METRIC_ALIASES: Mapping[str, str] = {"accuracy": "contains", "em": "exact_match"}
"""Further names that a gate may use."""
FAILURES = 5
"""Questions in a row that may fail under one system before it is asked no more."""
NEARLY_ALL = 0.9
"""Share of the questions that a system must have been asked to stand beside the others."""
_APPLICATION = 0x53524148
"""Marks a database as a run."""
FORMAT = 1
"""Version of the file, which grows where older versions of surerag cannot read it. Files without a number
are read as long as their rows can be."""
_TABLES = f"""
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE IF NOT EXISTS questions (key TEXT PRIMARY KEY, place INTEGER, question TEXT);
CREATE TABLE IF NOT EXISTS systems (name TEXT PRIMARY KEY, place INTEGER, fingerprint TEXT, settings TEXT);
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS documents (key TEXT PRIMARY KEY, names TEXT);
CREATE TABLE IF NOT EXISTS rows (
    fingerprint TEXT, key TEXT, system TEXT, answer TEXT, error TEXT, seconds REAL, shared INTEGER,
    PRIMARY KEY (fingerprint, key, system)
);
"""
_USAGE = ("requests", "prompt_tokens", "completion_tokens", "thinking_tokens", "cached_tokens")


def resolve_metrics(metrics: Sequence[str] | Mapping[str, Metric]) -> dict[str, Metric]:
    """Return metrics by name."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if not metrics:
        raise ConfigurationError("there are no metrics", hint=f"choose of {', '.join(METRICS)}")
    names = [METRIC_ALIASES.get(name, name) for name in ([metrics] if isinstance(metrics, str) else metrics)]
    for name in names:
        if name not in METRICS:
            raise ConfigurationError(
                f"there is no metric {name!r}",
                hint=f"choose of {', '.join(METRICS)}, or pass a mapping from names to functions",
            )
    return {name: METRICS[name] for name in names}


@dataclass(frozen=True)
class Row:
    """Answer of one system to one question; None where it failed, with the class and message of the error.

    Attributes:
        seconds: Wall time of this question; where several were asked at a time, their wall time divided by
            their number. None for questions asked at a time of which the run was killed.
        at_a_time: How many were asked at a time.
    """

    system: str
    question: Question
    answer: EvaluationAnswer | None
    error: str = ""
    seconds: float | None = None
    at_a_time: int = 1

    @property
    def tokens(self) -> int | None:
        """Tokens that were read and written; None where the system does not report them."""
        usage = None if self.answer is None else self.answer.usage
        if usage is None:
            return None
        return usage.prompt_tokens + usage.completion_tokens + usage.thinking_tokens

    def measured(self, name: str) -> float | None:
        """Return tokens, calls, seconds or a score that the system reported; None where there is none."""
        if self.answer is None:
            return None
        if name in ("tokens", "seconds"):
            value: float | None = getattr(self, name)
            return value
        if name in ("calls", *_USAGE):
            return getattr(self.answer.usage, "requests" if name == "calls" else name, None)
        return self.answer.scores.get(name)


class EvaluationRun:
    """Rows of a run, in a file or in memory.

    Args:
        path: The file; None for memory.
        metrics: Names, or functions of an answer and its references by name.
        create: Whether to write, and to make a file that is not there. Without it the file is only read, and
            may lie on a medium that cannot be written.

    Raises:
        InputError: If there is no such file, or it holds something else, is damaged, or was written by a
            newer version of surerag. Rows are read where they are needed, and may raise it then.
        StorageError: If it cannot be read or written.
    """

    def __init__(
        self,
        path: str | Path | None,
        metrics: Sequence[str] | Mapping[str, Metric] = ("contains", "exact_match", "f1"),
        *,
        create: bool = False,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.metrics = resolve_metrics(metrics)
        if self.path is not None and not create and not self.path.is_file():
            raise InputError(f"there is no run at {path}")
        self._writing = create or self.path is None
        with _storage_errors(path, "written" if self._writing else "read"):
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=60)
            [tables] = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            [owner] = self._db.execute("PRAGMA application_id").fetchone()
            if owner != _APPLICATION and (tables or not self._writing):
                raise InputError(f"{path} is a database, and holds no run")
            [number] = self._db.execute("PRAGMA user_version").fetchone()
            if number > FORMAT:
                raise InputError(
                    f"the run {path} has format {number}, and this version of surerag reads format {FORMAT}",
                    hint="install the version of surerag that wrote it, or a newer one",
                )
            if self._writing:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.executescript(_TABLES)
        self._writes = threading.Lock()
        self._table: dict[str, dict[str, Row]] = {}
        self._rows: list[Row] = []
        self._values: dict[tuple[str, str], dict[str, float]] = {}
        self._settings: dict[str, dict[str, Any]] = {}
        self.derived: dict[Hashable, Any] = {}
        """What other modules computed of the rows, kept until a row is added."""

    def __enter__(self) -> EvaluationRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        from surerag.evaluation.report import notebook_html

        return notebook_html(self)

    def close(self) -> None:
        """Close the file."""
        if self._writing:
            # With its log taken in, a run is one file that can be read where nothing can be written.
            with suppress(sqlite3.Error):  # another process has it open, or it is closed
                self._db.execute("PRAGMA busy_timeout=0")
                self._db.execute("PRAGMA journal_mode=DELETE")
        self._db.close()

    @property
    def table(self) -> Mapping[str, Mapping[str, Row]]:
        """Rows of the latest questions by system and by the question's key, each in the order of the call."""
        if not self._table:
            names = self._select("SELECT name FROM systems ORDER BY place")
            table: dict[str, dict[str, Row]] = {name: {} for (name,) in names}
            rows = []
            found = self._select(
                "SELECT system, rows.key, question, answer, error, seconds, shared FROM rows "
                "JOIN systems ON rows.system = systems.name AND rows.fingerprint = systems.fingerprint "
                "JOIN questions ON rows.key = questions.key "
                "WHERE questions.place >= 0 ORDER BY questions.place, systems.place"
            )
            for system, key, question, answer, *rest in found:
                with self._parsing(f"the answer of {system} to question {key}"):
                    row = table[system][key] = Row(system, _question(question), _answer(answer), *rest)
                rows.append(row)
            self._table, self._rows = table, rows
        return self._table

    def _select(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with _storage_errors(self.path, "read"):
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _parsing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(self.path, f"{what} cannot be read ({type(error).__name__}: {error})") from error

    @property
    def systems(self) -> list[str]:
        """Names of the systems, in the order in which they were compared."""
        return list(self.table)

    @property
    def comparable(self) -> list[str]:
        """Names of the systems that were asked nearly all the questions that any was asked."""
        most = max(map(len, self.table.values()), default=0)
        return [system for system, rows in self.table.items() if len(rows) >= NEARLY_ALL * most]

    @property
    def about(self) -> dict[str, str]:
        """What was recorded about the run, such as its model, documents, date and command."""
        return dict(self._select("SELECT name, value FROM about"))

    def record(self, about: Mapping[str, str]) -> None:
        """Record what the latest answers come from."""
        with _storage_errors(self.path), self._writes, self._db:
            self._db.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", about.items())

    @property
    def documents(self) -> dict[str, tuple[str, ...]] | None:
        """Names of documents that hold a reference, by the question's key; None if that was not recorded."""
        if not self._select("SELECT 1 FROM sqlite_master WHERE name = 'documents'"):
            return None
        rows = self._select("SELECT key, names FROM documents")
        with self._parsing("what documents hold"):
            return {key: tuple(json.loads(names)) for key, names in rows} or None

    def record_documents(self, names: Mapping[str, Sequence[str]]) -> None:
        """Record which documents hold a reference, by the question's key."""
        values = [(key, json.dumps(list(of_key))) for key, of_key in names.items()]
        with _storage_errors(self.path), self._writes, self._db:
            self._db.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?)", values)
        self.derived = {}

    @property
    def questions(self) -> list[Question]:
        """The questions of the latest call."""
        rows = self._select("SELECT question FROM questions WHERE place >= 0 ORDER BY place")
        with self._parsing("a question"):
            return [_question(text) for (text,) in rows]

    @property
    def rows(self) -> list[Row]:
        """Rows of the latest questions and systems, by question and system."""
        return self._rows if self.table else []

    def answered(self, system: str) -> dict[str, Row]:
        """Return the rows of a system that hold an answer, by the key of the question."""
        return {key: row for key, row in self._rows_of(system).items() if row.answer is not None}

    def values(self, system: str, measure: str) -> dict[str, float]:
        """Return a metric, or one of tokens, calls, seconds, errors, by the key of the question.

        Questions without references have no metric; a failed answer counts 0, and has no cost.
        """
        if (system, measure) not in self._values:
            rows = self._rows_of(system).items()
            values = {key: self._value(row, measure) for key, row in rows}
            measured = {key: float(value) for key, value in values.items() if value is not None}
            self._values[system, measure] = measured
        return self._values[system, measure]

    def _value(self, row: Row, measure: str) -> float | None:
        if measure == "errors":
            return row.answer is None
        if measure not in self.metrics:
            return row.measured(measure)
        if not row.question.references:
            return None
        score = 0.0 if row.answer is None else self.metrics[measure](row.answer.text, row.question.references)
        if not 0 <= score <= 1:
            raise ConfigurationError(f"the metric {measure} returned {score!r}, not in [0, 1]")
        return score

    def _rows_of(self, system: str) -> Mapping[str, Row]:
        if system not in self.table:
            raise ConfigurationError(
                f"the run has no system {system!r}", hint=f"it has {', '.join(self.systems)}"
            )
        return self.table[system]

    @property
    def groups(self) -> dict[str, str]:
        """What each question belongs to, such as its document, by the key of the question; empty for none."""
        return {key: row.question.group for rows in self.table.values() for key, row in rows.items()}

    @property
    def scores(self) -> list[str]:
        """Names of the measurements that systems reported themselves."""
        return sorted({name for row in self.rows if row.answer for name in row.answer.scores})

    @property
    def measures(self) -> list[str]:
        """Names of the metrics and scores that there are values of, the metrics first."""
        with_references = any(row.question.references for row in self.rows)
        return [*(self.metrics if with_references else ()), *self.scores]

    def settings(self, system: str) -> dict[str, Any]:
        """Return what is recorded of a system: its options, and what built it."""
        self._rows_of(system)  # raises where there is none
        if system not in self._settings:
            [(text,)] = self._select("SELECT settings FROM systems WHERE name = ?", system)
            with self._parsing(f"the settings of {system}"):
                self._settings[system] = dict(json.loads(text))
        return dict(self._settings[system])

    def calibration_rows(self, system: str = "", metric: str = "") -> list[CalibrationRow]:
        """Return rows to calibrate the threshold of a system, from its answers at ``@inf`` and ``@-inf``.

        Args:
            system: Such as ``"lazy"``, where the run has ``lazy@inf`` and ``lazy@-inf``; empty for the only
                such system.
            metric: Score of the answers; empty for the first metric of the run.

        Raises:
            ConfigurationError: If the run does not have both.
        """
        names = self.systems
        pairs = [name.removesuffix("@inf") for name in names if name.endswith("@inf")]
        if len(pairs) > 1 and not system:
            raise ConfigurationError(
                f"the run has {len(pairs)} systems", hint=f"choose of {', '.join(pairs)}"
            )
        system = system or (pairs[0] if pairs else "lazy")
        if not {f"{system}@inf", f"{system}@-inf"} <= set(names):
            raise ConfigurationError(
                f"the run has no {system}@inf and {system}@-inf; it has {', '.join(names)}",
                hint=f"evaluate both: --systems {system}@inf,{system}@-inf; or, to withhold unsure answers "
                "of any system, calibrate with --max-risk",
            )
        metric = metric or next(iter(self.metrics))
        without, with_ = (self.values(f"{system}@{end}", metric) for end in ("inf", "-inf"))
        other = self.answered(f"{system}@-inf")
        rows = []
        for key, row in self.answered(f"{system}@inf").items():
            if key not in other or row.answer is None:
                continue
            value = row.answer.uncertainty
            # A first answer that is empty or cut off has the system act at any threshold.
            uncertainty = math.inf if row.answer.acted or value is None else value
            asked = row.question
            rows.append(
                CalibrationRow(uncertainty, without.get(key), with_.get(key), asked.text, asked.group)
            )
        return rows

    def certainty_rows(self, system: str, metric: str = "", measure: str = "") -> list[CalibrationRow]:
        """Return the certainty and the score of each answer of a system, for ``calibrate_abstention``.

        Answers without log-probabilities and questions without references are left out.

        Args:
            system: Any system whose answers carry their certainty.
            metric: Score of the answers; empty for the first metric of the run.
            measure: The measure of certainty to go by; empty for ``DEFAULT_MEASURE``, or where an answer was
                not measured by it ``WITHOUT_ALTERNATIVES``.
        """
        scores = self.values(system, metric or next(iter(self.metrics)))
        found = [
            (row.question, certainty, scores[key])
            for key, row in self.answered(system).items()
            if key in scores and row.answer and (certainty := row.answer.certainty) is not None
        ]
        measured = [certainty for _, certainty, _ in found if certainty.measure]
        if not measure:
            all_have_it = all(DEFAULT_MEASURE in certainty.uncertainties for certainty in measured)
            measure = DEFAULT_MEASURE if all_have_it else WITHOUT_ALTERNATIVES
        return [
            CalibrationRow.of(one, score, id=question.text, group=question.group)
            for question, certainty, score in found
            if (one := certainty.by(measure) if certainty.measure else certainty).reason != NO_LOGPROBS
        ]

    def to_parquet(self, path: str | Path) -> None:
        """Write the rows as Parquet, a column for each metric among them; ``key`` tells questions apart."""
        with extra("evaluation"):
            import pyarrow as pa
            import pyarrow.parquet as pq
        names = [*self.metrics, *self.scores]
        values = {(system, name): self.values(system, name) for system in self.systems for name in names}
        of_answer = ("contexts", "sources", "finish", "uncertainty", "gate", "acted")
        records = [
            {
                "system": row.system,
                "key": row.question.key,
                "question": row.question.text,
                "references": row.question.references,
                "id": row.question.id,
                "group": row.question.group,
                "answer": None if row.answer is None else row.answer.text,
                **{name: getattr(row.answer, name, None) for name in of_answer},
                **_measures_of(None if row.answer is None else row.answer.certainty),
                "error": row.error,
                **{name: row.measured(name) for name in (*_USAGE, "seconds")},
                "at_a_time": row.at_a_time,
                **{name: values[row.system, name].get(row.question.key) for name in names},
            }
            for row in self.rows
        ]
        with writing(path):
            pq.write_table(pa.Table.from_pylist(records), path)

    def begin(self, systems: Sequence[System], questions: Sequence[Question], on_change: OnChange) -> None:
        """Record systems and questions; refuse changed settings, and questions partly new, partly missing."""
        _ = self.table  # what cannot be read is noticed before a model is asked
        stored = dict(self._select("SELECT name, fingerprint FROM systems"))
        changed = [s.name for s in systems if stored.get(s.name, s.fingerprint) != s.fingerprint]
        before = {question.key for question in self.questions}
        keys = {question.key for question in questions}
        known = {key for (key,) in self._select("SELECT key FROM questions")}
        # Some of the questions, or more of them, are the same run: a trial, and what follows it.
        other = not keys >= before and not keys <= known
        if on_change == "refuse" and (changed or other):
            what = (
                f"the settings of {', '.join(changed)}"
                if changed
                else f"the questions ({len(before - keys)} of {len(before)} are missing)"
            )
            raise ConfigurationError(
                f"{self.path or 'the run'} was made with other values of {what}",
                hint="choose another path, or ask again for what changed (on_change='ask'; --ask-again)",
            )
        with _storage_errors(self.path), self._writes, self._db:
            self._db.execute("UPDATE questions SET place = -1")
            self._db.executemany(
                "INSERT OR REPLACE INTO questions VALUES (?, ?, ?)",
                [(q.key, place, json.dumps(astuple(q))) for place, q in enumerate(questions)],
            )
            self._db.executemany(
                "INSERT INTO systems VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
                "fingerprint = excluded.fingerprint, settings = excluded.settings",
                [
                    (system.name, place, system.fingerprint, json.dumps(system.settings, default=str))
                    for place, system in enumerate(systems, len(stored))
                ],
            )
        self._forget()

    def _forget(self) -> None:
        self._table, self._values, self._settings, self.derived = {}, {}, {}, {}

    def missing(self, system: System, questions: Iterable[Question]) -> set[str]:
        """Return the keys of questions that a system has not answered, or only failed to answer."""
        stored = self._select(
            "SELECT key FROM rows WHERE system = ? AND fingerprint = ? AND error = ''",
            system.name,
            system.fingerprint,
        )
        return {question.key for question in questions} - {key for (key,) in stored}

    def add(self, system: System, row: Row) -> None:
        """Store a row; it is on the disk when this returns."""
        answer = None
        if row.answer is not None:
            usage = None if row.answer.usage is None else asdict(row.answer.usage)
            certainty = None if row.answer.certainty is None else row.answer.certainty.to_dict()
            answer = {
                **vars(row.answer),
                "usage": usage,
                "scores": dict(row.answer.scores),
                "certainty": certainty,
            }
        place = (system.fingerprint, row.question.key, system.name)
        values = (json.dumps(answer, default=float), row.error, row.seconds, row.at_a_time)
        with _storage_errors(self.path), self._writes, self._db:
            self._db.execute("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", (*place, *values))
        self._forget()


def evaluate(
    systems: Mapping[str, Any],
    questions: Iterable[Any] | str | Path,
    path: str | Path | None = None,
    *,
    metrics: Sequence[str] | Mapping[str, Metric] = ("contains", "exact_match", "f1"),
    at_a_time: int = 1,
    on_change: OnChange = "refuse",
    progress: Progress = False,
) -> EvaluationRun:
    """Ask systems the same questions, and return the rows; call it again to go on after an interruption.

    Each answer is stored as it comes. Failed answers are rows too, and are asked for again by the next call.
    A system that fails on :data:`FAILURES` questions in a row is asked no more; the others are.

    Args:
        systems: Anything that answers a question, by name: a LlamaIndex query engine, a LangChain runnable,
            a function or coroutine function from a question to an answer, or a component of the core.
        questions: A file (:func:`~surerag.evaluation.read_questions`), or texts, pairs (question,
            references), mappings or :class:`~surerag.evaluation.Question` objects.
        path: SQLite file of the run; None keeps it in memory.
        metrics: Names (``"exact_match"``, ``"f1"``, ``"contains"``), or functions of an answer and its
            references by name.
        at_a_time: Questions that one system is asked at a time. Their seconds are then the wall time of all,
            divided by their number; 1 measures each question alone.
        on_change: If a system of the same name has other settings than in the file, or the questions are
            others: ``"refuse"``, or ``"ask"`` anew. Rows of different settings are never mixed.
        progress: Whether to show a bar; or a function of the number of answers that are there, and of all.

    Raises:
        ConfigurationError: If a system answers no questions, or the file holds another run.
        InputError: If there are no questions.
        ServiceError: If every system fails on :data:`FAILURES` questions in a row.
        StorageError: If the file cannot be written, or another process asks the same systems for it.

    Example:
        >>> from surerag.evaluation import summarize
        >>> questions = [("Where was Ada born?", "Velm"), ("Where was Bo born?", "Orun")]
        >>> run = evaluate({"guess": lambda question: "Velm"}, questions)
        >>> summarize(run, "exact_match")["guess"].value
        0.5
    """
    with _background_loop() as loop:
        stop = threading.Event()
        return _evaluate(systems, questions, path, loop, stop, metrics, at_a_time, on_change, progress)


async def aevaluate(
    systems: Mapping[str, Any],
    questions: Iterable[Any] | str | Path,
    path: str | Path | None = None,
    **options: Any,
) -> EvaluationRun:
    """Like :func:`evaluate`, without blocking the event loop; coroutine functions run in this loop.

    ``systems``, ``questions``, ``path`` and the other ``options`` are the arguments of :func:`evaluate`.
    """
    loop, stop = asyncio.get_running_loop(), threading.Event()
    try:
        return await asyncio.to_thread(_evaluate, systems, questions, path, loop, stop, **options)
    finally:
        stop.set()


def _evaluate(
    systems: Mapping[str, Any],
    questions: Iterable[Any] | str | Path,
    path: str | Path | None,
    loop: asyncio.AbstractEventLoop,
    stop: threading.Event,
    metrics: Sequence[str] | Mapping[str, Metric] = ("contains", "exact_match", "f1"),
    at_a_time: int = 1,
    on_change: OnChange = "refuse",
    progress: Progress = False,
) -> EvaluationRun:
    check_at_least(1, at_a_time=at_a_time)
    check_kind(Mapping, "systems by their names", systems=systems)
    if on_change not in get_args(OnChange):
        raise ConfigurationError(f"on_change must be 'refuse' or 'ask', got {on_change!r}")
    chosen = [as_system(name, target) for name, target in systems.items()]
    if not chosen:
        raise ConfigurationError("there are no systems to evaluate")
    asked = as_questions(questions)
    run = EvaluationRun(path, metrics, create=True)
    try:
        with _asked_by_one_process(run.path, [system.name for system in chosen]):
            run.begin(chosen, asked, on_change)
            missing = {system.name: run.missing(system, asked) for system in chosen}
            total = len(chosen) * len(asked)
            place = f"Answers, stored in {printable(str(path))}" if path else "Answers"
            with reporting(progress, total, place) as advance:
                advance(total - sum(map(len, missing.values())))
                for _ in _rows(
                    chosen, asked, missing, at_a_time, lambda system, some: _ask(system, some, loop, run)
                ):
                    advance()
                    if stop.is_set():
                        return run
    except BaseException:
        run.close()
        raise
    return run


def _rows(
    systems: Sequence[System],
    questions: Sequence[Question],
    missing: Mapping[str, set[str]],
    at_a_time: int,
    ask: Callable[[System, Sequence[Question]], Iterator[Row]],
) -> Iterator[Row]:
    """Ask what is missing of systems in turn, and yield each row; raise where every one fails in a row."""
    failures, latest = dict.fromkeys(missing, 0), ""
    for start, system in product(range(0, len(questions), at_a_time), systems):
        batch = [q for q in questions[start : start + at_a_time] if q.key in missing[system.name]]
        if not batch or failures[system.name] >= FAILURES:
            continue
        for row in ask(system, batch):
            failures[row.system] = failures[row.system] + 1 if row.error else 0
            latest = f"{row.system} failed on {FAILURES} questions in a row: {row.error}"
            yield row
    if min(failures.values()) >= FAILURES:
        raise ServiceError(latest, hint="every answer so far is stored; the same call goes on from there")


def _ask(
    system: System, batch: Sequence[Question], loop: asyncio.AbstractEventLoop, run: EvaluationRun
) -> Iterator[Row]:
    """Ask questions at a time; store each row when it is there, and yield it."""

    def answer(question: Question) -> Row:
        started = time.perf_counter()
        try:
            value = system.answer(question)
            if inspect.isawaitable(value):
                value = asyncio.run_coroutine_threadsafe(maybe_await(value), loop).result()
            row = Row(system.name, question, as_answer(value))
        except MISCONFIGURED:
            raise
        except Exception as error:
            row = Row(system.name, question, None, described(error))
        seconds = time.perf_counter() - started if len(batch) == 1 else None
        row = replace(row, seconds=seconds, at_a_time=len(batch))
        run.add(system, row)
        return row

    if len(batch) < 2:
        yield from map(answer, batch)
        return
    started, rows = time.perf_counter(), []
    # Interrupted, it waits for the answers that are under way: they are paid for, and stored.
    with ThreadPoolExecutor(len(batch)) as pool:
        futures = [pool.submit(copy_context().run, answer, question) for question in batch]
        for future in as_completed(futures):
            rows.append(future.result())
            yield rows[-1]
    seconds = (time.perf_counter() - started) / len(rows)
    for row in rows:
        run.add(system, replace(row, seconds=seconds))


@contextmanager
def _background_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        if not loop.is_running():
            loop.close()


@contextmanager
def _storage_errors(path: str | Path | None, use: str = "written") -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if str(error).startswith(("no such", "table ", "database disk image", "malformed")):
            raise _damaged(path, str(error)) from error
        if isinstance(error, sqlite3.OperationalError):
            hint = "name a file in a folder that is there and can be written"
            if use == "read":
                hint = "copy it, and what lies beside it, into a folder that can be written"
            raise StorageError(f"the run {path} cannot be {use}: {error}", hint=hint) from error
        raise InputError(f"{path} holds no run: {error}") from error


def _damaged(path: str | Path | None, what: str) -> InputError:
    return InputError(
        f"the run {path} is damaged, or another version of surerag wrote it: {what}",
        hint="take a copy of it that can be read, or write to another file and ask again",
    )


@contextmanager
def _asked_by_one_process(path: Path | None, systems: Sequence[str]) -> Iterator[None]:
    """Hold systems of a run for this process, so that no answer is paid for twice; on Windows nothing is."""
    if path is None or fcntl is None:
        yield
        return
    beside = path.with_name(f"{path.name}-lock")
    try:
        file = beside.open("a+b")
    except OSError as error:
        raise StorageError(
            f"the run {path} cannot be written: {error}",
            hint="name a file in a folder that is there and can be written",
        ) from error
    with file:
        for system in systems:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, zlib.crc32(system.encode()))
            except OSError:
                raise StorageError(
                    f"another process asks {system} for the run {path}",
                    hint="wait until it ends, or write to another file",
                ) from None
        try:
            yield
        finally:
            with suppress(OSError):  # it stays where another process holds other systems
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                beside.unlink(missing_ok=True)


def _measures_of(certainty: Certainty | None) -> dict[str, float | None]:
    """Return every measure of a certainty; None for those that could not be taken."""
    found = {} if certainty is None else certainty.uncertainties
    return {name: math.fsum(found[name]) / 2 if name in found else None for name in MEASURES}


def _question(text: str) -> Question:
    asked, references, contexts, *names = json.loads(text)
    return Question(asked, tuple(references), tuple(contexts), *names)


def _answer(text: str) -> EvaluationAnswer | None:
    values = json.loads(text)
    if values is None:
        return None
    usage = None if values["usage"] is None else Usage(**values["usage"])
    certainty = values.get("certainty")
    return EvaluationAnswer(
        **{
            **values,
            "contexts": tuple(values["contexts"]),
            "sources": tuple(values.get("sources", ())),
            "usage": usage,
            "certainty": None if certainty is None else Certainty.from_dict(certainty),
        }
    )
