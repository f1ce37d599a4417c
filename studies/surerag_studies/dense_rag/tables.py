"""The study as tables for a terminal of eighty columns."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.formatting import p_value, percent, percent_with_interval, plain_table
from surerag.evaluation.gaps import GapRow
from surerag.evaluation.statistics import Proportion
from surerag_studies.claims import claims_table
from surerag_studies.dense_rag.results import DenseStudy, MethodRow, Understanding
from surerag_studies.formatting import points
from surerag_studies.transfer import CLAIMS, RATES, SIZES, carrying
from surerag_studies.worlds import place_of

_JUDGES = {
    "judge": "the reader itself judges which answers mean the same",
    "exact": "the world's accepted forms say which answers mean the same",
}
_UNDECIDED = (
    "Undecided: the interval holds 0, or the p-value is not small after correction for the number of "
    "comparisons."
)
_SHOWN = 12
"""Thresholds that a table shows; every one is in the JSON."""


def study_tables(study: DenseStudy) -> RenderableType:
    """Return every table of the study."""
    found = carrying(retrievers_table(study), "which contexts are complete")
    parts: list[RenderableType] = [Padding(_heading(study), (0, 0, 1, 0)), found]
    for one in study.measured:
        parts += [
            carrying(intervals_table(one), None, RATES),
            carrying(thresholds_table(one, study.threshold), None, RATES),
        ]
    parts += [carrying(table, None) for table in (*cuts_tables(study), *methods_tables(study))]
    parts.append(carrying(diagnosis_table(study), None, "where answers are lost, and how often"))
    costs = carrying(costs_table(study), "numbers of requests", "tokens and times")
    claims = carrying(claims_table(study.claims, undecided=_UNDECIDED), CLAIMS, SIZES)
    return Group(*parts, costs, claims)


def _heading(study: DenseStudy) -> Text:
    return Text.assemble(
        (f"DENSE-RAG on {place_of(study.regime)}", "bold"),
        f", seed {study.seed}, n = {study.n:,} questions\n",
        f"Reader {study.model}; encoder {study.encoder}; k = {study.k} of {study.pool} retrieved\n",
        f"Corpus: {study.corpus:,} passages, {percent(study.redundancy, 0)} of them repeat others, "
        f"{study.outdated} are outdated.\n",
        f"Entailment: {_JUDGES[study.entailment]}.\n",
        f"As a judge, the reader is right on {percent_with_interval(study.judge)} % of "
        f"{study.judge.n:,} pairs.\n",
        f"Chunks: T_max = {study.t_max} tokens (estimated), the corpus' longest passage (512 tokens in the "
        f"paper); τ = {study.tau:.3f}, the median of this corpus and encoder (0.6 in the paper).\n",
        f"Certain: DENSE up to {study.threshold:g} nats. Intervals are {percent(study.confidence, 0)}, over "
        "questions; differences are in percentage points.",
    )


def retrievers_table(study: DenseStudy) -> Table:
    """Retrievers, and the quality of their contexts."""
    table = plain_table(f"Contexts of mixed quality: retrievers took turns, k = {study.k}")
    table.add_column("Retriever", no_wrap=True)
    for name in ("n", "Com-\nplete, %", "Accuracy, %", "Uncer-\ntain, %", "Certain −\nuncertain"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.retrievers:
        table.add_row(
            row.name,
            str(row.accuracy.n),
            f"{100 * row.told.value:.1f}",
            percent_with_interval(row.accuracy),
            f"{100 * row.uncertain.value:.1f}",
            "n/a" if row.gap is None else points(row.gap, digits=0),
        )
    table.caption = "Complete: the k passages state every fact that the answer follows from."
    return table


def intervals_table(one: Understanding) -> Table:
    """Figure 2."""
    table = plain_table(f"Accuracy by DENSE, k = {one.k} (cf. Figure 2), n = {one.n:,}")
    table.add_column("DENSE, nats", no_wrap=True)
    for name in ("n", "Accuracy, %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in one.intervals:
        bar = "█" * round(30 * row.accuracy.value)
        high = "" if math.isinf(row.high) else f"{row.high:g}"
        name = f"{row.low:g} to {high}" if high else f"above {row.low:g}"
        table.add_row(name, str(row.accuracy.n), percent_with_interval(row.accuracy), bar)
    fall = one.trend.correlation
    test = "no trend to test: all are alike"
    if math.isfinite(fall.value):
        test = (
            f"r = {fall.value:+.3f} [{fall.low:+.3f}, {fall.high:+.3f}], z = {one.trend.z:.2f}, "
            f"p {p_value(one.trend.p)} (Cochran and Armitage, one-sided)"
        )
    table.caption = (
        f"Trend: {test}. Accuracy of the contexts as they are: {percent_with_interval(one.unchanged)} %; "
        f"with one passage rephrased {points(one.edited)}, with all of them {points(one.rephrased)} points."
    )
    return table


def thresholds_table(one: Understanding, threshold: float) -> Table:
    """Figures 3 and 4."""
    rows = shown_thresholds(one, threshold)
    title = f"Certain against uncertain, k = {one.k} (cf. Figures 3 and 4)"
    table = plain_table(title)
    table.add_column("Threshold", justify="right", no_wrap=True)
    for name in ("n", "Certain, %", "n", "Uncertain, %", "Gap, points"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.threshold:.3f}",
            str(row.certain.n),
            f"{100 * row.certain.value:.1f}",
            str(row.uncertain.n),
            f"{100 * row.uncertain.value:.1f}",
            points(row.gap),
            style="bold" if row is one.gap else None,
        )
    main = one.gap
    table.caption = (
        f"DENSE takes {len(one.thresholds)} values that separate these questions; {len(rows)} rows are "
        "shown, all are in the JSON. "
    )
    if main is not None:
        table.caption += (
            f"Bold: the method's threshold; certain {percent_with_interval(main.certain)} %, "
            f"uncertain {percent_with_interval(main.uncertain)} %."
        )
    return table


def shown_thresholds(one: Understanding, threshold: float) -> list[GapRow]:
    """Return the method's threshold, and of all others as many as a table can hold, evenly."""
    rows = list(one.thresholds)
    if len(rows) > _SHOWN:
        rows = [rows[round(at * (len(rows) - 1) / (_SHOWN - 1))] for at in range(_SHOWN)]
    if one.gap is not None:
        rows = [*rows, one.gap]
    return sorted(rows, key=lambda row: row.threshold)


