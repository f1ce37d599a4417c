"""The study as tables for a terminal of eighty columns."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from surerag.evaluation.formatting import percent, percent_with_interval, plain_table
from surerag_studies.claims import claims_table
from surerag_studies.formatting import interval
from surerag_studies.seper.results import Retrievers, SePerStudy, Spread
from surerag_studies.transfer import CLAIMS, SIZES, carrying
from surerag_studies.worlds import place_of

_JUDGES = {
    "judge": "the reader itself judges which answers mean the same",
    "exact": "the world's accepted forms say which answers mean the same, so soft = hard",
}
_NO_RATINGS = ":\nit cannot follow that prompt, and is no judge in the first table"


def study_tables(study: SePerStudy) -> RenderableType:
    """Return every table of the study."""
    return Group(
        Padding(_heading(study), (0, 0, 1, 0)),
        carrying(methods_table(study), None, "correlations, and the order of measures"),
        carrying(roles_table(study), "utilities, which are planted", "values of ΔSePer"),
        carrying(ladder_table(study), "utilities, which are planted", "values of ΔSePer"),
        carrying(sampling_table(study), "that scatter shrinks with samples", "correlations"),
        carrying(retrievers_table(study.retrievers), "recall of what is planted", "values of ΔSePer"),
        carrying(costs_table(study), "numbers of prompts and samples", "tokens and times"),
        carrying(claims_table(study.claims), CLAIMS, SIZES),
    )


def _heading(study: SePerStudy) -> Text:
    return Text.assemble(
        (f"SePer on {place_of(study.regime)}", "bold"),
        f", seed {study.seed}, n = {study.n:,} questions ({study.taught:,} taught)\n",
        f"Reader {study.model}; encoder {study.encoder}; {study.samples} samples a context\n",
        f"Entailment: {_JUDGES[study.entailment]}.\n",
        f"As a judge, the reader is right on {percent_with_interval(study.judge)} % of "
        f"{study.judge.n:,} pairs.\n",
        f"Asked to rate contexts (B.2), it gives a rating {study.followed.ratings} times of "
        f"{study.followed.tried}{_NO_RATINGS if not study.followed.enough else ''}.\n",
        f"Intervals are {percent(study.confidence, 0)}, over questions.",
    )


def methods_table(study: SePerStudy) -> Table:
    """Table 2: which measure follows known utility."""
    table = plain_table("Correlation with known utility (cf. SePer, Table 2)")
    table.add_column("Difference in", no_wrap=True)
    for name in ("Single-hop", "Two-hop", "Unknown\nonly"):
        table.add_column(name, justify="right", no_wrap=True)
    for at, row in enumerate(study.methods):
        following = study.methods[at + 1 : at + 2]
        table.add_row(
            row.label,
            interval(row.single, 2),
            interval(row.two_hop, 2),
            _number(row.unknown.value, 2),
            end_section=not row.ours and bool(following) and following[0].ours,
        )
    table.caption = (
        f"Pearson, over {study.contexts:,} contexts: single passages, and whole two-hop chains. "
        "Unknown only: single-hop without the questions that the reader was taught, as in the "
        "paper. All measures but one are given the short form of the answer; that one is given every form."
    )
    return table


def roles_table(study: SePerStudy) -> Table:
    """Property 2, and what parts of a chain are worth."""
    table = plain_table("What a context is worth (ΔSePer, soft; Property 2; cf. Table 7)")
    table.add_column("Questions", no_wrap=True)
    table.add_column("Context", no_wrap=True)
    for name in ("n", "Known", "Mean ΔSePer"):
        table.add_column(name, justify="right", no_wrap=True)
    for at, row in enumerate(study.roles):
        first = at == 0 or study.roles[at - 1].questions != row.questions
        last = at + 1 < len(study.roles) and study.roles[at + 1].questions != row.questions
        table.add_row(
            row.questions if first else "",
            row.role,
            f"{row.n:,}",
            f"{row.utility:g}",
            interval(row.delta, 2, "+"),
            end_section=last,
        )
    return table


def ladder_table(study: SePerStudy) -> Table:
    """Property 3: relevance added step by step."""
    table = plain_table("Passages added in order of relevance (ΔSePer, soft; Property 3)")
    table.add_column("Context", no_wrap=True)
    for name in ("Known", "Mean ΔSePer", "Rise"):
        table.add_column(name, justify="right", no_wrap=True)
    for rung in study.ladder:
        if rung.rise is None:
            table.add_section()
            table.add_row(f"{rung.questions} questions", style="bold")
        table.add_row(
            rung.added,
            f"{rung.utility:g}",
            interval(rung.delta, 2, "+"),
            "" if rung.rise is None else interval(rung.rise, 2, "+"),
        )
    return table


def sampling_table(study: SePerStudy) -> Table:
    """Figure 3 in numbers."""
    table = plain_table("Correlation by number of samples (cf. SePer, Figure 3 and Table 4)")
    table.add_column("Kernel")
    for name in ("Samples", "Single-hop", "Two-hop", "Deviation\nof a ΔSePer"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.sampling:
        table.add_row(
            row.kernel,
            str(row.n),
            _with_deviation(row.single),
            _with_deviation(row.two_hop),
            f"{row.deviation:.3f}",
        )
    table.caption = (
        f"Means over subsets of {study.most_samples} samples; ± standard deviation over bootstrap "
        "resamples of the samples."
    )
    return table


def retrievers_table(found: Retrievers) -> Table:
    """Tables 10 and 11: retrievers of known quality."""
    table = plain_table(f"Retrievers of known quality, k = {found.k} (cf. SePer, Tables 10 and 11)")
    table.add_column("Retriever", no_wrap=True)
    table.add_column(f"Recall at {found.k}", justify="right")
    table.add_column("Mean ΔSePer", justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(row.name, percent(row.recall), interval(row.delta, sign="+"))
    table.caption = f"Spearman's rank correlation of the means: {interval(found.rank, 2)}, n = {found.n:,}."
    return table


def costs_table(study: SePerStudy) -> Table:
    """Cost of each stage."""
    table = plain_table("Cost of the study")
    table.add_column("Stage", no_wrap=True)
    for name in ("Prompts", "Samples", "Tokens\nread", "Tokens\nwritten", "Pairs\njudged", "Seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for cost in study.costs:
        counts = (cost.prompts, cost.samples, cost.prompt_tokens, cost.completion_tokens, cost.judged)
        table.add_row(cost.stage, *(f"{count:,}" for count in counts), f"{cost.seconds:.1f}")
    return table


def _with_deviation(spread: Spread) -> str:
    return f"{spread.mean:.3f} ± {_number(spread.deviation)}" if math.isfinite(spread.mean) else "n/a"


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "n/a"
