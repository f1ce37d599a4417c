"""An evaluation run: the answers of systems to questions, stored in one SQLite file."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from surerag.calibration import CalibrationRow
from surerag.certainty import DEFAULT_MEASURE, MEASURES, NO_LOGPROBS, WITHOUT_ALTERNATIVES, Certainty
from surerag.errors import (
    ConfigurationError,
    InputError,
    StorageError,
    extra,
    writing,
)
from surerag.evaluation.questions import Question
from surerag.evaluation.systems import EvaluationAnswer, System
from surerag.measures import contains, exact_match, token_f1
from surerag.messages import Usage
from surerag.text import counted

OnChange = Literal["refuse", "ask"]
Metric = Callable[[str, Sequence[str]], float]
"""A function that takes an answer and the question's reference answers, and returns a score in [0, 1]."""
METRICS: Mapping[str, Metric] = {"exact_match": exact_match, "f1": token_f1, "contains": contains}
METRIC_ALIASES: Mapping[str, str] = {"accuracy": "contains", "em": "exact_match"}
"""Alternative names of metrics."""
FAILURES = 5
"""Number of successive failures after which a system gets no more questions."""
NEARLY_ALL = 0.9
"""A system is compared with other systems only if it was asked at least this share of the questions."""
DRY_RUN = "questions of dry runs"
"""Key of ``Run.about`` with the number of the stored questions, if all answers come from dry runs."""
_APPLICATION = 0x53524148
"""SQLite application id that identifies a database as an evaluation run."""
FORMAT = 1
"""Version of the file format. It increases with each change that older versions of surerag cannot read. A
file without a version is accepted if its rows can be parsed."""
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
_COUNTED = ("tokens", "calls", "seconds", "errors", "searched")
"""Measures that every run has, with or without reference answers."""
_USAGE = ("requests", "prompt_tokens", "completion_tokens", "thinking_tokens", "cached_tokens")


def resolve_metrics(metrics: Sequence[str] | Mapping[str, Metric]) -> dict[str, Metric]:
    """Return a mapping from the names of metrics to their functions.

    Args:
        metrics: Names of metrics of surerag, or a mapping from names to a user's own functions.

    Raises:
        ConfigurationError: If a name is unknown, or ``metrics`` is an empty list.
    """
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if not metrics:
        raise ConfigurationError("there are no metrics", hint=f"choose from {', '.join(METRICS)}")
    names = [METRIC_ALIASES.get(name, name) for name in ([metrics] if isinstance(metrics, str) else metrics)]
    for name in names:
        if name not in METRICS:
            raise ConfigurationError(
                f"there is no metric {name!r}",
                hint=f"choose from {', '.join(METRICS)}, or pass a mapping from names to functions",
            )
    return {name: METRICS[name] for name in names}


class StoredAnswersWarning(UserWarning):
    """Warns that stored answers get other reference answers, or that answers of a dry run are replaced."""


@dataclass(frozen=True)
class Row:
    """The answer of one system to one question, or the error that prevented the answer.

    Attributes:
        system: Name of the system.
        question: The question.
        answer: The answer; None if the system failed.
        error: Class and message of the error; empty if there is an answer.
        seconds: Wall time of the question. If several questions were asked at the same time, the wall time of
            all these questions, divided by their number; None if the process ended before all were answered.
        at_a_time: Number of questions that were asked at the same time.
    """

    system: str
    question: Question
    answer: EvaluationAnswer | None
    error: str = ""
    seconds: float | None = None
    at_a_time: int = 1

    @property
    def tokens(self) -> int | None:
        """Number of prompt, completion and thinking tokens; None if the system does not report tokens."""
        usage = None if self.answer is None else self.answer.usage
        if usage is None:
            return None
        return usage.prompt_tokens + usage.completion_tokens + usage.thinking_tokens

    def measured(self, name: str) -> float | None:
        """Return a cost, a score or ``"searched"`` by name; None if the system did not report the value."""
        if self.answer is None:
            return None
        if name == "searched":
            return self.answer.acted
        if name in ("tokens", "seconds"):
            value: float | None = getattr(self, name)
            return value
        if name in ("calls", *_USAGE):
            return getattr(self.answer.usage, "requests" if name == "calls" else name, None)
        return self.answer.scores.get(name)


