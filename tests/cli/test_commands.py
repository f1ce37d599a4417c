"""The commands as a user types them, with a scripted reader in place of a model."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from surerag.readers.scripted import ScriptedReader
from surerag.world.world import World
from tests.clean_process import command_line
from tests.servers.fake_openai import FakeOpenAI
from tests.world.clairvoyant import clairvoyant

METHODS = ["L-RAG", "DENSE-RAG", "DynQR", "EDC²-RAG", "SePer"]


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
        "--threshold",
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


def test_first_question_is_told_through_all_methods(surerag, documents: Path, tmp_path: Path) -> None:
    ran = surerag(
        "demo", "--documents", documents, "--question", "Where is her boat?", "--model", "m",
        "--answer", "Orun", "--output", tmp_path, reader=ScriptedReader(lambda _: "On the Orun", entropy=0.2),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    places = [ran.out.index(f"{number}. {name}: ") for number, name in enumerate(METHODS, 1)]
    assert places == sorted(places)
    assert "On the Orun (right)" in ran.out
    assert "5. SePer" in (tmp_path / "index.html").read_text()


def test_a_story_is_left_out_on_request(surerag, documents: Path, tmp_path: Path) -> None:
    reader = ScriptedReader(["Velm"], entropy=0.2)
    ran = surerag(
        "demo", "--documents", documents, "--question", "Where was Ada born?", "--model", "m", "--no-story",
        "--output", tmp_path, reader=reader,
    )  # fmt: skip
    assert ran.code == 0 and "step by step" not in ran.out
    assert reader.remaining == 0


def test_a_method_that_fails_is_told_and_the_others_go_on(surerag, documents: Path, tmp_path: Path) -> None:
    reader = ScriptedReader(["Velm"], entropy=0.2)  # one answer, and then it fails
    ran = surerag(
        "demo", "--documents", documents, "--question", "Where was Ada born?", "--model", "m",
        "--output", tmp_path, reader=reader,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "Not told: " in ran.out and "1. L-RAG" in ran.out and "5. SePer" in ran.out


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
    assert "needs log-probabilities" in ran.err
    assert "add --gate disagreement" in " ".join(ran.err.split()).lower()
    assert "Traceback" not in ran.err


def test_a_gate_without_log_probabilities_is_an_option(surerag, documents: Path, tmp_path: Path) -> None:
    said = itertools.cycle(["Velm", "Orun", "Velm", "Tarn", "On the Orun"])
    ran = surerag(
        "demo", "--documents", documents, "--question", "Where was Ada born?", "--model", "m",
        "--gate", "disagreement", "--output", tmp_path,
        reader=ScriptedReader(lambda _: next(said), logprob=None),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "disagreement gate, τ = 0.65 nats (not calibrated" in ran.out
    assert "etrieved: disagreement" in ran.out


def test_servers_are_asked_by_the_api_that_is_named(surerag, documents: Path, tmp_path: Path) -> None:
    usual = ("demo", "--documents", documents, "--question", "Who?", "--output", tmp_path)
    ran = surerag(*usual, "--model", "m", "--api", "responses")
    assert ran.code == 2 and "goes with --base-url" in ran.err
    with FakeOpenAI() as server:
        ran = surerag(*usual, "--model", "toy", "--base-url", server.base_url, "--api", "completions")
    assert ran.code == 0, ran.err
    assert {request.path for request in server.requests} == {"/v1/completions"}


def test_unknown_model_is_named(surerag, documents: Path, tmp_path: Path) -> None:
    ran = surerag("demo", "--documents", documents, "--question", "Who?", "--model", tmp_path / "no-model")
    assert ran.code == 1
    assert "no-model' cannot be loaded" in ran.err
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
    assert "toy that ships with the package" in ran.out and "between 1.6 equally likely words" in ran.out
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.index("What it means for you") < page.index("One question, step by step")
    assert page.index("One question, step by step") < page.index("Accuracy and cost by mode")
    assert "LlamaIndex: 12 answers and 12 decisions of 12" in ran.out
    assert "LangChain: 12 answers and 12 decisions of 12" in ran.out
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"index.html", "results.json", "trade_off.svg", "trade_off.png", "entropy.png"} <= names
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    costs = stored["costs"]
    assert costs["calls"] > 0 and costs["prompt_tokens"] > 0 and costs["seconds"] > 0
    assert f"All of this cost {costs['calls']:,} calls, {costs['prompt_tokens']:,} tokens read" in ran.out
    assert "A question costs" in ran.out and "All of it cost" in (tmp_path / "out" / "index.html").read_text()
    assert stored["report"]["n"] == 60
    assert [chapter["method"] for chapter in stored["story"]["chapters"]] == METHODS
    assert len(stored["latency"]["modes"]) == len(stored["report"]["modes"])


def test_a_terminal_that_lacks_a_letter_shows_the_rest() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import surerag.cli\nsurerag.cli.main()", "evaluate", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "?SePer over a file" in done.stdout


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


def test_the_interrupt_key_is_answered_in_words(surerag, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("surerag.cli.world_demo.run_world_demo", interrupted)
    ran = surerag("demo")
    assert ran.code == 130
    assert "A demo keeps nothing of what was answered" in ran.out and ran.err.count("Interrupted.") == 1


@pytest.mark.parametrize("command", ["compare", "record", "calibrate"])
def test_missing_documents_are_called_documents(surerag, tmp_path: Path, command: str) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "Where was Ada born?"}\n')
    ran = surerag(command, tmp_path / "q.jsonl", "--documents", tmp_path / "docs", "--output", tmp_path / "o")
    assert ran.code == 1
    assert (
        f"there are no documents at {tmp_path / 'docs'}" in ran.err and "--documents a folder of" in ran.err
    )


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("demo", "surerag[demo]"),
        ("evaluate q.jsonl --output o", "surerag[demo]"),
        ("compare q.jsonl --documents docs --output o", "surerag[demo]"),
        ("calibrate q.jsonl --documents docs --output o", "surerag[demo]"),
        ("record q.jsonl --documents docs --output o", "surerag[demo]"),
        ("train-rewriter --world 1 --output o", "surerag[train]"),
    ],
)
def test_where_only_the_core_is_installed_one_extra_brings_all(
    tmp_path: Path, command: str, named: str
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("Ada was born in Velm.")
    row = {"question": "Where was Ada born?", "answers": ["Velm"], "contexts": ["Ada was born in Velm."]}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    only_core = (
        "import sys, importlib.abc\n"
        "core = {*sys.stdlib_module_names, 'surerag', 'surerag_studies', 'numpy', 'rich', 'typer', 'click',\n"
        "        'sentencex', 'markdown_it', 'mdurl', 'pygments', 'shellingham', 'typing_extensions',\n"
        "        'annotated_doc', 'regex', 'pydantic', 'pydantic_core', 'annotated_types',\n"
        "        'typing_inspection'}\n"
        "class OnlyCore(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] not in core and not name.startswith('_'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, OnlyCore())\n"
    )
    done = command_line(command.split(), before=only_core, folder=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f'pip install "{named}"' in done.stderr
