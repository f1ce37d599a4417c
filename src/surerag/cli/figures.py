"""``surerag figures``: tables and figures of the papers on a user's own corpus and runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from surerag.cli.display import console
from surerag.cli.options import with_reader
from surerag.cli.readers import ReaderChoice
from surerag.errors import InputError

figures = typer.Typer(no_args_is_help=True, help="The papers' tables and figures, on your own data.")

_Rows = Annotated[Path, typer.Argument(help="JSONL, a question a line.", exists=True, dir_okay=False)]
_Run = Annotated[
    Path,
    typer.Argument(help="Folder that `surerag evaluate` wrote.", exists=True, file_okay=False, metavar="RUN"),
]


@figures.command("clusters")
@with_reader
def clusters(
    *,
    choice: ReaderChoice,
    file: _Rows,
    label: Annotated[
        list[str] | None, typer.Option(help="Class to look at; repeatedly. Default: all that there are.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of permutations and bootstrap.")] = 0,
) -> None:
    """EDC²-RAG, Table 7: do documents of one class land in one cluster?

    A line has `question`, `contexts` (texts) and `labels` (a class for each). Without labels the reader says
    of each text alone whether it suffices for an answer: useful or noise.
    """
    from surerag.encoders import packaged_minilm
    from surerag.evaluation.consistency import Labelled, consistency_of
    from surerag.evaluation.formatting import plain_table

    rows = list(_read(file, "question", "contexts"))
    if any("labels" not in row for row in rows):
        _label(rows, choice)
    encoder = packaged_minilm()
    groups = [
        Labelled(
            encoder.encode([row["question"]], "query")[0],
            encoder.encode(row["contexts"], "document"),
            tuple(map(str, row["labels"])),
        )
        for row in rows
        if len(row["contexts"]) > 1
    ]
    wanted = label or sorted({one for group in groups for one in group.labels})
    table = plain_table("Pairs of one class in one cluster, % (Table 7)", padding=(0, 1, 0, 0))
    for name in ("Class", "n", "Found", "Random", "Found less random", "p"):
        table.add_column(name, justify="left" if name == "Class" else "right")
    for one in wanted:
        try:
            found = consistency_of(groups, one, seed=seed)
        except InputError:
            table.add_row(one, "0", "no question has two of them", "", "", "")
            continue
        table.add_row(
            one, str(found.n), _percent(found.found), _percent(found.random), _percent(found.gap),
            f"{found.p:.3f}",
        )  # fmt: skip
    console.print(table)


def _label(rows: Sequence[dict[str, Any]], choice: ReaderChoice) -> None:
    """Have the reader say of each text whether it alone suffices for an answer."""
    from surerag.prompts import SUFFICIENT, format_passages
    from surerag.types import Sampling

    reader = choice.build()
    prompts = [
        SUFFICIENT.render(passages=format_passages([text]), question=row["question"])
        for row in rows
        for text in row["contexts"]
    ]
    replies = iter(reader.generate(prompts, Sampling(max_tokens=4, trace="none")))
    for row in rows:
        row["labels"] = [
            "useful" if next(replies)[0].text.strip().casefold().startswith("yes") else "noise"
            for _ in row["contexts"]
        ]
    console.print(f"Classes as {reader.name} tells them.", markup=False, highlight=False)


@figures.command("judges")
@with_reader
def judges(
    *,
    choice: ReaderChoice,
    run: _Run,
    entailment: Annotated[
        list[str],
        typer.Option(help="exact, judge, nli or nli:MODEL; give two or more.", metavar="JUDGE"),
    ],
) -> None:
    """SePer, Figure 7 (B.4): does ΔSePer depend on the entailment model?

    The answers that `surerag evaluate` sampled are judged again by each of them; the reader is not asked
    anew. Printed is Pearson's correlation of ΔSePer between every two.
    """
    from surerag.cli.entailers import EntailmentChoice
    from surerag.entailment import JudgeEntailer
    from surerag.evaluation.agreement import rejudged
    from surerag.evaluation.formatting import plain_table

    if len(entailment) < 2:
        raise typer.BadParameter("two or more are compared", param_hint="--entailment")
    rows = list(_rows_of(run, "question", "answers", "steps", "error"))
    deltas: dict[str, NDArray[np.float64]] = {}
    for text in entailment:
        judge = EntailmentChoice.chosen(text, choice).loaded() or JudgeEntailer(choice.build())
        deltas[text] = rejudged(rows, judge)
    table = plain_table(
        f"Agreement of ΔSePer, Pearson's r, n = {len(rows):,} (Figure 7)", padding=(0, 1, 0, 0)
    )
    table.add_column("")
    for name in deltas:
        table.add_column(name, justify="right")
    for name, own in deltas.items():
        table.add_row(name, *(_correlation(own, other) for other in deltas.values()))
    console.print(table)


@figures.command("utility")
def utility(
    *,
    run: _Run,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every figure to this file.", metavar="FILE")
    ] = None,
) -> None:
    """SePer, Figures 4 to 6: what retrieval gives and takes, setting by setting.

    The settings are the systems of the run: retrievers, values of k, compressors, rerankers. Positive and
    negative are the areas of Figure 4: the mean of what was gained, and of what was lost.
    """
    from surerag.evaluation.formatting import plain_table

    found = utilities(_rows_of(run, "system", "before", "after", "error"))
    table = plain_table("Belief before and after, and its change (Figures 4 to 6)", padding=(0, 1, 0, 0))
    for name in ("System", "n", "Before", "After", "Positive", "Negative", "ΔSePer", "Worse, %"):
        table.add_column(name, justify="left" if name == "System" else "right")
    for one in found:
        table.add_row(
            one.system, str(one.n), f"{one.before:.3f}", f"{one.after:.3f}", f"{one.positive:+.3f}",
            f"{one.negative:+.3f}", f"{one.delta:+.3f} ± {one.error:.3f}", f"{100 * one.worse:.0f}",
        )  # fmt: skip
    console.print(table)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class SystemUtility:
    """One setting: the bars of Figures 4 to 6.

    Attributes:
        system: Its name.
        n: Questions measured.
        before: Mean SePer without context.
        after: Mean SePer with it.
        positive: Mean over all questions of what was gained.
        negative: Mean over all questions of what was lost.
        delta: Mean ΔSePer: their sum.
        error: Half its 95 % interval, by the normal law.
        worse: Share of questions that retrieval made worse (B.3).
    """

    system: str
    n: int
    before: float
    after: float
    positive: float
    negative: float
    delta: float
    error: float
    worse: float


def utilities(rows: Iterable[Mapping[str, Any]]) -> list[SystemUtility]:
    """Sum up the rows of a run by system, in order of appearance; rows that failed are left out."""
    by_system: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if not row["error"] and row["after"] is not None:
            by_system.setdefault(row["system"], []).append((row["before"], row["after"]))
    found = []
    for system, pairs in by_system.items():
        before, after = np.array(pairs).T
        change = after - before
        error = 1.96 * float(change.std(ddof=1)) / len(change) ** 0.5 if len(change) > 1 else float("nan")
        found.append(
            SystemUtility(
                system,
                len(change),
                float(before.mean()),
                float(after.mean()),
                float(np.maximum(change, 0).mean()),
                float(np.minimum(change, 0).mean()),
                float(change.mean()),
                error,
                float((change < 0).mean()),
            )
        )
    return found


@figures.command("rivals")
@with_reader
def rivals(
    *,
    choice: ReaderChoice,
    run: _Run,
    data: Annotated[
        Path | None,
        typer.Option(
            help="JSONL with `id` or `question`, and `utility`: what a row's contexts are known to be worth; "
            "for --judge, `contexts`.",
            exists=True,
            dir_okay=False,
            metavar="FILE",
        ),
    ] = None,
    judge: Annotated[
        bool, typer.Option("--judge", help="Ask the reader to rate each context, too (B.2); needs --data.")
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Prompts of --judge in place of ours: a TOML file, with a table judge.",
            exists=True,
            dir_okay=False,
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """SePer, Table 2: does ΔSePer follow known utility better than other measures of the same answers?

    Exact match, token F1, ROUGE-L, BLEU, BERTScore by the packaged MiniLM, perplexity and entropy are taken
    of the answers that were sampled; the reader is not asked anew, but for --judge. Without known utilities
    the measures are compared with ΔSePer.
    """
    from surerag.cli.figures_rivals import compared
    from surerag.evaluation.rivals import RatingJudge
    from surerag.prompt_files import load_prompts

    if judge and data is None:
        raise typer.BadParameter("ratings need the contexts: give --data", param_hint="--judge")
    if prompts is not None and not judge:
        raise typer.BadParameter("they are what a judge is asked: add --judge", param_hint="--prompts")
    replaced = {} if prompts is None else load_prompts(prompts).get("judge", {})
    columns = ("id", "system", "question", "answers", "steps", "error", "delta")
    known = [] if data is None else list(_read(data, *(("contexts",) if judge else ("utility",))))
    rating = RatingJudge(choice.build(), prompts=replaced) if judge else None
    console.print(compared(_rows_of(run, *columns), known, rating))


def _rows_of(folder: Path, *columns: str) -> Iterator[dict[str, Any]]:
    """Read the rows of a run, holding some at a time.

    Raises:
        InputError: If the folder holds no evaluation.
    """
    from surerag.evaluation.comparison.units import EVALUATION
    from surerag.runs.manifest import read_manifest
    from surerag.runs.run import ROWS
    from surerag.runs.tables import records_in

    for part in read_manifest(folder, EVALUATION):
        yield from records_in(folder / part.files[ROWS].name, columns)


def _read(file: Path, *needed: str) -> Iterator[dict[str, Any]]:
    """Read JSONL.

    Raises:
        InputError: If a line is no JSON object, or lacks a field.
    """
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{file}, line {number} is no JSON: {error}") from None
        missing = [name for name in needed if not isinstance(row, dict) or name not in row]
        if missing:
            raise InputError(f"{file}, line {number} has no {' and no '.join(missing)}")
        yield row


def _percent(found: Any) -> str:
    return f"{100 * found.value:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> str:
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < 3 or one[both].std() == 0 or other[both].std() == 0:
        return "n/a"
    return f"{np.corrcoef(one[both], other[both])[0, 1]:.3f}"
