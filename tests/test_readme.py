"""The README is run: its Python blocks, its commands' options, its extras and its make targets."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.snippets import ROOT, Block, blocks, check_command, commands

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", blocks("README.md"), ids=str)
def test_a_python_block_runs_and_prints_what_it_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    block.run(capsys)


def test_the_answers_of_both_frameworks_and_of_the_core_are_shown() -> None:
    assert sum("prints: Ruldmouth" in block.code for block in blocks("README.md")) == 5


@pytest.mark.parametrize("arguments", commands("README.md", "surerag"), ids=" ".join)
def test_a_command_has_the_options_that_are_shown(arguments: list[str]) -> None:
    check_command(arguments)


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {extra for group in re.findall(r"surerag\[([^\]]+)\]", README) for extra in group.split(",")}
    assert named
    assert named <= set(project["optional-dependencies"])


def test_every_make_target_that_is_named_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = set(re.findall(r"`make ([a-z-]+)", README)) | {call[0] for call in commands("README.md", "make")}
    assert named
    assert named <= set(targets)


def test_every_picture_and_page_that_is_linked_exists() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (ROOT / target).exists(), target
