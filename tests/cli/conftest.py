"""The command line as a user types it, with a hashing encoder in place of MiniLM."""

from __future__ import annotations

import sys

import pytest

from surerag.cli import main
from surerag.cli.display import console
from surerag.cli.readers import ReaderChoice
from surerag.encoders import HashingEncoder
from surerag.readers.protocol import BaseReader


class Ran:
    """Exit code and what was printed."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def surerag(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    for module in ("world_demo", "documents_demo", "reproduce", "trace_runs", "calibrate_run"):
        monkeypatch.setattr(f"surerag.cli.{module}.packaged_minilm", HashingEncoder)

    # The console may have been made, and have looked at the terminal, for an earlier test.
    monkeypatch.setattr(console, "_width", 120)

    def run(*arguments: object, reader: BaseReader | None = None) -> Ran:
        if reader is not None:
            monkeypatch.setattr(ReaderChoice, "build", lambda _: reader)
        monkeypatch.setattr(sys, "argv", ["surerag", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capfd.readouterr()
        return Ran(exit_.value.code, " ".join(printed.out.split()), " ".join(printed.err.split()))

    return run
