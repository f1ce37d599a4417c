"""A gate in tables, figures and on a page: complete, and safe to open."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from surerag import LazyRAG, Passage, ScriptedReader
from surerag.evaluation.gate import GateQuestion, GateReport
from surerag.evaluation.gate.plots import write_plots
from surerag.evaluation.gate.tables import gate_table, modes_table
from surerag.evaluation.gate.timing import Timings, latency_table, measure
from surerag.evaluation.page import Example, Figure, render_page
from tests.evaluation.gate.imagined import imagined_records, imagined_report


@pytest.fixture(scope="module")
def report() -> GateReport:
    return imagined_report()


def test_figures_are_written_and_repeat(report: GateReport, tmp_path: Path) -> None:
    files = write_plots(report, tmp_path)
    assert [file.name for file in files] == ["trade_off.svg", "entropy.svg", "sensitivity.svg", "latency.svg"]
    first = [file.read_bytes() for file in files]
    assert all(file.with_suffix(".png").stat().st_size > 10_000 for file in files)
    assert [file.read_bytes() for file in write_plots(report, tmp_path)] == first


class Found:
    """A retriever that finds one passage, with markup in it."""

    def retrieve(self, query: str, k: int) -> list[Passage]:
        return [Passage("<script>alert('x')</script> {{ 7 * 7 }}", id="p", metadata={"path": "<a>.md"})]


def lazy(**settings: Any) -> LazyRAG:
    return LazyRAG(
        ScriptedReader(lambda _: "<b>Velm</b>", entropy=0.4),
        retriever=Found(),
        summaries="A <i>summary</i>.",
        **settings,
    )


def test_page_escapes_documents_answers_and_names(report: GateReport, tmp_path: Path) -> None:
    result = lazy(threshold=0.1).run("Where <u>exactly</u>?")
    page = render_page(
        title="<title>",
        lead="lead",
        examples=[Example(result, gold="<gold>", correct=False)],
        report=report,
        latency=latency_table(report, Timings(4, 10, 40, 50, 45, 20, 70, 5)),
        figures=[Figure(write_plots(report, tmp_path)[0], "<caption>")],
    )
    for raw in ("<script>", "<b>Velm", "<i>summary", "<u>", "<gold>", "<caption>", "<a>.md"):
        assert raw not in page
    assert "&lt;script&gt;" in page
    assert "{{ 7 * 7 }}" in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_page_without_a_report_shows_the_questions(report: GateReport) -> None:
    page = render_page(title="t", lead="l", examples=[Example(lazy(threshold=1.0).run("Where?"))])
    assert "not retrieved" in page
    assert "Accuracy" not in page


def test_latency_adds_retrieval_as_often_as_a_mode_retrieves(report: GateReport) -> None:
    table = latency_table(report, Timings(4, 10, 40, 50, 45, shut=20, opened=70, retrieval=5))
    rows = {row.label: row for row in table.modes}
    assert rows["No retrieval"].assumed == (10, 10, 10)
    assert rows["Standard RAG"].assumed == (240, 540, 1040)
    assert rows["Oracle"].measured == 45
    calibrated = next(row for row in report.modes if row.label == "L-RAG (calibrated)")
    assert calibrated.retrieval is not None
    rate = calibrated.retrieval.value
    assert rows["L-RAG (calibrated)"].measured == pytest.approx(20 * (1 - rate) + 75 * rate)


def judged(text: str) -> GateQuestion:
    return GateQuestion(text, text, bool, gold=(Passage("gold"),))


def test_timing_asks_every_mode_about_every_question() -> None:
    rag = lazy()
    timings = measure(rag, [judged("Where?"), judged("Who?")])
    assert timings.n == 2
    asked = [prompt for call in rag.reader.history for prompt in call.prompts if call.verb != "cancel"]
    # None, standard, strong, oracle; lazy shut begins and finishes, lazy opened begins and generates.
    assert sum("Who?" in prompt for prompt in asked) == 8


def test_a_reader_that_is_always_wrong_can_be_drawn_and_shown(tmp_path: Path) -> None:
    wrong = [replace(one, first=replace(one.first, correct=False)) for one in imagined_records(60)]
    report = imagined_report(wrong)
    assert report.separation is None
    assert len(write_plots(report, tmp_path)) == 4
    assert gate_table(report).row_count == 2


def test_the_gate_is_shown_with_what_it_saves_costs_and_knows(report: GateReport) -> None:
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(modes_table(report), gate_table(report))
    shown = capture.get()
    rate = report.calibrated.retrieval
    assert rate is not None
    assert report.separation is not None
    for figure in (f"{100 * (1 - rate.value):.1f} %", f"{report.separation.auroc.value:.3f}", "of seed 8"):
        assert figure in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
