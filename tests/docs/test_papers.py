"""The table of the papers names places and checks that are there."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

import langchain_surerag
import llama_index_surerag
import surerag
from surerag.cli.app import app
from surerag.options import Options

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "methods" / "papers.md"
MODULES = (
    surerag,
    llama_index_surerag,
    langchain_surerag,
    *map(importlib.import_module, ("surerag.measures", "surerag.clustering", "surerag.entailment")),
)
COMMANDS = get_command(app)


def rows() -> Iterator[tuple[str, str, str]]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and len(cells) == 3 and cells[0] not in ("element", "---"):
            yield cells[0], cells[1], cells[2]


def option_names() -> set[str]:
    kinds, found = [Options], set()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        found |= set(getattr(kind, "OPTIONS", ()))
    return found


def is_there(place: str) -> bool:
    if place.startswith("tests/"):
        file, _, name = place.partition("::")
        path = ROOT / file
        return path.exists() and (not name or f"def {name}(" in path.read_text(encoding="utf-8"))
    if place.startswith(("reproduce ", "surerag ")):
        command = COMMANDS
        for word in place.removeprefix("surerag ").split():
            command = getattr(command, "commands", {}).get(word)
            if command is None:
                return False
        return True
    if place.startswith("benchmarks."):
        return (ROOT / f"{place.replace('.', '/')}.py").exists()
    if place.startswith("--"):
        return place in {name for one in _commands(COMMANDS) for item in one.params for name in item.opts}
    first, _, rest = place.partition(".")
    owners = [getattr(module, first) for module in MODULES if hasattr(module, first)]
    known = any(not rest or hasattr(owner, rest) or rest in _fields(owner) for owner in owners)
    return known or (not rest and first in option_names())


def _commands(command: object) -> Iterator[object]:
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from _commands(one)


def _fields(owner: object) -> set[str]:
    return set(getattr(owner, "__annotations__", {})) | set(getattr(owner, "__dataclass_fields__", {}))


@pytest.mark.parametrize(("element", "where", "check"), list(rows()))
def test_every_place_and_check_is_there(element: str, where: str, check: str) -> None:
    places, checks = (re.findall(r"`([^`]+)`", cell) for cell in (where, check))
    assert places and checks, element
    assert all(one.startswith(("tests/", "reproduce ")) for one in checks)
    assert [one for one in (*places, *checks) if not is_there(one)] == []


def test_what_is_not_there_is_found_out() -> None:
    for wrong in (
        "tests/none.py",
        "tests/docs/test_papers.py::test_of_nothing",
        "reproduce nothing",
        "surerag figures nothing",
        "SePer.nothing",
        "nothing_at_all",
        "--nothing",
    ):
        assert not is_there(wrong), wrong


def test_no_equation_table_or_figure_is_left_out() -> None:
    """How many each paper has; a number in a range of the table counts."""
    have = {
        "EDC²-RAG": {"Table": 11},
        "SePer": {"Eq.": 16, "Table": 13, "Figure": 7},
        "L-RAG": {"Eq.": 9, "Figure": 6},
        "DENSE-RAG": {"Eq.": 16, "Figure": 6, "Table": 12},
        "DynQR": {"Eq.": 3, "Table": 5, "Figure": 3},
    }
    page = PAGE.read_text(encoding="utf-8")
    absent = page[page.index("## What cannot be shown here") :]
    for paper, kinds in have.items():
        part = page[page.index(f"## {paper}") :]
        part = part[: part.index("\n## ", 1)]
        told = part + "\n".join(line for line in absent.split("\n- ") if paper in line)
        for kind, most in kinds.items():
            missing = set(range(1, most + 1)) - numbers(told, kind)
            # What explains and measures nothing: pictures of the method, and the statistics of data sets.
            assert missing <= PICTURES.get((paper, kind), set()), (paper, kind, missing)


PICTURES = {
    ("SePer", "Figure"): {1, 2},
    ("SePer", "Table"): {3},
    ("DENSE-RAG", "Figure"): {1},
    ("DENSE-RAG", "Table"): {5},
    ("DynQR", "Figure"): {1, 2},
}


def numbers(text: str, kind: str) -> set[int]:
    found: set[int] = set()
    text, names = " ".join(text.split()), {"Eq.": r"Eq\.", "Table": "Tables?", "Figure": "Figures?"}
    for listed in re.findall(rf"{names[kind]} ((?:\d+(?: to |, | and )?)+)", text):
        for low, high in re.findall(r"(\d+)(?: to (\d+))?", listed):
            found |= set(range(int(low), int(high or low) + 1))
    return found
