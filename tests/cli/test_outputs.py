"""Where results go: what cannot be written is said at once, before anything is loaded or asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from surerag.cli import main
from surerag.cli.readers import ReaderChoice
from tests.evaluation.noting import write_rows


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    def built(_: ReaderChoice) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(ReaderChoice, "build", built)

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["surerag", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 1
        printed = capfd.readouterr()
        assert printed.out == ""
        return " ".join(printed.err.split())

    return run


@pytest.mark.parametrize("study", ["card", "l-rag", "edc2", "dense", "dynqr", "seper"])
def test_figures_of_a_study(tmp_path: Path, refused, study: str) -> None:
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path, tmp_path / "file" / "a.json"):
        said = refused("reproduce", study, "--json", place)
        assert said.startswith("Error: ") and "cannot be written" in said and "name another path" in said
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "command",
    [
        ["demo", "--output"],
        ["reproduce", "seper", "--plots"],
        ["evaluate", "rows.jsonl", "--output"],
        ["train-rewriter", "--world", "1", "--output"],
    ],
)
def test_an_output_that_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl")
    (tmp_path / "out").write_text("mine")
    assert "a file stands where a folder is needed" in refused(*command, "out").lower()
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder where nothing can be made")
def test_an_output_where_nothing_can_be_made(tmp_path: Path, refused) -> None:
    rows = write_rows(tmp_path / "rows.jsonl")
    assert "/proc/out cannot be written" in refused("evaluate", rows, "--output", "/proc/out")
