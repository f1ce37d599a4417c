"""The site's pages are run: Python blocks, commands' options, and that every public name has an entry."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from surerag import errors
from tests.snippets import ROOT, Block, blocks, check_command, commands

PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
MADE = ("docs/models/", "docs/notebooks/")
"""Pages that `make models` and `python -m tools.notebooks pages` write, from runs."""
BLOCKS = [block for page in PAGES if not page.startswith(MADE) for block in blocks(page)]
COMMANDS = [(page, call) for page in PAGES for call in commands(page, "surerag")]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_python_block_runs_and_prints_what_it_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    block.run(capsys, monkeypatch)


@pytest.mark.parametrize("page", ["llama-index", "langchain", "core"])
def test_each_start_shows_a_question_that_retrieves_and_one_that_does_not(page: str) -> None:
    first = blocks(f"docs/start/{page}.md")[0]
    assert first.prints == ["Ruldmouth False", "harp True"]
    assert first.remark == ""


@pytest.mark.parametrize(("page", "arguments"), COMMANDS, ids=str)
def test_a_command_has_the_options_that_are_shown(page: str, arguments: list[str]) -> None:
    check_command(arguments)


FRONT = ("surerag", "llama_index_surerag", "langchain_surerag")
ROOMS = (
    "surerag.documents",
    "surerag.drivers",
    "surerag.encoders",
    "surerag.entailment",
    "surerag.measures",
    "surerag.readers",
    "surerag.readers.conformance",
    "surerag.readers.scripted",
    "surerag.records",
    "surerag.retrieval",
    "surerag.scale",
    "surerag.training.rewriter",
    "surerag.world",
)
"""Packages that users import from besides; what they share with the front is told there."""


@pytest.mark.parametrize("package", [*FRONT, *ROOMS])
def test_every_public_name_has_an_entry_and_every_entry_a_name(package: str) -> None:
    pages = [Path(ROOT / page).read_text(encoding="utf-8") for page in PAGES if "/reference/" in page]
    entries = re.findall(rf"^::: {package}\.(\w+)$", "\n".join(pages), re.MULTILINE)
    module, front = import_module(package), import_module("surerag")
    # What is surerag's own as well has its entry there.
    public = [
        name
        for name in module.__all__
        if package in FRONT or getattr(front, name, None) is not getattr(module, name)
    ]
    assert sorted(entries) == sorted(public), "add `::: package.Name` to a page"


@pytest.mark.parametrize("package", [*FRONT, *ROOMS])
def test_every_public_name_is_told_in_a_docstring(package: str) -> None:
    module = import_module(package)
    public = [getattr(module, name) for name in module.__all__]
    told = [it for it in public if inspect.isclass(it) or inspect.isfunction(it)]
    assert told
    assert [it for it in told if not it.__doc__] == []


def test_every_error_has_an_entry_and_a_place_in_troubleshooting() -> None:
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    reference = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    told = (ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: surerag\.errors\.(\w+)$", reference, re.MULTILINE)) == kinds
    assert set(re.findall(r"^## (\w+Error)$", told, re.MULTILINE)) == kinds - {"SureragError"}


def test_every_page_is_in_the_navigation_and_nothing_else_is() -> None:
    # Read as text: its tags name functions of the site's own environment.
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nplugins:")[0]
    named = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(f"docs/{name}" for name in named) == PAGES
