"""Record a pipeline: every question under every condition, in parts, so that it can be killed and go on."""

from __future__ import annotations

import hashlib
import platform
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from surerag.drivers.progress import Progress, reporting
from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.inputs.questions import Asked, QuestionFile, groups_of
from surerag.evaluation.rows import Question
from surerag.extras import extra
from surerag.places import Anywhere, place_of
from surerag.records.conditions import Manner, ask_all
from surerag.records.judging import Judge, judge_name, judge_of
from surerag.records.keeping import Kept
from surerag.records.pipeline import Pipeline
from surerag.records.schema import (
    ASKED,
    ASKED_TIMES,
    QUESTIONS,
    TIMES,
    TRACE,
    question_record,
    schemas,
    times_record,
)
from surerag.records.trace import Trace
from surerag.runs import IN_PROCESS, WHOLE, Engine, Part, Run, Shard, Task
from surerag.runs.manifest import Kind
from surerag.runs.store import check_output
from surerag.storage import write_whole

PART = 64
"""Questions in a part."""
_KEY = "open.key"
_PACKAGES = (
    "surerag",
    "numpy",
    "pyarrow",
    "torch",
    "transformers",
    "openai",
    "llama-index-core",
    "langchain-core",
)


def record(
    pipeline: Any,
    questions: QuestionFile | Iterable[Asked],
    folder: str | Anywhere,
    *,
    judge: Judge = "contains",
    n_samples: int = 5,
    hash_texts: bool = False,
    about: Mapping[str, Any] | None = None,
    part_size: int = PART,
    window: int = 64,
    max_concurrency: int = 16,
    on_change: Literal["error", "restart"] = "error",
    engine: Engine = IN_PROCESS,
    shard: Shard = WHOLE,
    progress: Progress = False,
) -> Trace:
    """Answer questions with a pipeline under every condition that it allows, and write down all of it.

    A part of ``part_size`` questions is committed whole. What is asked in between is noted as it is answered,
    so that the same call goes on after a kill and asks for nothing again but what was being asked at that
    moment. Memory holds one part, however many questions there are; they are read as they are needed.

    With a ``LazyRAG`` these are ``"none"`` and ``"retrieval"``, with summaries ``"summaries"`` and
    ``"strong"`` as well; with an ``UncertaintyRewriter`` ``"original"``, ``"rewritten"`` and ``"verified"``;
    with a ``ClusterCompressor`` beside the LazyRAG ``"compressed"``; with a ``SePer`` or a ``Dense`` beside
    it, ΔSePer or the DENSE score of what was retrieved.

    Args:
        pipeline: Components of the core, or engines, chains and parts of either framework that hold them:
            one, or a list. Thresholds and modes that are set do not matter: each question goes both ways.
        questions: With gold answers (without, answers are not judged) and, if texts are not unique, ids. Of a
            file (:func:`surerag.evaluation.inputs.check_questions`, in groups of ``part_size``) only what is
            not recorded yet is read.
        folder: Made if it is not there; or a URL, such as ``s3://bucket/trace``.
        judge: Whether an answer is right: ``"contains"``, ``"exact_match"``, ``"token_f1"``, or a function of
            an answer and its gold answers.
        n_samples: Answers to sample beside each one that a decision may be made on; 0 samples none.
        hash_texts: Keep digests in place of questions, gold answers, answers and passages. They are keyed,
            and the key is thrown away at the end, so that nobody can guess texts from them. What was asked is
            not kept either, so that nothing can be replayed; signals, scores, ids and costs are there.
        about: What else to say of the trace: plain values.
        part_size: Questions in a part.
        window: Questions at work at a time.
        max_concurrency: Requests under way at a server, at most.
        on_change: If the folder holds a trace of something else: ``"error"``; or ``"restart"``, which throws
            that away.
        engine: Has the parts made: in this process, or by ``surerag.scale.engine.RayUnits``.
        shard: Which of the parts to record; the whole by default.
        progress: True for a bar on a terminal, or a function of what is done and the total, in questions.

    Returns:
        The trace.

    Raises:
        InputError: If there are no questions, or other ones than those that were recorded already.
        ConfigurationError: If the pipeline or a setting cannot work, or the folder holds another trace.
        StorageError: If the folder cannot be written.
        Exception: If all questions of a part fail; single failures stand in their rows.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from surerag import LazyRAG, Passage, ScriptedReader
        >>> class Corpus:
        ...     def retrieve(self, query, k):
        ...         return [Passage("Ada was born in Velm.", id="a", score=0.9)]
        >>> reader = ScriptedReader(lambda prompt: "Velm" if "born in Velm" in prompt else "Orun")
        >>> rag = LazyRAG(reader, Corpus(), mode="standard")
        >>> with TemporaryDirectory() as folder:
        ...     [row] = record(rag, [("Where was Ada born?", ["Velm"])], folder)
        ...     [(one.condition, one.text, one.correct) for one in row.passes]
        [('none', 'Orun', 0.0), ('retrieval', 'Velm', 1.0)]
    """
    with extra("parquet"):  # before anything is asked, not after
        import pyarrow as pa  # noqa: F401
    judge_of(judge)
    for name, value, least in (
        ("part_size", part_size, 1),
        ("n_samples", n_samples, 0),
        ("window", window, 1),
    ):
        if value < least:
            raise ConfigurationError(f"{name} must be at least {least}, got {value!r}")
    if n_samples == 1:
        raise ConfigurationError("one sample cannot disagree; n_samples must be 0, or at least 2, got 1")
    if isinstance(questions, Sized):
        shard.check(len(questions), part_size)
    parts, place = Pipeline.of(pipeline), place_of(folder)
    check_output(place)
    told = {
        **parts.about(n_samples),
        "judge": judge_name(judge),
        "n_samples": n_samples,
        "part_size": part_size,
        "hash_texts": hash_texts,
        **(about or {}),
        **shard.about,
        "versions": _versions(),
    }
    with Run.open(place, told, schemas(), kind=TRACE, on_change=on_change) as run:
        if on_change == "restart":
            (run.folder / _KEY).unlink(missing_ok=True)
        key = _key_of(run) if hash_texts else None
        recorder = Recorder(parts, Manner(judge, n_samples, window, key), max_concurrency)
        sizes: dict[int, int] = {}
        total = len(questions) if isinstance(questions, Sized) and shard == WHOLE else None
        with reporting(progress, total) as advance:

            def missing() -> Iterator[Task]:
                for unit, group in enumerate(groups_of(questions, part_size)):
                    if not shard.has(unit):
                        continue
                    source = group.digest if key is None else _keyed(group.digest, key)
                    if unit in run.manifest.parts:
                        _check_part(run, unit, source)
                        _each(advance, group.size)
                    elif run.complete:
                        raise InputError(
                            f"{place} is complete with {run.manifest.rows} questions, and there are more now",
                            hint="record the further ones into another folder",
                        )
                    else:
                        sizes[unit] = group.size
                        yield Task(unit, source, group.read)

            with closing(engine(run, missing(), recorder)) as made:
                for part in made:
                    _each(advance, sizes.pop(part.unit))
        if not run.units:
            raise InputError("there are no questions to record", hint="give at least one")
        run.finish()
    (run.folder / _KEY).unlink(missing_ok=True)
    return Trace(place)


