"""Control sequences never reach the terminal, wherever they stand in a document, an answer or a name."""

from __future__ import annotations

import io
import sys
import warnings
from pathlib import Path

import pytest
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from surerag.cli import main
from surerag.cli.display import VisibleConsole, console, staged
from surerag.cli.main import _quiet
from surerag.cli.readers import ReaderChoice
from surerag.documents import SkippedFilesWarning
from surerag.encoders import HashingEncoder
from surerag.readers.scripted import ScriptedReader
from surerag.visible import visible

EVIL = "Ve\x1b]52;c;b3duZWQ=\x07l\x1b[2Jm\x1b]0;owned\x1b\\\x9b31m \x90q\x9c\x00\x08\x7f\r\u202e\ud800."
COMMANDS = set(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2066, 0xD800]))


def assert_obeyed_by_none(printed: str) -> None:
    assert "Ve" in printed
    assert not COMMANDS & set(printed)


@pytest.mark.parametrize(
    "show",
    [
        str,
        Text,
        lambda text: escape(text),
        lambda text: Padding(Panel(Text(text), title=escape(text)), 1),
        lambda text: Text.assemble(("bold ", "bold"), text),
    ],
)
def test_no_printed_object_commands_the_terminal(show) -> None:
    file = io.StringIO()
    VisibleConsole(file=file, width=200).print(show(EVIL))
    assert_obeyed_by_none(file.getvalue())


def test_nor_does_a_table() -> None:
    table = Table(EVIL, title=Text(EVIL), caption=Text(EVIL))
    table.add_row(Text(EVIL))
    file = io.StringIO()
    VisibleConsole(file=file, width=200).print(table)
    assert_obeyed_by_none(file.getvalue())


def test_own_styles_stay() -> None:
    file = io.StringIO()
    VisibleConsole(file=file, force_terminal=True, color_system="standard").print(Text(EVIL, style="red"))
    assert file.getvalue().startswith("\x1b[31mVe") and file.getvalue().count("\x1b") == 2


def test_of_a_string_whole_sequences_are_taken_out() -> None:
    file = io.StringIO()
    VisibleConsole(file=file).print(EVIL, escape("[b]x[/b]"))
    assert file.getvalue() == "Velm �. [b]x[/b]\n"


def test_nor_does_a_stage(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("surerag.cli.display.errors", VisibleConsole(stderr=True, force_terminal=True))
    with staged() as stages, stages.working("\x1b]0;owned\x07Velm"):
        pass
    assert "Velm" in (printed := capfd.readouterr().err) and "\x1b]0" not in printed


def test_nor_does_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
        _quiet()
        note = warnings.formatwarning(EVIL, SkippedFilesWarning, "a.py", 1)
    assert note == "Note: Velm �..\n"


def test_nor_do_documents_answers_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    evil = EVIL.replace("\ud800", "").replace("\x00", "")
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "ada.txt").write_text(f"Ada was born in {evil}.")
    (documents / "\x1b[2Jb.txt").write_text("Bo paints boats.")
    (documents / "\x1b[2Jc.rst").touch()
    monkeypatch.setattr(console, "_width", 120)
    monkeypatch.setattr("surerag.cli.documents_demo.packaged_minilm", HashingEncoder)
    monkeypatch.setattr(ReaderChoice, "build", lambda _: ScriptedReader(lambda _: f"{EVIL} it is."))
    arguments = ["--question", f"Where is {evil}?", "--model", "m", "--output", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["surerag", "demo", "--documents", str(documents), *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 0
    printed = capfd.readouterr()
    assert_obeyed_by_none(printed.out)
    assert_obeyed_by_none((tmp_path / "out" / "index.html").read_text())
    monkeypatch.setattr(sys, "argv", ["surerag", "demo", "--documents", f"/no/{evil}", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert_obeyed_by_none(capfd.readouterr().err)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Fluß, 東京, 🙂, a\tb\nc", "Fluß, 東京, 🙂, a\tb\nc"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://a\x07link\x1b]8;;\x07", "link"),
        ("\x1bc\x1b(0\x1b=reset", "reset"),
        ("never ends \x1b]0;" + "title", "never ends ]0;title"),
        ("\x1b", ""),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_it_is_linear() -> None:
    for text in ("\x1b]" * 200_000, "\x1b[" * 200_000, "\x1b[" + "0" * 400_000, "\x9d" * 400_000):
        assert len(visible(text)) <= len(text)
