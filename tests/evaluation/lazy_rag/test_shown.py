"""Tables, figures, page and JSON of one study: complete, consistent, and safe to open."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from surerag import LazyRAG, Passage, ScriptedReader
from surerag.evaluation.lazy_rag.plots import write_plots
from surerag.evaluation.lazy_rag.results import LazyRagStudy
from surerag.evaluation.lazy_rag.tables import study_tables
from surerag.evaluation.lazy_rag.timing import Timings, latency_table, measure
from surerag.evaluation.page import Example, Figure, render_page
from surerag.evaluation.serialise import to_json
from tests.evaluation.synthetic import imagined_records, imagined_study


@pytest.fixture(scope="module")
def study() -> LazyRagStudy:
    return imagined_study()


def shown(study: LazyRagStudy, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(study_tables(study))
    return capture.get()


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    if isinstance(value, str):
        return [float(number) for number in re.findall(r"\d+\.?\d*(?:e-\d+)?", value)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_every_number_shown_is_in_the_json(study: LazyRagStudy) -> None:
    stored = json.loads(to_json(study))
    del stored["records"]
    # Shown figures are rounded, shares as percentages: compare as they are written.
    known = {
        text
        for number in numbers(stored)
        for scale in (1, 100)
        for text in (*(f"{abs(number) * scale:.{digits}f}" for digits in range(5)), f"{number:.1e}")
    }
    body = re.sub(r"L-RAG|seed \d+|Tables? I+|\(form of[^)]*\)", "", shown(study)).replace(",", "")
    missing = [token for token in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", body) if token not in known]
    assert missing == []


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_the_terminal(study: LazyRagStudy, width: int) -> None:
    text = shown(study, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_json_writes_null_for_what_json_lacks() -> None:
    records = imagined_records()
    silent = replace(records[0], entropy=math.inf, first=replace(records[0].first, correct=False))
    stored = json.loads(to_json(imagined_study([silent, *records[1:]])), parse_constant=pytest.fail)
    assert stored["records"][0]["entropy"] is None
    assert stored["n"] == 600


def test_figures_are_written_and_repeat(study: LazyRagStudy, tmp_path: Path) -> None:
    files = write_plots(study, tmp_path)
    assert [file.name for file in files] == ["trade_off.svg", "entropy.svg", "sensitivity.svg", "latency.svg"]
    first = [file.read_bytes() for file in files]
    assert all(file.with_suffix(".png").stat().st_size > 10_000 for file in files)
    assert [file.read_bytes() for file in write_plots(study, tmp_path)] == first


def test_study_of_a_reader_that_is_always_wrong_can_be_shown(tmp_path: Path) -> None:
    wrong = [replace(one, first=replace(one.first, correct=False)) for one in imagined_records(60)]
    study = imagined_study(wrong)
    assert "too few right" in shown(study)
    assert len(write_plots(study, tmp_path)) == 4


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


def test_page_escapes_documents_answers_and_names(study: LazyRagStudy, tmp_path: Path) -> None:
    result = lazy(tau=0.1).run("Where <u>exactly</u>?")
    page = render_page(
        title="<title>",
        lead="lead",
        examples=[Example(result, gold="<gold>", correct=False)],
        study=study,
        latency=latency_table(study, Timings(4, 10, 40, 50, 45, 20, 70, 5)),
        figures=[Figure(write_plots(study, tmp_path)[0], "<caption>")],
    )
    for raw in ("<script>", "<b>Velm", "<i>summary", "<u>", "<gold>", "<caption>", "<a>.md"):
        assert raw not in page
    assert "&lt;script&gt;" in page
    assert "{{ 7 * 7 }}" in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_page_without_a_study_shows_the_questions(study: LazyRagStudy) -> None:
    page = render_page(title="t", lead="l", examples=[Example(lazy(tau=1.0).run("Where?"))])
    assert "not retrieved" in page
    assert "Accuracy" not in page


def test_latency_adds_retrieval_as_often_as_a_mode_retrieves(study: LazyRagStudy) -> None:
    table = latency_table(study, Timings(4, 10, 40, 50, 45, shut=20, opened=70, retrieval=5))
    rows = {row.label: row for row in table.modes}
    assert rows["No retrieval"].assumed == (10, 10, 10)
    assert rows["Standard RAG"].assumed == (240, 540, 1040)
    assert rows["Oracle"].measured == 45
    calibrated = next(row for row in study.modes if row.label == "L-RAG (calibrated)")
    assert calibrated.retrieval is not None
    rate = calibrated.retrieval.value
    assert rows["L-RAG (calibrated)"].measured == pytest.approx(20 * (1 - rate) + 75 * rate)


def test_timing_asks_every_mode_about_every_question() -> None:
    rag = lazy()
    timings = measure(rag, ["Where?", "Who?"], [[Passage("gold")], [Passage("gold")]])
    assert timings.n == 2
    asked = [prompt for call in rag.reader.history for prompt in call.prompts if call.verb != "cancel"]
    # None, standard, strong, oracle; lazy shut begins and finishes, lazy opened begins and generates.
    assert sum("Who?" in prompt for prompt in asked) == 8