class Recorder:
    """Records parts of a trace, one at a time.

    Args:
        pipeline: Answers.
        manner: How it is asked.
        max_concurrency: Requests under way at a server, at most.
    """

    def __init__(self, pipeline: Pipeline, manner: Manner, max_concurrency: int) -> None:
        self._pipeline, self._manner, self._max_concurrency = pipeline, manner, max_concurrency

    @property
    def kind(self) -> Kind:
        """Of run: a trace."""
        return TRACE

    @property
    def schemas(self) -> Any:
        """Of a trace's tables."""
        return schemas()

    def make(self, run: Run, unit: int, rows: Sequence[Question], source: str) -> Part:
        """Ask for one part, and commit it.

        Raises:
            Exception: If all of its questions fail.
        """
        manner = self._manner
        with run.answers(unit) as journal:
            kept = Kept(journal)
            pipeline = self._pipeline.keeping(kept, max_concurrency=self._max_concurrency)
            found, failures = ask_all(pipeline, kept, rows, manner)
            if failures and not any(row.passes for row in found):
                raise failures[0]
            tables = {
                QUESTIONS: [question_record(row) for row in found],
                TIMES: [times_record(row) for row in found],
            }
            if manner.key is None:
                tables[ASKED], tables[ASKED_TIMES] = list(kept.records()), list(kept.times())
            spent = kept.spent()
        note = {"failed": sum(bool(row.error) for row in found), "spent": spent.to_dict()}
        # The table of what was asked holds the journal's answers, or they are not to be kept at all.
        return run.commit(unit, tables, source=source, note=note, keep_answers=False)


def _each(advance: Callable[[], None], times: int) -> None:
    for _ in range(times):
        advance()


def _keyed(digest: str, key: bytes) -> str:
    return hashlib.sha256(key + digest.encode("ascii")).hexdigest()[:32]


def _check_part(run: Run, unit: int, source: str) -> None:
    # With digests in place of texts, the key is gone once the trace is complete: nothing can be compared.
    known = not run.complete or not run.about.get("hash_texts")
    if known and run.manifest.parts[unit].source != source:
        raise InputError(
            f"{run.place} holds other questions in part {unit} than those that are to be recorded now",
            hint="give the same questions in the same order, write to another folder, or begin anew with "
            "--restart (on_change='restart')",
        )


def _key_of(run: Run) -> bytes:
    """Return the key of an unfinished trace, or a new one; it lies beside it until that is complete."""
    file = run.folder / _KEY
    if file.exists():
        return bytes.fromhex(file.read_text(encoding="ascii"))
    key = secrets.token_bytes(32)
    if not run.complete:
        if run.units:
            raise InputError(
                f"{file} is gone, and with it the key that the digests before were made with",
                hint="begin anew with --restart (on_change='restart')",
            )
        write_whole(file, key.hex())
        with suppress(OSError):
            file.chmod(0o600)
    return key


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
