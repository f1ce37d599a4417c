"""``surerag train-rewriter`` at work: everything is looked at, then stage after stage is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surerag.cli.display import Stages, console, errors, staged
from surerag.cli.readers import ReaderChoice
from surerag.cli.rewriter_checks import check_arguments, check_data, check_machine, check_models
from surerag.cli.rewriter_costs import tell_costs
from surerag.cli.rewriter_data import Data, Models
from surerag.cli.rewriter_wanted import Wanted
from surerag.evaluation.folding import FoldingTable
from surerag.readers.protocol import Reader
from surerag.readers.scripted import ScriptedReader
from surerag.storage import check_folder
from surerag.training.rewriter import (
    Aligned,
    Distilled,
    Draw,
    HeldOut,
    align,
    distil,
    distil_from,
    measure,
    sample,
)
from surerag.training.rewriter.cards import push, write_card
from surerag.training.rewriter.formats import export_pairs, export_rewrites, read_pairs, read_rewrites
from surerag.training.rewriter.processes import is_first, wait_for_all


def run_train_rewriter(choice: ReaderChoice, teacher: ReaderChoice, wanted: Wanted) -> None:
    """Look at everything, then run the stages that were asked for, each from its files.

    Args:
        choice: The reader.
        teacher: Who rewrites in the first stage; the reader if nobody is named.
        wanted: Everything else.

    Raises:
        ConfigurationError: If something is missing, or the folder belongs to another run.
        InputError: If the queries cannot be used.
        StorageError: If the folder cannot be written, or is too small.
        ServiceError: If a model fails.
        MissingExtraError: If a package is not installed.
    """
    console.quiet = not is_first()
    check_arguments(choice, wanted)
    if not wanted.dry_run:
        check_folder(wanted.output)
    data = Data(wanted)
    drawn = check_data(data, wanted)
    if wanted.dry_run:
        tell_costs(data, drawn, wanted, choice, teacher)
        return
    check_machine(data, wanted)
    models = Models(choice, teacher, wanted)
    with _resumable(wanted.output), staged() as stages:
        with stages.working("Loading models"):
            wanted = check_models(models, wanted) if is_first() else wanted
        _Run(data, drawn, models, wanted, stages).all()


class _Run:
    """The stages, one after the other."""

    def __init__(
        self, data: Data, drawn: Draw | None, models: Models, wanted: Wanted, stages: Stages
    ) -> None:
        self._data, self._drawn, self._models = data, drawn, models
        self._wanted, self._stages = wanted, stages

    def all(self) -> None:
        """Run what was asked for."""
        wanted = self._wanted
        distilled = self._distil() if wanted.does("distil") else None
        if wanted.does("sample") and is_first():
            self._sample()
        wait_for_all(cpu=wanted.align.fine_tuning.device == "cpu")
        aligned = self._align() if wanted.does("align") else None
        if not is_first():
            return
        held_out = self._measure() if wanted.does("measure") else None
        self._write_cards(distilled, aligned, held_out)
        made = aligned or distilled
        if made is None:
            return
        _say(
            f"The rewriter is in {made.model}:\nUncertaintyRewriter(reader, retriever, "
            f"rewriter=TransformersReader.from_pretrained({str(made.model)!r}))"
        )
        if wanted.push is not None:
            _say(f"Pushed to {push(made.model, wanted.push)}.")

    def _distil(self) -> Distilled:
        wanted, folder = self._wanted, self._wanted.output / "distil"
        prompt = wanted.distil.prompts["rewrite"]
        if wanted.own_rewrites is not None:
            done = distil_from(
                read_rewrites(wanted.own_rewrites, prompt),
                self._data.base,
                folder,
                wanted.distil,
                on_change=wanted.on_change,
                progress=self._stages,
            )
        else:
            done = distil(
                () if self._drawn is None else self._drawn.distil,
                self._models.teacher if is_first() else ScriptedReader([]),  # the others ask nobody
                self._data.base,
                folder,
                wanted.distil,
                on_change=wanted.on_change,
                progress=self._stages,
            )
        skipped = f" {done.failures:,} queries failed and were left out." if done.failures else ""
        _say(
            f"{done.replies}.{skipped}\nDistilled from {done.examples:,} rewrites of {done.queries:,} "
            f"queries: {done.learnt}.\n{done.model}"
        )
        if wanted.export:
            export_rewrites(done.rewrites, folder / "rewrites.jsonl", prompt)
        return done

    def _sample(self) -> None:
        wanted = self._wanted
        with self._stages.working("Indexing"):
            retriever = self._data.retriever
        done = sample(
            () if self._drawn is None else self._drawn.sample,
            wanted.distilled,
            self._models.reader,
            retriever,
            wanted.output / "sample",
            wanted.sample,
            encoder=self._data.encoder,
            is_correct=self._data.is_correct,
            corpus=self._data.corpus,
            on_change=wanted.on_change,
            progress=self._stages,
        )
        skipped = f" {done.failures:,} queries failed and were left out." if done.failures else ""
        _say(f"Tried {done.rewrites:,} rewrites of {done.queries:,} queries: {done.samples}.{skipped}")

    def _align(self) -> Aligned:
        wanted, prompt = self._wanted, self._wanted.align.prompts["rewrite"]
        done = align(
            wanted.sampled if wanted.own_pairs is None else read_pairs(wanted.own_pairs, prompt),
            wanted.distilled,
            wanted.aligned,
            wanted.align,
            on_change=wanted.on_change,
            progress=self._stages,
        )
        _say(f"Aligned by {done.triplets:,} pairs of {done.queries:,} queries: {done.learnt}.\n{done.model}")
        if wanted.export:
            export_pairs(done.pairs, wanted.aligned / "pairs.jsonl", prompt)
        return done

    def _measure(self) -> HeldOut | None:
        wanted = self._wanted
        if self._drawn is None or not self._drawn.held_out:
            return None
        made = {"distilled": Path(wanted.distilled), "aligned": wanted.aligned / "model"}
        rewriters: dict[str, Reader | str | Path] = {
            "base": self._data.base,
            **{name: folder for name, folder in made.items() if folder.is_dir()},
        }
        found = measure(
            self._drawn.held_out,
            rewriters,
            self._models.reader,
            self._data.retriever,
            wanted.output / "held-out",
            wanted.sample,
            is_correct=self._data.is_correct,
            corpus=self._data.corpus,
            progress=self._stages,
        )
        heading, *rows = found.lines()
        table = FoldingTable(title=f"{found.n:,} held-out queries", title_justify="left")
        for name in heading:
            table.add_column(name, justify="right" if name else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        _say("Changes are paired, against the row above, with 95 % intervals.")
        return found

    def _write_cards(
        self, distilled: Distilled | None, aligned: Aligned | None, held_out: HeldOut | None
    ) -> None:
        prompt = self._wanted.distil.prompts["rewrite"].text
        if distilled is not None and distilled.learnt is not None:
            write_card(distilled.model, self._data.base, distilled.learnt, prompt=prompt, held_out=held_out)
        if aligned is not None:
            write_card(
                aligned.model,
                self._wanted.base or self._wanted.distilled,
                aligned.learnt,
                prompt=prompt,
                reward=self._wanted.align.reward,
                held_out=held_out,
            )


@contextmanager
def _resumable(output: Path) -> Iterator[None]:
    """Say on a break-off what is kept and how to go on: on standard error, for the output may be a pipe."""
    try:
        yield
    except KeyboardInterrupt:
        journals = sorted(output.glob("*/journal.jsonl"))
        kept = [f"{file.parent.name}: {_answers_in(file):,} answers" for file in journals]
        kept += [f"{folder.parent.name}: a model" for folder in sorted(output.glob("*/model"))]
        told = f" ({'; '.join(kept)})" if kept else ""
        errors.print(
            f"What was answered and trained is kept in {output}{told}. The same command goes on from here.",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        raise


def _answers_in(journal: Path) -> int:
    """Count what was answered of queries; a stage keeps texts of passages and batches besides."""
    with journal.open("rb") as lines:
        return sum(b'"answer":["' in line[:80] or b'"answer":[{' in line[:80] for line in lines)


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


__all__ = ["Wanted", "run_train_rewriter"]
