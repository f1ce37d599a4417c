"""The README is run: its Python blocks, its commands' options, its extras and its make targets.

A comment before a block may hold what the block takes as given, ``<!-- given: ... -->`` with Python code,
or say why it is not run, ``<!-- not run: reason -->``. What a line prints may stand behind it:
``# prints: Ruldmouth``.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import typer

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
REMARK = r"(?:<!-- (given|not run):\s*((?:(?!-->).)*?)\s*-->\s*)?"
BLOCK = re.compile(REMARK + r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PRINTS = re.compile(r"# prints: (.*)$", re.MULTILINE)
SHELL = re.compile(r"^```(?:bash|console|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    line: int
    remark: str
    given: str
    code: str


def blocks() -> list[Block]:
    """Return the README's Python blocks, each with its place and what stands before it."""
    return [
        Block(README[: match.start(3)].count("\n") + 1, match[1] or "", match[2] or "", match[3])
        for match in BLOCK.finditer(README)
    ]


def commands(program: str) -> list[list[str]]:
    """Return the arguments of each line of the shell blocks that calls ``program``."""
    lines = [line for block in SHELL.findall(README) for line in block.replace("\\\n", " ").splitlines()]
    calls = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [call[1:] for call in calls if call[:1] == [program]]


@pytest.mark.parametrize("block", blocks(), ids=lambda block: f"line {block.line}")
def test_a_python_block_runs_and_prints_what_it_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if block.remark == "not run":
        pytest.skip(block.given)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    exec(compile(block.given, "given", "exec"), names)
    # Padded, so that a traceback shows the README's own line numbers.
    capsys.readouterr()
    exec(compile("\n" * (block.line - 1) + block.code, "README.md", "exec"), names)
    said = PRINTS.findall(block.code)
    assert [line for line in capsys.readouterr().out.splitlines() if line in said] == said


def test_the_answers_of_both_frameworks_and_of_the_core_are_shown() -> None:
    assert sum("prints: Ruldmouth" in block.code for block in blocks()) == 5


@pytest.mark.parametrize("arguments", commands("surerag"), ids=" ".join)
def test_a_command_has_the_options_that_are_shown(arguments: list[str]) -> None:
    from surerag.cli.app import app

    command: click.Command = typer.main.get_command(app)
    rest = arguments
    while isinstance(command, click.Group):
        _, command, rest = command.resolve_command(click.Context(command), rest)
    command.make_context("surerag", rest)


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {extra for group in re.findall(r"surerag\[([^\]]+)\]", README) for extra in group.split(",")}
    assert named
    assert named <= set(project["optional-dependencies"])


def test_every_make_target_that_is_named_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = set(re.findall(r"`make ([a-z-]+)", README)) | {call[0] for call in commands("make")}
    assert named
    assert named <= set(targets)


def test_every_picture_and_page_that_is_linked_exists() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (ROOT / target).exists(), target
