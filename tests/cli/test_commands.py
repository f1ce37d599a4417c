"""The commands as a user types them, with a scripted reader in place of a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from surerag.cli import main
from surerag.cli.display import console
from surerag.cli.readers import ReaderChoice
from surerag.encoders import HashingEncoder
from surerag.readers.protocol import BaseReader
from surerag.readers.scripted import ScriptedReader
from surerag.world.world import World
from tests.evaluation.clairvoyant import clairvoyant


class Ran:
    """Exit code and what was printed."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def surerag(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    for module in ("world_demo", "documents_demo", "reproduce"):
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


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "ada.txt").write_text(
        "Ada was born in Velm. She paints.\n\nShe owns a <b>boat</b> on the Orun."
    )
    (folder / "velm.html").write_text("<title>Velm</title><p>Velm lies on the Orun [bold]river[/bold].</p>")
    return folder


def test_own_documents_show_answer_decision_passages(surerag, documents: Path, tmp_path: Path) -> None:
    reader = ScriptedReader(["Perhaps", "On the [Orun]"], entropy=1.2)
    out = tmp_path / "page"
    question = ("--question", "Where is her boat?")
    ran = surerag(
        "demo",
        "--documents",
        documents,
        *question,
        "--model",
        "m",
        "--tau",
        1.1,
        "--output",
        out,
        reader=reader,
    )
    assert ran.code == 0, ran.err
    assert "On the [Orun]" in ran.out
    assert "Retrieved: entropy 1.20 nats, τ = 1.10." in ran.out
    assert "ada.txt" in ran.out
    assert "[bold]river[/bold]" in ran.out
    assert "&lt;b&gt;boat&lt;/b&gt;" in (out / "index.html").read_text()


def test_shut_gate_shows_the_summaries_that_sufficed(surerag, documents: Path, tmp_path: Path) -> None:
    ran = surerag(
        "demo", "--documents", documents, "--question", "Where was Ada born?", "--model", "m",
        "--output", tmp_path, reader=ScriptedReader(["Velm"], entropy=0.2),
    )  # fmt: skip
    assert "Not retrieved: entropy 0.20 nats, τ = 1.00." in ran.out
    assert "Ada was born in Velm. She paints." in ran.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--documents", "{docs}", "--question", "Who?"], 1, "need a model of your own"),
        (["--documents", "{docs}", "--model", "m"], 1, "nothing to answer"),
        (["--documents", "{docs}/none", "--model", "m", "--question", "Who?"], 1, "is no folder"),
        (["--documents", "{empty}", "--model", "m", "--question", "Who?"], 1, "holds no file"),
        (["--question", "Who?"], 2, "goes with --documents"),
        (["--questions", "3"], 2, "Invalid value"),
    ],
)
def test_wrong_usage_is_one_friendly_line(
    surerag, documents: Path, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "empty").mkdir()
    filled = [text.format(docs=documents, empty=tmp_path / "empty") for text in arguments]
    ran = surerag("demo", *filled)
    assert ran.code == code
    assert words in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_reader_without_log_probabilities_is_refused(surerag, documents: Path) -> None:
    ran = surerag(
        "demo",
        "--documents",
        documents,
        "--question",
        "Who?",
        "--model",
        "m",
        reader=ScriptedReader(logprob=None),
    )
    assert ran.code == 1
    assert "no log-probabilities" in ran.err
    assert "Traceback" not in ran.err


def test_unknown_model_is_named(surerag, documents: Path, tmp_path: Path) -> None:
    ran = surerag("demo", "--documents", documents, "--question", "Who?", "--model", tmp_path / "no-model")
    assert ran.code == 1
    assert "no-model' cannot be loaded" in ran.err
    assert "Traceback" not in ran.err


def test_missing_package_is_named_with_its_pip_line(surerag, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_scipy(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'scipy.stats'", name="scipy.stats")

    monkeypatch.setattr("surerag.cli.reproduce.run_card", without_scipy)
    ran = surerag("reproduce", "card")
    assert ran.code == 1
    assert "the package 'scipy' is not installed" in ran.err
    assert 'pip install "surerag[demo]"' in ran.err
    assert "Traceback" not in ran.err


def test_server_that_is_not_there_is_named(surerag, documents: Path) -> None:
    ran = surerag(
        "demo", "--documents", documents, "--question", "Who?", "--base-url", "http://127.0.0.1:9/v1"
    )
    assert ran.code == 1
    assert "http://127.0.0.1:9/v1 does not say which models it serves" in ran.err


def test_missing_key_variable_is_named(surerag, documents: Path) -> None:
    ran = surerag(
        "demo", "--documents", documents, "--question", "Who?", "--base-url", "http://127.0.0.1:9/v1",
        "--api-key-env", "NO_SUCH_KEY",
    )  # fmt: skip
    assert "NO_SUCH_KEY is not set" in ran.err


def test_world_demo_writes_everything_and_frameworks_agree(surerag, tmp_path: Path) -> None:
    reader = clairvoyant(World(seed=3), World(seed=4), n=60)
    ran = surerag("demo", "--seed", 3, "--questions", 60, "--output", tmp_path / "out", reader=reader)
    assert ran.code == 0, ran.err
    assert "L-RAG (calibrated)" in ran.out
    assert "LlamaIndex: 12 answers and 12 decisions of 12" in ran.out
    assert "LangChain: 12 answers and 12 decisions of 12" in ran.out
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"index.html", "results.json", "trade_off.svg", "trade_off.png", "entropy.png"} <= names
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    assert stored["study"]["n"] == 60
    assert len(stored["latency"]["modes"]) == len(stored["study"]["modes"])


def test_reproduce_prints_the_study_and_stores_it(surerag, tmp_path: Path) -> None:
    reader = clairvoyant(World(seed=3), World(seed=4), n=60)
    ran = surerag(
        "reproduce", "l-rag", "--seed", 3, "-n", 60, "--json", tmp_path / "a" / "l.json", reader=reader
    )
    assert ran.code == 0, ran.err
    assert "seed 3, n = 60" in ran.out
    assert "625 ms" in ran.out
    assert json.loads((tmp_path / "a" / "l.json").read_text())["seed"] == 3


def test_card_prints_every_task_and_what_was_missed(surerag, tmp_path: Path) -> None:
    reader = ScriptedReader(lambda _: "yes", entropy=0.5)
    ran = surerag("reproduce", "card", "--seed", 5, "-n", 20, "--json", tmp_path / "card.json", reader=reader)
    assert ran.code == 0, ran.err
    assert "missed" in ran.out
    stored = json.loads((tmp_path / "card.json").read_text())
    rows = {row["task"]: row for row in stored["rows"]}
    assert stored["model"] == "scripted"
    # A reader that always says yes finds every context sufficient, also the 20 that are not.
    assert rows["sufficiency, answer there"]["value"] == 1.0
    assert rows["sufficiency, answer not there"]["value"] == 0.0
    assert all(row["task"] in ran.out for row in stored["rows"])


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, surerag.cli\n"
        "sys.argv = ['surerag', 'demo', '--help']\n"
        "try:\n    surerag.cli.main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'openai', 'faiss', 'llama_index', 'langchain_core', 'scipy'}\n"
        "loaded = heavy & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
