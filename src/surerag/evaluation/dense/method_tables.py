"""Tables of what chunking and refinement do, and of where answers are lost."""

from __future__ import annotations

from rich.table import Table

from surerag.evaluation.dense.claims import points
from surerag.evaluation.dense.results import DenseStudy, MethodRow
from surerag.evaluation.formatting import p_value, percent_with_interval
from surerag.evaluation.lazy_rag.tables import plain_table
from surerag.evaluation.statistics import PairedDifference, Proportion


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
    table = plain_table(f"{which} questions by way of cutting, n = {n}, k = {study.k} (form of Table 3)")
    table.add_column("Pieces", no_wrap=True)
    for name in ("Accuracy, %", "Difference", *(() if certain else ("Tells all, %",))):
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
    table = plain_table(f"Uncertain questions, n = {study.uncertain} (form of Tables 1 and 4)")
    table.add_column("Method", no_wrap=True)
    for name in ("Accuracy, %", "DENSE", "Tells\nall, %", "Pas-\nsages", "Asked"):
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
    table.add_column("less")
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
