"""Pages whose code is run: Python blocks, and the options of commands.

A comment before a block may hold what the block takes as given, ``<!-- given: ... -->`` with Python code,
or say why it is not run, ``<!-- not run: reason -->``. What a line prints may stand behind it:
``# prints: Ruldmouth``.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import typer

ROOT = Path(__file__).parent.parent
REMARK = r"(?:<!-- (given|not run):\s*((?:(?!-->).)*?)\s*-->\s*)?"
BLOCK = re.compile(REMARK + r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PRINTS = re.compile(r"# prints: (.*)$", re.MULTILINE)
SHELL = re.compile(r"^```(?:bash|console|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A Python block: the page and line it stands on, what stands before it, and its code."""

    page: str
    line: int
    remark: str
    given: str
    code: str

    @property
    def prints(self) -> list[str]:
        """What its lines say that they print."""
        return PRINTS.findall(self.code)

    def __str__(self) -> str:
        return f"{self.page} line {self.line}"

    def run(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Run it, and check that it prints what it says."""
        if self.remark == "not run":
            pytest.skip(self.given)
        names: dict[str, object] = {"__name__": "page"}
        exec(compile(self.given, "given", "exec"), names)
        # Padded, so that a traceback shows the page's own line numbers.
        capsys.readouterr()
        exec(compile("\n" * (self.line - 1) + self.code, self.page, "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in printed if line in self.prints] == self.prints


def blocks(page: str) -> list[Block]:
    """Return a page's Python blocks, each with its place and what stands before it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, text[: match.start(3)].count("\n") + 1, match[1] or "", match[2] or "", match[3])
        for match in BLOCK.finditer(text)
    ]


def commands(page: str, program: str) -> list[list[str]]:
    """Return the arguments of each line of a page's shell blocks that calls ``program``."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = [line for block in SHELL.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    calls = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [call[1:] for call in calls if call[:1] == [program]]


def check_command(arguments: list[str]) -> None:
    """Check that ``surerag`` has the commands and options of a call; nothing is run."""
    from surerag.cli.app import app

    command: click.Command = typer.main.get_command(app)
    rest = arguments
    while isinstance(command, click.Group):
        _, command, rest = command.resolve_command(click.Context(command), rest)
    command.make_context("surerag", rest)
