"""Run all stages of the training of a query rewriter, and test on held-out queries whether it helped."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from surerag.drivers import run_many
from surerag.effects import Program
from surerag.errors import ConfigurationError, InputError, writing
from surerag.measures.statistics import Estimate, paired_difference
from surerag.progress import Progress
from surerag.readers.protocol import Reader, as_reader
from surerag.services import Encoder, Retriever, Services
from surerag.training.options import RewriterTraining
from surerag.training.sampling import (
    Preference,
    Query,
    TriedQuery,
    as_queries,
    check_reward,
    collect_rewrites,
    rewrite_and_try,
    sample_preferences,
    try_query,
)
from surerag.training.tuning import align, distil, load_base

MIN_QUERIES = 20


@dataclass(frozen=True, slots=True)
class StageMeans:
    """Results of one rewriter on the held-out queries.

    Attributes:
        name: ``"as asked"`` for the original queries, ``"distilled"`` or ``"aligned"``.
        log_perplexity: Mean log-perplexity of the reader's answers in nats, without empty or truncated
            answers.
        change: Change of the log-perplexity compared with the original queries, paired by query; None for the
            original queries themselves.
        correct: Share of right answers; None without references.
        correct_change: Change of ``correct`` compared with the original queries, paired by query; None for
            the original queries themselves, and without references.
    """

    name: str
    log_perplexity: float
    change: Estimate | None
    correct: float | None
    correct_change: Estimate | None

    @property
    def helps(self) -> bool:
        """Whether right answers became significantly more or, without references, perplexity lower."""
        if self.correct_change is not None:
            return self.correct_change.interval is not None and self.correct_change.interval.lower > 0
        return self.change is not None and self.change.interval is not None and self.change.interval.upper < 0


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The result of :func:`train_rewriter`.

    Attributes:
        rewriter: Folder of the last trained model whose rewrites lead to better answers than the original
            queries; None if there is no such model. :attr:`StageMeans.helps` says what counts as better.
        stages: Results on the held-out queries; the first entry is for the original queries.
        n_distilled: Number of rewrites that were used for distillation.
        n_preferences: Number of pairs of rewrites that were used for alignment.
        n_held_out: Number of held-out queries.
    """

    rewriter: Path | None
    stages: tuple[StageMeans, ...]
    n_distilled: int
    n_preferences: int
    n_held_out: int

    def __str__(self) -> str:
        """Return the results as a Markdown table, and a sentence that says which model to use."""
        rows = ["| queries | log-perplexity | change | right | change |", "|---|---:|---:|---:|---:|"]
        for stage in self.stages:
            right = "" if stage.correct is None else f"{100 * stage.correct:.1f} %"
            points = "" if stage.correct_change is None else stage.correct_change.text("+", 100, 1)
            change = "" if stage.change is None else stage.change.text("+")
            rows.append(f"| {stage.name} | {stage.log_perplexity:.3f} | {change} | {right} | {points} |")
        verdict = f"Use {self.rewriter}." if self.rewriter else "No model's rewrites help."
        return "\n".join([*rows, "", f"{self.n_held_out} held-out queries, paired 95 % intervals. {verdict}"])


