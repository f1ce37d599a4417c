"""Every table and every figure of the pages comes from a summary, a function, or a named place."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from studies import drawings, pages

ROOT = pages.ROOT
SOURCED = [
    page
    for page in pages.pages()
    if page.parent.name in ("evidence", "methods")
    or page.stem
    in ("README", "calibrate", "compare", "cost", "costs", "defaults", "expect", "glossary", "papers")
    or page == ROOT / "docs" / "index.md"
]
"""Pages on which no figure may stand in a sentence without a source."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", pages.pages(), ids=named)
def test_pages_show_what_the_summaries_hold(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert pages.filled(text) == text


def test_every_table_has_a_caption_and_every_caption_a_table() -> None:
    texts = [page.read_text(encoding="utf-8") for page in pages.pages()]
    shown = {name for text in texts for name in re.findall(r"<!-- table ([^>]+?)(?: only [^>]*)? -->", text)}
    assert shown == {*pages.CAPTIONS, pages.LEGEND}


def test_the_page_of_commands_has_the_command_of_every_summary() -> None:
    text = pages.README.read_text(encoding="utf-8")
    assert pages.with_commands(text) == text


@pytest.mark.parametrize("page", SOURCED, ids=named)
def test_every_figure_in_a_sentence_has_a_source(page: Path) -> None:
    assert pages.bare_figures(page.read_text(encoding="utf-8")) == []


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"system": "plain", "n": 200, "right": [50.0, 43.1, 56.9], "calls": 1.0, "exact": 0.25},
        {"system": "a, b", "n": 200, "difference": [-1.5, -3.0, 0.1], "calls": 1.83, "tokens": 1410.2},
    ]
    summary = {"table": "gates", "reader": "org/model", "date": "2026-11-26", "seed": 7, "rows": rows}
    claim = {"system": "it shrinks", "Found": "to 5 to 8 % of 90", "right, %": "63.7 [56.2, 70.6]"}
    study = {"Claims": [claim], "date": "2026-11-26"}
    for name, content in (("one", summary), ("study", study)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(pages, "RESULTS", (tmp_path,))


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("It is 1 %. <!-- from one / plain / right -->", "It is 50.0 %"),
        ("It is 1 [0, 2] %. <!-- from one / plain / right -->", "50.0 [43.1, 56.9] %"),
        ("Of 9 it is +1 less. <!-- from one / plain / n; a, b / difference -->", "Of 200 it is −1.5 less"),
        ("It takes 9.0 calls and 1,000. <!-- from one / a, b / calls; tokens -->", "1.8 calls and 1,410"),
        ("It takes 9 calls. <!-- from one / a, b / calls -->", "It takes 2 calls"),
        ("In 3 % it is so. <!-- from one / plain / exact -->", "In 25 %"),
        ("- In 3.0 it is.\n- In 3 it is. <!-- from one / run / seed -->", "- In 3.0 it is.\n- In 7 it is"),
        ("To 9 %. <!-- from study.Claims / it shrinks / Found #2 -->", "To 8 %"),
        ("It is 1 %. <!-- from study.Claims / it shrinks / right, % -->", "It is 63.7 %"),
        ("It saves +9 ms. <!-- from = latency_saving(0.54, 500, 50) -->", "It saves +180 ms"),
        ("SQuAD 2.0, Table 6, `x=3`, 2026, and 4 of 5. <!-- from set-up; option -->", "and 4 of 5"),
    ],
)
def test_a_figure_comes_from_its_source_and_keeps_its_form(before: str, after: str) -> None:
    filled = pages.filled(before)
    assert after in filled
    assert pages.filled(filled) == filled
    assert pages.bare_figures(before) == (["3.0"] if before.startswith("- ") else [])


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("It is 1. <!-- from one / plain / right; n -->", "1 figures, 2 sources"),
        ("It is 1 of 2. <!-- from one / plain / right -->", "2 figures, 1 sources"),
        ("It is 1. <!-- from one / other / right -->", "one has no 'right' of 'other'"),
        ("It is 1. <!-- from two / plain / right -->", "no summary 'two'"),
        ("It is 1. <!-- from guess -->", "no summary ''"),
    ],
)
def test_a_source_that_is_not_there_is_an_error(page: str, message: str) -> None:
    with pytest.raises(LookupError, match=message):
        pages.filled(page)


def test_figures_without_a_source_are_found() -> None:
    page = (
        "# 3 titles\n\nIt wins 4.5 points.\n\n```python\nx = 5\n```\n\n    H = 6\n\n"
        "<!-- rows from option -->\n| a | 7 |\n|---|---|\n| b | 8 |\n\n| c | 9 |\n\n"
        "<!-- table x -->\n| 10 |\n<!-- end -->\n\nAt 95 % in 2025, SQuAD 2.0, Eq. 11 and 12, [13](14.md)."
    )
    assert pages.bare_figures(page) == ["4.5", "9", "13"]


@pytest.mark.parametrize("name", list(drawings.DRAWINGS))
def test_a_picture_is_as_drawn_and_its_text_fits_its_boxes(name: str) -> None:
    drawing = drawings.DRAWINGS[name]
    assert (drawings.ASSETS / f"{name}.svg").read_text(encoding="utf-8") == drawings.svg(drawing)
    for box in drawing.boxes:
        widest = max(len(line) for line in box.text.split("\n"))
        assert widest * 8 <= box.width + 20, box.text  # a letter takes 8 pixels at most
        assert box.x + box.width <= drawing.width
        assert box.y + box.height <= drawing.height


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "methods").glob("*.md")), ids=named)
def test_the_page_of_a_method_has_its_picture(page: Path) -> None:
    assert f"](../assets/{page.stem}.svg)" in page.read_text(encoding="utf-8")