class Run:
    """An evaluation run in a file or in memory; see :class:`~surerag.evaluation.EvaluationRun`."""

    def __init__(
        self,
        path: str | Path | None,
        metrics: Sequence[str] | Mapping[str, Metric] = ("contains", "exact_match", "f1"),
        *,
        create: bool = False,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.metrics = resolve_metrics(metrics)
        if self.path is not None and not create and not os.path.isfile(self.path):  # noqa: PTH113 - it never raises
            raise InputError(f"there is no run at {path}")
        if self.path is not None and self.path.exists() and not self.path.is_file():
            # SQLite may wait for a named pipe or a device for ever.
            raise InputError(f"{path} is not a regular file", hint="name another file")
        self._writing = create or self.path is None
        with _storage_errors(path, "written" if self._writing else "read"):
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=60)
            self._check_format()
            if self._writing:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.executescript(_TABLES)
        self._writes = threading.Lock()
        self._table: dict[str, dict[str, Row]] = {}
        self._rows: list[Row] = []
        self._values: dict[tuple[str, str], dict[str, float]] = {}
        self._settings: dict[str, dict[str, Any]] = {}
        self.derived: dict[Hashable, Any] = {}
        """Cache of results that other modules compute from the rows; a new row clears it."""

    def _check_format(self) -> None:
        [tables] = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        [owner] = self._db.execute("PRAGMA application_id").fetchone()
        if owner != _APPLICATION and (tables or not self._writing):
            raise InputError(f"{self.path} is a database, but not a run of surerag", hint="name another file")
        [number] = self._db.execute("PRAGMA user_version").fetchone()
        if number > FORMAT:
            raise InputError(
                f"the run {self.path} has format {number}, and this version of surerag reads format {FORMAT}",
                hint="install the version of surerag that wrote the run, or a newer version",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file of the run."""
        if self._writing:
            # Without its write-ahead log, a run is one file, which can be read on a read-only disk.
            with suppress(sqlite3.Error):  # another process uses the file, or the run is already closed
                self._db.execute("PRAGMA busy_timeout=0")
                self._db.execute("PRAGMA journal_mode=DELETE")
        self._db.close()

    @property
    def table(self) -> Mapping[str, Mapping[str, Row]]:
        """Rows by system and question key, for the questions of the latest call of ``evaluate``."""
        if not self._table:
            names = self._select("SELECT name FROM systems ORDER BY place")
            table: dict[str, dict[str, Row]] = {name: {} for (name,) in names}
            rows = []
            records = self._select(
                "SELECT system, rows.key, question, answer, error, seconds, shared FROM rows "
                "JOIN systems ON rows.system = systems.name AND rows.fingerprint = systems.fingerprint "
                "JOIN questions ON rows.key = questions.key "
                "WHERE questions.place >= 0 ORDER BY questions.place, systems.place"
            )
            for system, key, question, answer, *rest in records:
                with self._parsing(f"the answer of {system} to question {key}"):
                    row = table[system][key] = Row(
                        system, _parse_question(question), _parse_answer(answer), *rest
                    )
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
        """Names of the systems, in the order in which they were first asked."""
        return list(self.table)

    @property
    def comparable(self) -> list[str]:
        """Names of the systems that were asked enough questions to be compared.

        Enough are 90 % of the questions of the system that was asked the most.
        """
        most = max(map(len, self.table.values()), default=0)
        return [system for system, rows in self.table.items() if len(rows) >= NEARLY_ALL * most]

    @property
    def about(self) -> dict[str, str]:
        """Recorded facts about the run by name, such as its model, documents, date and command."""
        return dict(self._select("SELECT name, value FROM about WHERE value != ''"))

    def record(self, about: Mapping[str, str]) -> None:
        """Store facts about the run by name; an existing fact is replaced, and an empty text deletes it."""
        with _storage_errors(self.path), self._writes, self._db:
            self._db.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", about.items())

    @property
    def documents(self) -> dict[str, tuple[str, ...]] | None:
        """Names of the documents with a reference answer, by question key; None if no names are stored."""
        if not self._select("SELECT 1 FROM sqlite_master WHERE name = 'documents'"):
            return None
        rows = self._select("SELECT key, names FROM documents")
        with self._parsing("the names of documents"):
            return {key: tuple(json.loads(names)) for key, names in rows} or None

    def record_documents(self, names: Mapping[str, Sequence[str]]) -> None:
        """Store the names of documents that contain a reference answer, by question key."""
        values = [(key, json.dumps(list(of_key))) for key, of_key in names.items()]
        with _storage_errors(self.path), self._writes, self._db:
            self._db.executemany("INSERT OR REPLACE INTO documents VALUES (?, ?)", values)
        self.derived = {}

    @property
    def questions(self) -> list[Question]:
        """The questions of the latest call of ``evaluate``."""
        rows = self._select("SELECT question FROM questions WHERE place >= 0 ORDER BY place")
        with self._parsing("a question"):
            return [_parse_question(text) for (text,) in rows]

    @property
    def rows(self) -> list[Row]:
        """Rows for the questions of the latest call of ``evaluate``, ordered by question, then by system."""
        return self._rows if self.table else []

    def answered(self, system: str) -> dict[str, Row]:
        """Return the rows in which a system has an answer, as a mapping from question keys to rows."""
        return {key: row for key, row in self._rows_of(system).items() if row.answer is not None}

    def values(self, system: str, measure: str) -> dict[str, float]:
        """Return the values of a measure for a system, by question key.

        A measure is a metric, a score that the system reports, ``"tokens"``, ``"calls"``, ``"seconds"``,
        ``"errors"`` or ``"searched"``: 1 if the method searched (or rewrote) for the question, else 0.
        Systems that do not decide whether to search have no value of ``"searched"``. Questions without
        references have no value of a metric. If the system failed on a question, each metric is 0, and the
        question has no costs.

        Raises:
            ConfigurationError: If the system or the measure is unknown, or a metric returns a number outside
                [0, 1].
        """
        if (system, measure) not in self._values:
            self._check_measure(measure)
            rows = self._rows_of(system).items()
            values = {key: self._value(row, measure) for key, row in rows}
            measured = {key: float(value) for key, value in values.items() if value is not None}
            self._values[system, measure] = measured
        return self._values[system, measure]

    def _check_measure(self, measure: str) -> None:
        known = (*self.metrics, *_COUNTED, *_USAGE, *self.scores)
        if measure in known:
            return
        alias = METRIC_ALIASES.get(measure)
        near = [alias] if alias in known else get_close_matches(measure, known, n=2)
        choices = f"The measures are {', '.join(dict.fromkeys(known))}"
        raise ConfigurationError(
            f"the run has no measure {measure!r}",
            hint=f"did you mean {' or '.join(near)}? {choices}" if near else choices,
        )

    def _value(self, row: Row, measure: str) -> float | None:
        if measure == "errors":
            return row.answer is None
        if measure not in self.metrics:
            return row.measured(measure)
        if not row.question.references:
            return None
        score = 0.0 if row.answer is None else self.metrics[measure](row.answer.text, row.question.references)
        if not 0 <= score <= 1:
            raise ConfigurationError(f"the metric {measure} returned {score!r}, expected a number in [0, 1]")
        return score

    def _rows_of(self, system: str) -> Mapping[str, Row]:
        if system not in self.table:
            raise ConfigurationError(
                f"the run has no system {system!r}", hint=f"its systems are {', '.join(self.systems)}"
            )
        return self.table[system]

    @property
    def groups(self) -> dict[str, str]:
        """Name of each question's group, such as a document, by question key; empty if there is no group."""
        return {key: row.question.group for rows in self.table.values() for key, row in rows.items()}

    @property
    def scores(self) -> list[str]:
        """Names of the scores that systems reported with their answers."""
        return sorted({name for row in self.rows if row.answer for name in row.answer.scores})

    @property
    def measures(self) -> list[str]:
        """Names of the metrics (if questions have references), followed by the systems' own scores."""
        with_references = any(row.question.references for row in self.rows)
        return [*(self.metrics if with_references else ()), *self.scores]

    def settings(self, system: str) -> dict[str, Any]:
        """Return the recorded settings of a system, such as its options and its reader."""
        self._rows_of(system)  # raises a ConfigurationError if there is no such system
        if system not in self._settings:
            [(text,)] = self._select("SELECT settings FROM systems WHERE name = ?", system)
            with self._parsing(f"the settings of {system}"):
                self._settings[system] = dict(json.loads(text))
        return dict(self._settings[system])

    def calibration_rows(self, system: str = "", metric: str = "") -> list[CalibrationRow]:
        """Return rows for :func:`surerag.calibrate_threshold`, one for each question.

        A row has the uncertainty and the score of the first answer, and the score of the answer after the
        method's search (or rewrite).

        Args:
            system: Name without threshold, such as ``"lazy"`` if the run contains ``lazy@inf``, which
                retrieves only after an abstention, and ``lazy@-inf``, which always retrieves. Empty means the
                only such system.
            metric: Name of the metric that scores the answers; empty means the first metric of the run.

        Raises:
            ConfigurationError: If the run does not contain both systems, such as ``lazy@inf`` and
                ``lazy@-inf``. If ``system`` is empty, and the run contains several such pairs.
        """
        names = self.systems
        pairs = [name.removesuffix("@inf") for name in names if name.endswith("@inf")]
        if len(pairs) > 1 and not system:
            raise ConfigurationError(
                f"expected the name of a system, got none; the run has {len(pairs)} systems to calibrate",
                hint=f"choose from {', '.join(pairs)}",
            )
        system = system or (pairs[0] if pairs else "lazy")
        if not {f"{system}@inf", f"{system}@-inf"} <= set(names):
            raise ConfigurationError(
                f"the run has no {system}@inf and {system}@-inf; it has {', '.join(names)}",
                hint=f"compare both: --systems {system}@inf,{system}@-inf; or, to withhold uncertain answers "
                "of any system, calibrate with --max-risk, or in Python "
                f"calibrate_abstention(run.certainty_rows({names[0]!r}), max_risk=0.1)",
            )
        metric = metric or next(iter(self.metrics))
        without, with_ = (self.values(f"{system}@{end}", metric) for end in ("inf", "-inf"))
        other = self.answered(f"{system}@-inf")
        rows = []
        for key, row in self.answered(f"{system}@inf").items():
            if key not in other or row.answer is None:
                continue
            value = row.answer.uncertainty
            # After an empty or truncated first answer, the system searches (or rewrites) at every threshold.
            uncertainty = math.inf if row.answer.acted or value is None else value
            asked = row.question
            rows.append(
                CalibrationRow(uncertainty, without.get(key), with_.get(key), asked.text, asked.group)
            )
        return rows

    def certainty_rows(self, system: str = "", metric: str = "", measure: str = "") -> list[CalibrationRow]:
        """Return rows for :func:`surerag.calibrate_abstention`: certainty and score of a system's answers.

        Answers without log-probabilities are left out. A question without references has no score.

        Args:
            system: Name of a system whose answers have a certainty; empty means the only such system.
            metric: Name of the metric that scores the answers; empty means the first metric of the run.
            measure: Name of the measure of uncertainty. Empty means ``DEFAULT_MEASURE`` if all answers have
                it, and ``WITHOUT_ALTERNATIVES`` otherwise.

        Raises:
            ConfigurationError: If the system is unknown; or if ``system`` is empty, and the answers of no
                system or of several systems have a certainty.
        """
        system = system or self._only_certain()
        scores, rows = self.values(system, metric or next(iter(self.metrics))), self.answered(system)
        return [
            CalibrationRow.of(
                certainty, scores.get(key), id=rows[key].question.text, group=rows[key].question.group
            )
            for key, certainty in self.certainties(system, measure).items()
        ]

    def _only_certain(self) -> str:
        names = [name for name in self.systems if self.certainties(name)]
        if len(names) == 1:
            return names[0]
        raise ConfigurationError(
            f"expected the name of a system, got none; the answers of {counted(len(names), 'system')} of the "
            "run have a certainty",
            hint=f"choose from {', '.join(names)}, and pass run.certainty_rows({names[0]!r})"
            if names
            else "evaluate systems whose model returns log-probabilities, and which report a certainty",
        )

    def certainties(self, system: str, measure: str = "") -> dict[str, Certainty]:
        """Return the certainties of a system's answers by question key, all with the same measure.

        Answers without log-probabilities are left out.

        Args:
            system: Name of the system.
            measure: Name of the measure of uncertainty; for the default, see :meth:`certainty_rows`.
        """
        answers = ((key, row.answer) for key, row in self.answered(system).items())
        certainties = {key: one.certainty for key, one in answers if one and one.certainty is not None}
        if not measure:
            measured = [certainty for certainty in certainties.values() if certainty.measure]
            all_have_it = all(DEFAULT_MEASURE in certainty.uncertainties for certainty in measured)
            measure = DEFAULT_MEASURE if all_have_it else WITHOUT_ALTERNATIVES
        by_measure = {key: one.by(measure) if one.measure else one for key, one in certainties.items()}
        return {key: one for key, one in by_measure.items() if one.reason != NO_LOGPROBS}

    def to_parquet(self, path: str | Path) -> None:
        """Write the rows to a Parquet file, with a column for each metric and score.

        Raises:
            StorageError: If the file cannot be written.
            MissingExtraError: If pyarrow is not installed.
        """
        with extra("evaluation"):
            import pyarrow as pa
            import pyarrow.parquet as pq
        names = [*self.metrics, *self.scores]
        values = {(system, name): self.values(system, name) for system in self.systems for name in names}
        of_answer = (
            "contexts",
            "n_summaries",
            "sources",
            "finish",
            "uncertainty",
            "gate",
            "acted",
            "reason",
            "query",
        )
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
        """Store the systems and questions of a call of ``evaluate``.

        If only the reference answers of a stored question have changed, the stored answers are kept.

        Raises:
            ConfigurationError: With ``on_change="refuse"``, if the settings of a system have changed, or if
                ``questions`` both contains new questions and lacks stored questions. Answers of dry runs are
                never a reason for this error.

        Warns:
            StoredAnswersWarning: If stored answers get other reference answers, or if the answers of a dry
                run are replaced.
        """
        _ = self.table  # raises an error for damaged rows, before a model is called
        stored = dict(self._select("SELECT name, fingerprint FROM systems"))
        changed = [s.name for s in systems if stored.get(s.name, s.fingerprint) != s.fingerprint]
        difference = f"is a run of other settings of {', '.join(changed)}" if changed else ""
        difference = difference or self._difference(questions)
        if on_change == "refuse" and difference:
            self._refuse_unless_dry(difference)
        rescored = self._rescored(questions)
        with _storage_errors(self.path), self._writes, self._db:
            self._db.executemany(
                "INSERT OR IGNORE INTO rows SELECT fingerprint, ?, system, answer, error, seconds, shared "
                "FROM rows WHERE key = ? AND error = ''",
                rescored.items(),
            )
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
        if rescored:
            what = counted(len(rescored), "stored question")
            _warn(f"{what} got other reference answers; the stored answers are kept and scored again")

    def check_questions(self, questions: Sequence[Question]) -> None:
        """Check that ``begin`` accepts these questions with ``on_change="refuse"``; see :meth:`begin`."""
        if difference := self._difference(questions):
            self._refuse_unless_dry(difference, warn=False)

    def _refuse_unless_dry(self, difference: str, *, warn: bool = True) -> None:
        name = self.path or "the run"
        if not self._is_dry:
            raise ConfigurationError(
                f"{name} {difference}",
                hint="to keep all other answers, and ask only what has changed, pass --ask-again, or in "
                "Python on_change='ask'; to start anew, name another file (--run)",
            )
        if warn:
            _warn(f"{name} {difference}; it has only answers of dry runs, which are replaced")

    @property
    def _is_dry(self) -> bool:
        [(n_stored,)] = self._select("SELECT count(*) FROM questions")
        return bool(0 < n_stored <= int(self.about.get(DRY_RUN, 0)))

    def begin_dry_run(self, questions: Iterable[Question]) -> None:
        """Record that the answers to these questions come from a dry run; call it before ``begin``."""
        stored = {key for (key,) in self._select("SELECT key FROM questions")}
        if not stored or self._is_dry:
            self.record({DRY_RUN: str(len(stored | {question.key for question in questions}))})

    def _rescored(self, questions: Sequence[Question]) -> dict[str, str]:
        # By the key of a new question: the key of the stored question with the same text, but with other
        # reference answers. Scores that a system reports, such as ΔSePer, may depend on the references.
        scored = {row.question.key for row in self.rows if row.answer and row.answer.scores}
        again = {question.key for question in questions}
        before = {_asked(q): q.key for q in self.questions if q.key not in scored | again}
        stored = {key for (key,) in self._select("SELECT key FROM questions")}
        return {q.key: before[_asked(q)] for q in questions if q.key not in stored and _asked(q) in before}

    def _difference(self, questions: Sequence[Question]) -> str:
        # A subset or superset of the stored questions uses the same run: users try a few questions first.
        before, rescored = {question.key: question for question in self.questions}, self._rescored(questions)
        keys = {rescored.get(question.key, question.key) for question in questions}
        if keys >= before.keys() or keys <= {key for (key,) in self._select("SELECT key FROM questions")}:
            return ""
        missing = [question for key, question in before.items() if key not in keys]
        texts = {question.text: question for question in questions}
        if not all(question.text in texts for question in missing):
            example = next(question.text for question in missing if question.text not in texts)
            n_missing = f"{len(missing)} of its {counted(len(before), 'question')}"
            return f"is a run of other questions: {n_missing} are missing now, such as {example[:80]!r}"
        changed = _changed_parts((question, texts[question.text]) for question in missing)
        return f"is a run of the same questions with other {' and other '.join(changed)}"

    def _forget(self) -> None:
        self._table, self._values, self._settings, self.derived = {}, {}, {}, {}

    def missing(self, system: System, questions: Iterable[Question]) -> set[str]:
        """Return the keys of the questions that a system has not answered, or on which the system failed."""
        stored = self._select(
            "SELECT key FROM rows WHERE system = ? AND fingerprint = ? AND error = ''",
            system.name,
            system.fingerprint,
        )
        return {question.key for question in questions} - {key for (key,) in stored}

    def add(self, system: System, row: Row) -> None:
        """Store a row on the disk before returning."""
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


def _warn(text: str) -> None:
    warnings.warn(text, StoredAnswersWarning, stacklevel=4)


def _asked(question: Question) -> tuple[Any, ...]:
    return question.text, question.contexts, question.id, question.system


@contextmanager
def _storage_errors(path: str | Path | None, use: str = "written") -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if str(error).startswith(("no such", "table ", "database disk image", "malformed")):
            raise _damaged(path, str(error)) from error
        if isinstance(error, sqlite3.OperationalError):
            hint = "name a file in an existing folder in which you may write"
            if use == "read":
                hint = (
                    "copy the file, and the files -wal and -shm beside it, to a folder in which you may write"
                )
            raise StorageError(f"the run {path} cannot be {use}: {error}", hint=hint) from error
        raise InputError(f"{path} is not a run: {error}", hint="name another file") from error


_PARTS = {"reference answers": "references", "contexts": "contexts", "ids": "id", "retrievers": "system"}
"""Fields of a question, by their names in errors."""


def _changed_parts(pairs: Iterable[tuple[Question, Question]]) -> list[str]:
    pairs = list(pairs)
    return [
        name for name, part in _PARTS.items() if any(getattr(a, part) != getattr(b, part) for a, b in pairs)
    ]


def _damaged(path: str | Path | None, what: str) -> InputError:
    return InputError(
        f"the run {path} is damaged, or another version of surerag wrote it: {what}",
        hint="use an undamaged copy, or write to another file and ask again",
    )


def _measures_of(certainty: Certainty | None) -> dict[str, float | None]:
    measured = {} if certainty is None else certainty.uncertainties
    return {name: math.fsum(measured[name]) / 2 if name in measured else None for name in MEASURES}


def _parse_question(text: str) -> Question:
    question_text, references, contexts, *names = json.loads(text)
    return Question(question_text, tuple(references), tuple(contexts), *names)


def _parse_answer(text: str) -> EvaluationAnswer | None:
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
