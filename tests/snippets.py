"""Pages whose code is run: Python blocks, and the options of commands.

A comment before a block may hold what the block takes as given, ``<!-- given: ... -->`` with Python code,
or say why it is not run, ``<!-- not run: reason -->``. What a line prints may stand behind it:
``# prints: Ruldmouth``.

``<!-- served: after 1 -->`` is for blocks about servers. The page's first block runs before it; then fake
servers stand in for those that the block names, and every engine, chain or reader that a paragraph of it
makes is asked.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from tests.servers.fake_openai import FakeOpenAI
from tests.servers.ollama import FakeOllama
from tests.servers.toy_model import Script

ROOT = Path(__file__).parent.parent
REMARK = r"(?:<!-- (given|not run|served):\s*((?:(?!-->).)*?)\s*-->\s*)?"
BLOCK = re.compile(REMARK + r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PRINTS = re.compile(r"# prints: (.*)$", re.MULTILINE)
OPENAI, OLLAMA = "http://localhost:8000/v1", "http://localhost:11434"
"""Where pages say that servers listen."""
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
        return f"{self.page} line {self.line}{', served' if self.remark == 'served' else ''}"

    def run(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """Run it, and check that it prints what it says."""
        if self.remark == "not run":
            pytest.skip(self.given)
        names: dict[str, Any] = {"__name__": "page"}
        if self.remark == "served":
            self._run_served(names, monkeypatch)
            return
        exec(compile(self.given, "given", "exec"), names)
        capsys.readouterr()
        self._execute(self.code, self.line, names)
        printed = capsys.readouterr().out.splitlines()
        assert [line for line in printed if line in self.prints] == self.prints

    def _run_served(self, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        for module in re.findall(r"^from (llama_index\.llms\.\w+|langchain_\w+)", self.code, re.MULTILINE):
            pytest.importorskip(module, reason="of a provider; `make test-models` has it")
        first = int(self.given.removeprefix("after "))
        before = blocks(self.page)[first - 1]
        before._execute(before.code, before.line, names)
        for text, line in self._paragraphs():
            made = {name: names.pop(name, None) for name in ("engine", "chain", "reader")}
            with served(monkeypatch) as answer:
                moved = text.replace(OPENAI, answer.openai.base_url).replace(OLLAMA, answer.ollama.url)
                self._execute(moved, line, names)
                asked = [names[name] for name in made if name in names]
                assert asked or "import" in text, f"{self.page} line {line} makes nothing that could be asked"
                for each in asked:
                    answer.check(each)

    def _paragraphs(self) -> Iterator[tuple[str, int]]:
        line = self.line
        for text in self.code.split("\n\n"):
            yield text, line
            line += text.count("\n") + 2

    def _execute(self, code: str, line: int, names: dict[str, Any]) -> None:
        # Padded, so that a traceback shows the page's own line numbers.
        exec(compile("\n" * (line - 1) + code, self.page, "exec"), names)


@dataclass(frozen=True)
class Served:
    """Fake servers that answer every question alike, surely."""

    openai: FakeOpenAI
    ollama: FakeOllama

    def check(self, asker: Any) -> None:
        """Ask what a page made, and see that its answer came from a server, at one request and no search."""
        before = self.asked
        if hasattr(asker, "query"):
            response = asker.query("Where was Ada born?")
            answer, searched = str(response), response.metadata["retrieve"]
        elif hasattr(asker, "invoke"):
            output = asker.invoke("Where was Ada born?")
            answer, searched = output["answer"], output["decision"]["retrieve"]
        else:
            from surerag.types import Sampling

            answer, searched = asker.generate(["Where was Ada born?"], Sampling())[0][0].text, False
        assert (answer, searched) == (ANSWER, False)
        assert self.asked == before + 1

    @property
    def asked(self) -> int:
        """How many answers were asked for; Ollama's client asks about the model besides."""
        bodies = [request.body for request in self.openai.requests] + self.ollama.bodies
        return sum("messages" in body or "prompt" in body for body in bodies)


ANSWER = "Ruldmouth, surely"


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Serve on fakes, which the OpenAI client's environment names."""
    script = Script(lambda _: ANSWER, logprob=-0.001)
    with FakeOpenAI(script) as openai, FakeOllama(script) as ollama:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        for name in ("OPENAI_API_BASE", "OPENAI_BASE_URL"):
            monkeypatch.setenv(name, openai.base_url)
        yield Served(openai, ollama)


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