def costs_table(study: DenseStudy) -> Table:
    """Cost of each stage."""
    table = plain_table("Cost of the study")
    table.add_column("Stage", no_wrap=True)
    for name in ("Prompts", "Tokens", "Pairs judged", "Seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for cost in study.costs:
        counts = (cost.prompts, cost.prompt_tokens, cost.judged)
        table.add_row(cost.stage, *(f"{count:,}" for count in counts), f"{cost.seconds:.1f}")
    table.caption = "Requests that were answered before are neither repeated nor counted."
    return table


def cuts_tables(study: DenseStudy) -> list[Table]:
    """Table 3, for certain questions and for uncertain ones."""
    tables = [_cuts(study, which) for which in ("Certain", "Uncertain")]
    tables[-1].caption = (
        "The k pieces nearest to the question, of the documents behind what was retrieved. Ranked anew: the "
        "same passages, in the encoder's order. Fixed, half: half of T_max, sharing an eighth with the piece "
        "before. Adaptive: semantic where a question is uncertain. Differences are to the first row."
    )
    return tables


def _cuts(study: DenseStudy, which: str) -> Table:
    certain = which == "Certain"
    rows = [
        (row.name, row.certain, row.on_certain, None)
        if certain
        else (row.name, row.uncertain, row.on_uncertain, row.told)
        for row in study.cuts
    ]
    n = next((accuracy.n for _, accuracy, _, _ in rows if accuracy is not None), 0)
    table = plain_table(f"{which} questions by way of cutting, n = {n}, k = {study.k} (cf. Table 3)")
    table.add_column("Pieces", no_wrap=True)
    for name in ("Accuracy, %", "Difference", *(() if certain else ("Complete, %",))):
        table.add_column(name, justify="right", no_wrap=True)
    for name, accuracy, change, told in rows:
        table.add_row(name, _rate(accuracy), _change(change), *(() if certain else (_rate(told),)))
    return table


def methods_tables(study: DenseStudy) -> list[Table]:
    """Tables 1 and 4; none where no question is uncertain."""
    if not study.methods:
        return []
    return [_methods(study), _comparisons(study)]


def _methods(study: DenseStudy) -> Table:
    table = plain_table(f"Uncertain questions, n = {study.uncertain} (cf. Tables 1 and 4)")
    table.add_column("Method", no_wrap=True)
    for name in ("Accuracy, %", "DENSE", "Com-\nplete, %", "Pas-\nsages", "Asked"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.methods:
        table.add_row(row.name, *_cells(row))
    table.caption = (
        f"Why refinement ended: {', '.join(f'{reason} {count}' for reason, count in study.stops)}. "
        "Asked: contexts that the reader answered from or judged."
    )
    return table


def _cells(row: MethodRow) -> tuple[str, ...]:
    score, asked = ("" if value is None else f"{value:.2f}" for value in (row.score, row.asked))
    told = f"{100 * row.told.value:.1f}"
    return percent_with_interval(row.accuracy), score, told, f"{row.passages:.1f}", asked


def _comparisons(study: DenseStudy) -> Table:
    found = [(row.name, one) for row in study.methods for one in row.against]
    table = plain_table("Compared on the same questions")
    table.add_column("Method", min_width=15)
    table.add_column("vs")
    for name in ("Points", "Gained,\nlost", "p, Holm"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, one in found:
        table.add_row(
            name,
            one.other,
            points(one.difference),
            f"{one.gained}, {one.lost}",
            p_value(one.p_corrected).removeprefix("= "),
        )
    table.caption = (
        f"Exact sign tests, corrected for all {len(found)} comparisons (Holm); the intervals are not. "
        "Uncorrected p-values are in the JSON."
    )
    return table


def diagnosis_table(study: DenseStudy) -> Table:
    """Where answers are lost."""
    table = plain_table("Where answers are lost")
    table.add_column("Part", no_wrap=True)
    table.add_column("What")
    table.add_column("%", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    for at, row in enumerate(study.diagnosis):
        first = at == 0 or study.diagnosis[at - 1].about != row.about
        last = at + 1 < len(study.diagnosis) and study.diagnosis[at + 1].about != row.about
        table.add_row(
            row.about if first else "",
            row.what,
            _rate(row.share),
            "0" if row.share is None else f"{row.share.n:,}",
            end_section=last,
        )
    table.caption = (
        "Candidates: uncertain questions that the reader does not know by heart. Reader and rephraser: all "
        "questions. Judge: pairs of different texts, against the world's accepted forms. The rest: the full "
        "method on uncertain questions."
    )
    return table


def _rate(found: Proportion | None) -> str:
    return "n/a" if found is None else percent_with_interval(found)


def _change(found: PairedDifference | None) -> str:
    return "" if found is None else points(found)
