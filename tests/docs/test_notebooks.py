"""Notebooks keep their results, a rerun is compared with them, and the site shows them."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from tools.notebooks import PAGES, differences, found, pages, read, same_line

NOTEBOOKS = found()


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_was_run_from_its_beginning_and_keeps_what_it_said(file: Path) -> None:
    cells = [cell for cell in read(file)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds <= {"stream", "display_data", "execute_result"}
    for cell in cells:
        if re.search(r"^print\(", "".join(cell["source"]), re.MULTILINE):
            assert cell["outputs"], f"{cell['id']} prints, and nothing is kept"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_every_picture_and_page_that_a_notebook_names_is_there(file: Path) -> None:
    for cell in read(file)["cells"]:
        if cell["cell_type"] == "markdown":
            for link in re.findall(r"\]\((?!https?:)([^)#]+)", "".join(cell["source"])):
                assert (file.parent / link).exists(), link


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_ends_on_documents_of_the_reader_s_own(file: Path) -> None:
    [parameters] = [cell for cell in read(file)["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    own = ["QUERIES", "PASSAGES", "BASE"] if "train" in file.stem else ["FOLDER", "MODEL", "SERVER"]
    assert re.findall(r"^([A-Z]+) = \"\"", "".join(parameters["source"]), re.MULTILINE)[:3] == own


def test_the_site_s_pages_are_those_of_the_notebooks() -> None:
    committed = {file.name: file.read_bytes() for file in PAGES.iterdir()}
    assert committed == pages(), "run python -m tools.notebooks pages"


def test_a_rerun_with_another_figure_word_or_picture_is_told() -> None:
    kept = read(NOTEBOOKS[0])
    assert differences(kept, copy.deepcopy(kept)) == []
    for change in ("word", "figure", "picture"):
        now = copy.deepcopy(kept)
        [cell, *_] = [c for c in now["cells"] if c["cell_type"] == "code" and c["outputs"]]
        if change == "picture":
            cell["outputs"].append({"output_type": "display_data", "data": {"image/png": ""}})
        else:
            cell["outputs"][0]["text"][0] = {"word": "other words", "figure": "9 articles, 8 passages"}[
                change
            ]
        assert [one.cell for one in differences(kept, now)][:1] == [cell["id"]]


@pytest.mark.parametrize(
    ("kept", "now", "same"),
    [
        ("accuracy 53.0%", "accuracy 53.2%", True),
        ("accuracy 53.0%", "accuracy 63.0%", False),
        ("n = 150", "n = 151", False),
        ("0.001", "0.002", True),
        ("took 3.1 s", "took 9.9 s", True),
        ("τ = 0.50   (retrieved)", "τ = 0.50 (retrieved)", True),
        ("Velm", "Orun", False),
        ("Velm", "(nothing)", False),
    ],
)
def test_figures_may_differ_by_what_processors_do(kept: str, now: str, same: bool) -> None:
    assert same_line(kept, now) is same
