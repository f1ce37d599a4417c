"""Everything that ``surerag train-rewriter`` needs is looked at before anything is paid for."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from surerag.cli.display import console
from surerag.cli.readers import ReaderChoice
from surerag.cli.rewriter_data import Data, Models, measured_by
from surerag.cli.rewriter_wanted import Wanted
from surerag.errors import ConfigurationError, InputError, StorageError
from surerag.extras import extra
from surerag.methods.dynqr.component import require_metric
from surerag.training.rewriter import Draw, Query

_GIB = 2**30


def check_arguments(choice: ReaderChoice, wanted: Wanted) -> None:
    """Refuse what cannot work, before anything is read or loaded.

    Raises:
        ConfigurationError: If something is missing.
        InputError: If a file is not there.
    """
    if wanted.asks_queries and (wanted.file is None) == (wanted.world is None):
        raise ConfigurationError(
            "queries come from a file or from a closed world", hint="give either FILE or --world SEED"
        )
    if wanted.world is None and wanted.does("distil") and wanted.base is None:
        raise ConfigurationError(
            "no base was named", hint="add --base with the Hugging Face id or path of the model to be trained"
        )
    for path in (wanted.file, wanted.documents, wanted.own_rewrites, wanted.own_pairs, wanted.samples):
        if path is not None and not path.exists():
            raise InputError(f"{path} is not there", hint="check the path")
    sources = [wanted.documents, wanted.retriever, wanted.world]
    if wanted.searches and sum(source is not None for source in sources) != 1:
        raise ConfigurationError(
            "rewrites are tried on one corpus",
            hint="give one of --documents PATH, --retriever MODULE:FUNCTION and --world SEED",
        )
    if wanted.world is None and choice.is_embedded and wanted.asks_queries:
        raise ConfigurationError(
            "your own queries need a model of your own: the embedded reader knows its closed world only",
            hint="add --model with a Hugging Face id or path, or --base-url with an OpenAI-compatible server",
        )
    if wanted.rewriter is None and wanted.stage in ("sample", "align", "measure"):
        _need(Path(wanted.distilled).is_dir(), wanted.distilled, "distil", "--rewriter")
    if wanted.stage == "align" and wanted.own_pairs is None:
        _need(wanted.sampled.is_file(), str(wanted.sampled), "sample", "--samples")


def check_data(data: Data, wanted: Wanted) -> Draw | None:
    """Read queries and corpus, look at the base, and leave out what it cannot read.

    Raises:
        ConfigurationError: If gold answers, base or retriever are missing or cannot be used.
        InputError: If a file cannot be used.
    """
    drawn = data.drawn if wanted.asks_queries else None
    if drawn is not None:
        console.print(f"{drawn}.", highlight=False, markup=False)
        needs_golds = wanted.does("sample") and wanted.align.reward in ("answer", "retrieval")
        if needs_golds and not any(query.golds for query in drawn.sample):
            raise ConfigurationError(
                f"the reward {wanted.align.reward!r} needs gold answers, and no query has some",
                hint="give a column 'answers', or take --reward uncertainty or relevance",
            )
    if wanted.searches:
        _ = data.retriever if wanted.retriever is not None else data.passages
    if wanted.does("distil"):
        drawn = _readable(data, wanted, drawn)
    return drawn


def check_models(models: Models, wanted: Wanted) -> Wanted:
    """Load reader and teacher, and refuse a reader that cannot tell what the reward needs.

    Raises:
        CapabilityError: If it cannot.
        ConfigurationError: If a model cannot be loaded.
        ServiceError: If a server does not answer.
    """
    if wanted.searches:
        sampling = measured_by(wanted, models.reader)
        if sampling.metric is not None:
            require_metric(sampling.metric, models.reader)
        elif wanted.sample.metric is not None:
            console.print(f"{models.reader.name} tells no uncertainty; {wanted.align.reward} needs none.")
        wanted = replace(wanted, sample=sampling)
    if wanted.does("distil") and wanted.own_rewrites is None:
        _ = models.teacher
    return wanted


def check_machine(data: Data, wanted: Wanted) -> None:
    """Make sure that this machine can train as is wanted, and that checkpoints and models fit on its disk.

    Raises:
        ConfigurationError: If it has not what is needed.
        MissingExtraError: If a package is not installed.
        StorageError: If the disk is too small.
    """
    stages = [
        options.fine_tuning
        for stage, options in (("distil", wanted.distil), ("align", wanted.align))
        if wanted.does(stage)  # type: ignore[arg-type]  # a name of a stage
    ]
    if not stages:
        return
    with extra("train"):
        from surerag.training.rewriter import bases
        from surerag.training.rewriter.sizes import disk_of, size_of
    for tuning in stages:
        bases.check_machine(tuning)
    start = data.base if wanted.does("distil") else wanted.distilled
    size = size_of(start, trust_remote_code=stages[0].trust_remote_code)
    needed, free = max(disk_of(size, tuning) for tuning in stages), shutil.disk_usage(wanted.output).free
    if needed > free:
        raise StorageError(
            f"checkpoints and models take {needed / _GIB:.1f} GiB, and {wanted.output} has {free / _GIB:.1f}",
            hint="write to another disk, or train adapters with --lora",
        )


def _readable(data: Data, wanted: Wanted, drawn: Draw | None) -> Draw | None:
    with extra("train"):
        from surerag.training.rewriter.sizes import check_base
    tuning, options = wanted.distil.fine_tuning, wanted.distil

    def fitting(queries: tuple[Query, ...]) -> tuple[Query, ...]:
        prompts = [options.prompts["rewrite"].render(query=query.text) for query in queries]
        long = set(check_base(data.base, tuning, prompts, wanted.sample.rewrite_tokens))
        return tuple(query for place, query in enumerate(queries) if place not in long)

    if drawn is None:
        fitting(())
        return None
    kept = drawn._replace(
        distil=fitting(drawn.distil), sample=fitting(drawn.sample), held_out=fitting(drawn.held_out)
    )
    if left_out := drawn.drawn - kept.drawn:
        console.print(f"{left_out:,} queries are too long for the base, and were left out.", highlight=False)
    return kept


def _need(there: bool, what: str, stage: str, option: str) -> None:
    if not there:
        raise ConfigurationError(
            f"{what} is not there", hint=f"run --stage {stage} first, or name it with {option}"
        )