def train_rewriter(
    queries: Iterable[Query | str],
    base: str | Path,
    output: str | Path,
    *,
    reader: Reader,
    retriever: Retriever,
    teacher: Reader | None = None,
    encoder: Encoder | None = None,
    options: RewriterTraining | None = None,
    progress: Progress = False,
) -> TrainingReport:
    """Train a model to rewrite queries: distil a teacher's rewrites, then align the model with the reader.

    Afterwards, the reader answers held-out queries as asked, and with the model's rewrites, and the answers
    are compared. If a training is interrupted, call this function again with the same arguments: it continues
    from the files in ``output``.

    Args:
        queries: At least 20 distinct queries; with references, the report counts right answers.
        base: Hugging Face id or folder of the model to train.
        output: Folder for data, checkpoints and models.
        reader: The model that answers the queries; it must report log-probabilities.
        retriever: Finds passages.
        teacher: The model that writes the rewrites for distillation; None means the reader.
        encoder: The model that embeds texts; needed for the reward ``"relevance"``.
        options: Options of the training; None means the defaults.
        progress: Whether to show progress bars.

    Raises:
        InputError: If there are too few queries, or the reward needs references and a query has none.
        MissingServiceError: If the reward needs an encoder, and ``encoder`` is None.
        ConfigurationError: If ``base`` cannot be loaded, or ``output`` has the files of a training with other
            queries or options.
        ServiceError: If the teacher wrote no usable rewrite.
        StorageError: If ``output`` cannot be written.
        MissingExtraError: If TRL is not installed.
    """
    options, folder = options or RewriterTraining(), Path(output)
    items = as_queries(queries)
    check_number(items)
    check_reward(options, items, encoder)
    texts = [item.text for item in items]
    pairs_file, preferences_file = folder / "rewrites.json", folder / "preferences.json"
    if not pairs_file.exists():
        # If the base model cannot be loaded, raise the error now, and not after hours of the teacher's work.
        load_base(base)
    _claim(folder, {"base": str(base), "queries": texts, **options.model_dump(mode="json")})
    random.Random(options.seed).shuffle(items)
    n_held_out = max(round(len(items) * options.held_out_share), 1)
    held_out, rest = items[:n_held_out], items[n_held_out:]
    n_distil = max(round(len(rest) * options.distil_share), 1)

    if not pairs_file.exists():
        _write_atomically(
            pairs_file, collect_rewrites(rest[:n_distil], teacher or reader, options, progress=progress)
        )
    pairs = [(query, rewrite) for query, rewrite in json.loads(pairs_file.read_text(encoding="utf-8"))]
    models = {"distilled": distil(pairs, base, folder / "distilled", options)}
    if not preferences_file.exists():
        own = _load_rewriter(models["distilled"])
        _write_atomically(
            preferences_file,
            sample_preferences(
                rest[n_distil:], own, reader, retriever, options, encoder=encoder, progress=progress
            ),
        )
    preferences = [Preference(*item) for item in json.loads(preferences_file.read_text(encoding="utf-8"))]
    if preferences:
        models["aligned"] = align(preferences, models["distilled"], folder / "aligned", options)
    stages = _measure(held_out, models, reader, retriever, options, progress)
    helpful = [stage.name for stage in stages[1:] if stage.helps]
    report = TrainingReport(
        models[helpful[-1]] if helpful else None, stages, len(pairs), len(preferences), len(held_out)
    )
    _write_atomically(folder / "report.json", {**asdict(report), "rewriter": str(report.rewriter or "")})
    return report


def check_number(queries: Sequence[Query]) -> None:
    """Raise InputError if there are too few distinct queries to train on."""
    if (n := len(as_queries(queries))) < MIN_QUERIES:
        raise InputError(f"{n} distinct queries are too few to train on", hint=f"pass at least {MIN_QUERIES}")


def _measure(
    queries: Sequence[Query],
    models: dict[str, Path],
    reader: Reader,
    retriever: Retriever,
    options: RewriterTraining,
    progress: Progress,
) -> tuple[StageMeans, ...]:

    def try_all(programs: list[Program[TriedQuery]], rewriter: Reader | None = None) -> list[TriedQuery]:
        own = None if rewriter is None else as_reader(rewriter)
        services = Services(reader=as_reader(reader), retriever=retriever, rewriter=own)
        return run_many(programs, services, progress=progress)

    as_asked = try_all([try_query(query, query.text, options) for query in queries])
    stages = [_means("as asked", as_asked, None)]
    for name, folder in models.items():
        tried = try_all([rewrite_and_try(query, options) for query in queries], _load_rewriter(folder))
        stages.append(_means(name, tried, as_asked))
    return tuple(stages)


def _means(name: str, tried: Sequence[TriedQuery], before: Sequence[TriedQuery] | None) -> StageMeans:
    logs, judged = _log_perplexities_and_correctness(tried)
    logs_before, judged_before = _log_perplexities_and_correctness(before or ())
    finite = [(logs[place], logs_before[place]) for place in logs if place in logs_before]
    right = [(judged[place], judged_before[place]) for place in judged if place in judged_before]
    return StageMeans(
        name,
        sum(logs.values()) / len(logs) if logs else math.inf,
        paired_difference(*zip(*finite, strict=True), bounds=None) if finite else None,
        sum(judged.values()) / len(judged) if judged else None,
        paired_difference(*zip(*right, strict=True)) if right else None,
    )


def _log_perplexities_and_correctness(
    tried: Sequence[TriedQuery],
) -> tuple[dict[int, float], dict[int, float]]:
    numbered = list(enumerate(tried))
    logs = {at: math.log(trial.uncertainty) for at, trial in numbered if math.isfinite(trial.uncertainty)}
    return logs, {at: float(trial.correct) for at, trial in numbered if trial.correct is not None}


def _load_rewriter(folder: Path) -> Reader:
    from surerag.readers.local import TransformersReader

    return TransformersReader.from_pretrained(str(folder))


def _claim(folder: Path, run: dict[str, object]) -> None:
    file = folder / "run.json"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    plain = json.loads(json.dumps(run))
    if file.exists() and json.loads(file.read_text(encoding="utf-8")) != plain:
        raise ConfigurationError(
            f"{folder} belongs to a training with other queries or options", hint="choose another folder"
        )
    _write_atomically(file, plain)


def _write_atomically(file: Path, value: object) -> None:
    part = file.with_suffix(".part")
    with writing(file):
        part.write_text(json.dumps(value), encoding="utf-8")
        part.replace(file)
