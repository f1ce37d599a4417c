"""The study as tables for a terminal of eighty columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from surerag.evaluation.formatting import p_value, percent, percent_with_interval, plain_table
from surerag.evaluation.gate.tables import modes_table
from surerag.evaluation.statistics import Comparison
from surerag_studies.claims import claims_table
from surerag_studies.lazy_rag.gates import AtRate
from surerag_studies.lazy_rag.results import LatencyModel, LatencyRow, LazyRagStudy
from surerag_studies.transfer import CLAIMS, RATES, SIZES, carrying
from surerag_studies.worlds import place_of


def study_tables(study: LazyRagStudy) -> RenderableType:
    """Return every table of the study."""
    return Group(
        Padding(heading(study), (0, 0, 1, 0)),
        carrying(
            modes_table(study), "retrieval rates of the fixed modes", "accuracies, thresholds and tokens"
        ),
        carrying(kinds_table(study), None, RATES),
        *(
            carrying(separation_table(found), None, "how well entropy tells wrong answers")
            for found in [study.separation]
            if found is not None
        ),
        carrying(sweep_table(study), "that fewer questions retrieve as τ rises", RATES),
        carrying(gates_table(study), None),
        carrying(gate_costs_table(study), "numbers of calls", "AUROCs and accuracies"),
        carrying(latency_table(study.latency), "the arithmetic, and the paper's rows", "rates measured here"),
        carrying(claims_table(study.claims), CLAIMS, SIZES),
    )


def heading(study: LazyRagStudy) -> Text:
    """Name the run."""
    level = percent(study.confidence, 0)
    return Text.assemble(
        (f"L-RAG on {place_of(study.regime)}", "bold"),
        f", seed {study.seed}, n = {study.n:,}\n",
        f"Reader {study.model}; encoder {study.encoder}; k = {study.top_n}, m = {study.n_summaries}\n",
        f"Gate: {study.aggregate} entropy of the first {study.gate_tokens} tokens. Intervals are {level}.",
    )


def kinds_table(study: LazyRagStudy) -> Table:
    """Show for which questions the gate opens."""
    table = plain_table("By kind of question, at the calibrated τ (entropy in nats, shares in %)")
    table.add_column("Kind", no_wrap=True)
    for name in ("n", "Entropy", "Gate\nopens", "First\npass", "Lazy", "Standard"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.kinds:
        table.add_row(
            row.kind,
            f"{row.first.n:,}",
            "n/a" if row.entropy is None else f"{row.entropy:.3f}",
            f"{100 * row.retrieval.value:.1f}",
            f"{100 * row.first.value:.1f}",
            f"{100 * row.lazy.value:.1f}",
            f"{100 * row.standard.value:.1f}",
        )
    return table


def separation_table(found: Comparison) -> Table:
    """Entropy of wrong answers against that of right ones, the first pass completed for every question."""
    table = plain_table("Entropy of the completed first pass, wrong answers against right ones")
    table.add_column("")
    table.add_column("Value", justify="right")
    table.add_column("Interval", justify="right")
    table.add_row(f"Mean of wrong answers (n = {found.n_high:,}), nats", f"{found.mean_high:.3f}", "")
    table.add_row(f"Mean of right answers (n = {found.n_low:,}), nats", f"{found.mean_low:.3f}", "")
    table.add_row("Gap, nats", f"{found.gap.value:.3f}", f"[{found.gap.low:.3f}, {found.gap.high:.3f}]")
    table.add_row("Cohen's d", f"{found.cohens_d:.2f}", "")
    table.add_row(
        "AUROC, wrong above right",
        f"{found.auroc.value:.3f}",
        f"[{found.auroc.low:.3f}, {found.auroc.high:.3f}]",
    )
    table.add_row("Welch's t-test", f"p {p_value(found.p_welch)}", "")
    table.add_row("Mann-Whitney test", f"p {p_value(found.p_rank)}", "")
    return table


def sweep_table(study: LazyRagStudy) -> Table:
    """Lazy answering over thresholds (the paper's Table II and Figure 4)."""
    table = plain_table("Threshold sweep (cf. L-RAG, Table II)")
    for name in ("τ, nats", "Retrieval, %", "Accuracy, %"):
        table.add_column(name, justify="right")
    for point in study.sweep:
        table.add_row(
            f"{point.threshold:.4f}",
            percent_with_interval(point.retrieval),
            percent_with_interval(point.accuracy),
        )
    return table


def gates_table(study: LazyRagStudy) -> Table:
    """Accuracy under each gate where all retrieve equally often."""
    table = plain_table("Accuracy where all gates retrieve equally often, % (less that of entropy, points)")
    table.add_column("Gate", no_wrap=True)
    for at in study.gates[0].rates:
        table.add_column(f"{percent(at.rate, 0)} retrieve", justify="right", no_wrap=True)
    for row in study.gates:
        reference = row is study.gates[0]
        table.add_row(row.name, *(_accuracy(at, reference=reference) for at in row.rates))
    table.caption = (
        "Of questions that tie as many retrieve as it takes, whichever they are; paired bootstrap intervals."
    )
    return table


def gate_costs_table(study: LazyRagStudy) -> Table:
    """What each gate knows, and what a decision costs."""
    table = plain_table("What each gate knows, and what a decision costs")
    table.add_column("Gate", no_wrap=True)
    for name in ("First\nright", "AUROC for wrong\nfirst answers", "Values", "Calls", "Tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.gates:
        area = row.separation
        table.add_row(
            row.name,
            f"{100 * row.first.value:.1f}",
            "n/a" if area is None else f"{area.value:.3f} [{area.low:.3f}, {area.high:.3f}]",
            f"{row.levels:,}",
            f"{row.calls:.0f}",
            f"{row.tokens:.1f}",
        )
    table.caption = (
        "First: share of right first answers in %, greedy ones or those of the largest cluster of samples. "
        "Values: how many different ones the signal takes. The call of entropy or margin is no loss where "
        "the gate stays shut."
    )
    return table


def _accuracy(at: AtRate, *, reference: bool) -> str:
    if reference:
        return f"{100 * at.accuracy:.1f}"
    found = at.against_entropy
    interval = f"[{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    return f"{100 * at.accuracy:.1f} ({100 * found.value:+.1f})\n{interval}"


def latency_table(model: LatencyModel) -> Table:
    """Table III: the time that a gate saves a question."""
    table = plain_table(f"Time saved a question in ms, the gate costing {model.gate:.0f} (L-RAG, Table III)")
    table.add_column("Rates")
    table.add_column("Configuration", no_wrap=True)
    table.add_column("Retrieval\nrate", justify="right")
    table.add_column("Break-\neven", justify="right")
    for retrieval in model.retrieval:
        table.add_column(f"{retrieval:.0f} ms", justify="right")
    for title, rows in (("paper", model.published), ("here", model.measured)):
        table.add_section()
        for row in rows:
            table.add_row(title, *_latency_cells(row))
    return table


def _latency_cells(row: LatencyRow) -> tuple[str, ...]:
    break_even = "never" if row.break_even is None else f"{row.break_even:.0f} ms"
    savings = (f"{saving:+.0f}" for saving in row.savings)
    return (row.label, percent(row.retrieval_rate), break_even, *savings)
