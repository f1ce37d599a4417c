"""The command line, over a fake reader."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import warnings
from importlib import metadata
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import rich.progress
import typer
from typer.testing import CliRunner

from surerag import FakeReader, progress
from surerag.calibration import AbstentionPolicy, CalibrationWarning, ThresholdPolicy
from surerag.cli import app, compare, demo, display, doctor, evaluate, models, train_rewriter
from surerag.documents import FileNotesWarning, SkippedFilesWarning
from surerag.encoders import CachedEncoder, HashingEncoder
from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.evaluation import EvaluationRun, read_questions, terminal_table
from surerag.evaluation import evaluate as evaluate_run
from surerag.evaluation.run import StoredAnswersWarning
from surerag.methods.lazy_rag.component import FixedSummary, LazyRAG
from surerag.progress import reporting
from surerag.readers import fake
from surerag.retrieval.index import DEFAULT_K
from tests.servers.fake_openai import FakeOpenAI

TOWNS = ["Velm", "Orun", "Tarn", "Sild", "Moor"]
QUESTIONS = 30


def reply(prompt: str) -> str:
    """Answer with the town that the prompt says the person was born in."""
    if "entailment" in prompt:
        return "neutral"
    person = re.findall(r"Where was (P\d+) born", prompt)
    if not person:
        return "a paraphrase"
    match = re.search(rf"{person[-1]} was born in (\w+)", prompt)
    return match[1] if match else "I do not know"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with documents and questions, and a fake reader in the place of a model."""
    (tmp_path / "docs").mkdir()
    rows = []
    for i in range(QUESTIONS):
        town = TOWNS[i % 5]
        text = f"P{i} was born in {town}. " + f"P{i} wrote letters to friends. " * 10
        (tmp_path / "docs" / f"p{i}.txt").write_text(text)
        rows.append({"question": f"Where was P{i} born?", "answers": [town], "contexts": [text]})
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    reader = FakeReader(reply, entropy=0.1)
    for module in (compare, doctor, evaluate, train_rewriter):
        monkeypatch.setattr(module, "load_reader", lambda *_, **__: reader)
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app.app, arguments)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def interrupt() -> None:
    raise KeyboardInterrupt


COMPARE = ("compare", "questions.jsonl", "--documents", "docs")


def test_compare_prints_a_table_and_writes_a_page(folder: Path) -> None:
    options = ("--systems", "plain,lazy", "--price-in", "1", "--at-a-time", "4")
    output = run(*COMPARE, *options)
    assert "Reading the documents in docs" in output and "Stay with plain for now" in output
    assert (
        "The data do not show a difference in right answers between L-RAG (lazy) and plain: 100.0 %" in output
    )
    assert "Report: run.html. All answers: run.db." in output
    assert "wall time of these questions, divided by their number" in " ".join(output.split())
    with EvaluationRun("run.db") as rows:
        assert rows.systems == ["plain", "lazy"] and len(rows.rows) == 2 * QUESTIONS
        assert sum(rows.values("lazy", "contains").values()) == QUESTIONS
    page = (folder / "run.html").read_text()
    for text in (
        "Stay with plain for now",
        "scripted",
        "docs (30 passages)",
        "questions.jsonl (30)",
        "surerag",
    ):
        assert text in page
    assert "60 of 60" in run(*COMPARE, *options)  # nothing is asked again


def test_compare_takes_plain_rag_and_the_methods_by_default(folder: Path) -> None:
    run(*COMPARE, "--at-a-time", "8")
    with EvaluationRun("run.db") as rows:
        assert rows.systems == ["plain", "lazy", "rewritten", "selected"]
        for system, calls in (
            ("plain", 1),
            ("selected", 1 + 3 * DEFAULT_K),
        ):  # a third of those found
            answers = [row.answer for row in rows.answered(system).values() if row.answer]
            assert {len(answer.contexts) for answer in answers} == {DEFAULT_K}
            assert {answer.usage.requests for answer in answers if answer.usage} == {calls}
    page = Path(__file__).parents[2].joinpath("docs/compare.md").read_text()
    assert f"(`--systems {compare.DEFAULT}`)" in " ".join(page.split())


def test_a_forgotten_column_of_right_answers_is_named_before_anything_is_asked(
    folder: Path,
) -> None:
    (folder / "sheet.csv").write_text("Nr,Frage,Antwort\n1,Where was P1 born?,Orun\n")
    sheet = ("compare", "sheet.csv", "--documents", "docs", "--columns", "question=Frage")
    with pytest.warns(FileNotesWarning, match=r"not used: Nr, Antwort; .*question=Frage,references=Antwort"):
        output = run(*sheet)
    assert output.index("sheet.csv has no reference answers: the") < output.index("Reading the documents")
    with pytest.raises(InputError, match="needs reference answers"), pytest.warns(FileNotesWarning):
        run(*sheet, "--require", "accuracy(lazy) >= 0.9")
    with warnings.catch_warnings(action="error", category=FileNotesWarning):
        output = run(*sheet[:-1], "question=Frage,references=Antwort", "--run", "second.db")
    assert "no reference answers" not in output
    (folder / "sheet.csv").write_text("question,answer\nWhere was P1 born?,Orun\nWhere was P2 born?,\n")
    assert "1 question without a reference answer in sheet.csv is not scored." in run(
        *sheet[:-2], "--run", "third.db"
    )


@pytest.mark.parametrize("command", ["compare", "evaluate", "train-rewriter"])
def test_the_help_names_every_kind_of_file_with_questions(command: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_questions(tmp_path / "questions.odd")
    suffixes = re.findall(r"\.(\w+)", str(refused.value.hint))
    output = run(command, "--help")
    assert (
        len(suffixes) == 6 and [one for one in suffixes if not re.search(rf"\b{one}\b", output, re.I)] == []
    )


@pytest.mark.parametrize(
    ("requirement", "code"),
    [
        ("tokens(lazy) <= 2 * tokens(plain) in 50 % of questions", 0),
        ("accuracy(none) >= 0.9", 3),
        ("accuracy(lazy) >= 0.97", 4),
    ],
)
def test_requirements_set_the_exit_code(requirement: str, code: int, folder: Path) -> None:
    run(*COMPARE, "--systems", "plain,lazy,none", "--require", requirement, code=code)
    assert ET.parse("run.xml").getroot().attrib["tests"] == "1"


def test_a_dry_run_asks_a_few_questions_and_extrapolates(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["surerag", *COMPARE, "--dry-run", "5"])
    output = " ".join(run(*COMPARE, "--dry-run", "5").split())
    assert "30 questions with L-RAG (lazy), extrapolated from 5:" in output
    assert "30 calls" in output  # one each: no interval of no width
    assert not Path("run.html").exists()
    doubt = r"\(uncertainty 0\.1\)"
    example = rf"Examples: - Where was P\d+ born\? Right: (\w+) plain: \1 {doubt} L-RAG \(lazy\): \1 {doubt}"
    assert re.search(example, output), output
    assert output.endswith("To ask all questions and write the report run.html: surerag " + " ".join(COMPARE))
    with EvaluationRun("run.db") as rows:
        asked = [row.question.text for row in rows.rows]
        assert len(asked) == 20 and asked[-1] != "Where was P4 born?"  # not the first five
    run(*COMPARE)
    assert "extrapolated from 5:" in " ".join(run(*COMPARE, "--dry-run", "5").split())  # and after a full run


def test_a_dry_run_of_a_large_folder_encodes_what_it_may_show(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []

    class Counting(HashingEncoder):
        def encode(self, texts: Any, kind: Any) -> Any:
            encoded.extend(texts if kind == "document" else ())
            return super().encode(texts, kind)

    monkeypatch.setattr(models, "load_encoder", lambda: CachedEncoder(Counting(), folder / "vectors.db"))
    monkeypatch.setattr(models, "WITHOUT_CHOICE", 10)
    monkeypatch.setattr(models, "LIKELY", 3)
    output = " ".join(run(*COMPARE, "--systems", "plain,lazy", "--dry-run", "2").split())
    chosen = re.search(
        r"Note: this dry run encodes (\d) of 30 passages: the passages that have the most", output
    )
    assert chosen and "extrapolated from 2:" in output
    assert len({text.split()[0] for text in encoded} - {"Ada"}) == int(chosen[1]) <= 6
    assert not Path("run.db").exists()  # whose answers may come from other passages
    run(*COMPARE, "--systems", "plain,lazy")
    encoded.clear()
    again = run(*COMPARE, "--systems", "plain,lazy", "--dry-run", "2")
    assert "most words in common" not in again and len(encoded) == 1  # the text that tells encoders apart


def test_a_missing_summary_is_noted_only_if_a_system_uses_summaries(folder: Path) -> None:
    (folder / "docs" / "ships.csv").write_text("name,port\nIris,Velm\nHera,Orun\n")
    assert "no summary" not in run(*COMPARE, "--systems", "plain,selected", "--dry-run", "1")
    output = run(*COMPARE, "--systems", "plain,lazy+compressed", "--dry-run", "1")
    assert "Note: 1 of 31 documents, such as tables, have no summary" in output and "summarize=" not in output


def test_python_runs_the_command_line() -> None:
    command = [sys.executable, "-m", "surerag", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("surerag ")


def test_the_help_and_the_pages_name_the_fields_of_columns_alike() -> None:
    page = (Path(__file__).parents[2] / "docs" / "questions.md").read_text("utf-8")
    [example] = re.findall(r"--columns (\S+)`", page)
    assert set(models.parse_columns(example)) == {"question", "references"}


def test_the_language_of_documents_tells_where_sentences_end(folder: Path) -> None:
    (folder / "docs" / "p0.txt").write_text(
        "P0 kam am 3. Mai nach Velm. Dort schrieb sie Briefe. Sie blieb lange. " * 6
    )
    for language, summary in (
        ("de", "P0 kam am 3. Mai nach Velm. Dort schrieb sie Briefe."),
        ("en", "P0 kam am 3. Mai nach Velm."),
    ):
        corpus = models.load_corpus(folder / "docs", language, summarize=True)
        assert corpus.summaries and corpus.summaries.retrieve("P0 kam", 1)[0].text == summary


def test_a_changed_run_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(*COMPARE, "--systems", "lazy")
    path = folder / "questions.jsonl"
    path.write_text(path.read_text().replace("P3 born", "P3 christened"))
    expected = (
        r"run.db is a run of other questions: 1 of its 30 questions are missing now, such as 'Where was P3"
    )
    with monkeypatch.context() as loading:
        loading.setattr(compare, "load_reader", lambda *_: pytest.fail("a model was loaded"))
        with pytest.raises(ConfigurationError, match=expected):
            run(*COMPARE, "--systems", "lazy")
    run(*COMPARE, "--systems", "lazy", "--ask-again")


@pytest.mark.parametrize("dry_run", ["5", "30"])
@pytest.mark.parametrize("ended", [True, False])
def test_answers_of_dry_runs_block_no_other_questions(
    dry_run: str, ended: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheet, path = (*COMPARE, "--systems", "lazy"), folder / "questions.jsonl"
    text = path.read_text()
    path.write_text(text.replace("born?", "christened?"))
    with monkeypatch.context() as asking:
        if not ended:  # the user sees that the questions are wrong, and presses Ctrl-C
            asking.setattr(models, "evaluate", lambda *a, **k: evaluate_run(*a, **k) and interrupt())
        run(*sheet, "--dry-run", dry_run, code=0 if ended else models.INTERRUPTED)
    for start, options in (("Say: where", ("--dry-run", "7")), ("Where", ())):
        path.write_text(text.replace("Where", start))
        with pytest.warns(StoredAnswersWarning, match="of other questions: .* has only answers of dry runs"):
            run(*sheet, *options)
    assert "questions of dry runs" not in (folder / "run.html").read_text()
    path.write_text(text.replace("born?", "seen?"))
    with pytest.raises(ConfigurationError, match="is a run of other questions"):
        run(*sheet)  # the complete run is no dry run


def test_the_page_has_the_notes_on_files_of_the_terminal(folder: Path) -> None:
    (folder / "docs" / "old.txt").write_bytes("Caf\xe9s in Velm open at nine.".encode("cp1252"))
    (folder / "docs" / "empty.txt").write_text("")
    (folder / "sheet.csv").write_bytes(
        "question,answer\nWhere was P1 born? Caf\xe9?,Orun|Velm\n".encode("cp1252")
    )
    ignored = warnings.catch_warnings(action="ignore", category=SkippedFilesWarning)
    with pytest.warns(FileNotesWarning) as shown, ignored:
        run("compare", "sheet.csv", "--documents", "docs", "--systems", "plain,none")
    page = html.unescape((folder / "run.html").read_text("utf-8"))
    assert "3 notes on files that may have been read wrongly" in page and "One file was not read" in page
    assert "<li>empty.txt: the file is empty</li>" in page and "<li>old.txt: its encoding is a guess" in page
    messages = [str(warning.message) for warning in shown if "sheet.csv" in str(warning.message)]
    assert len(messages) == 2 and all(f"<li>{message}</li>" in page for message in messages)


def test_new_reference_answers_are_scored_without_asking_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "questions.jsonl"
    path.write_text(path.read_text().replace("answers", "Antwort"))
    asked = (*COMPARE, "--systems", "plain", "--columns")
    with pytest.warns(FileNotesWarning, match="no reference answers"):
        run(*asked, "question=question")
    with monkeypatch.context() as asking:
        asking.setattr(fake.FakeReader, "generate", lambda *_, **__: pytest.fail("a question was asked"))
        with pytest.warns(StoredAnswersWarning, match="30 stored questions got other reference answers"):
            output = run(*asked, "question=question,references=Antwort")
    assert "60 of 60" not in output and "30 of 30" in output
    with EvaluationRun("run.db") as rows:
        assert sum(rows.values("plain", "contains").values()) == QUESTIONS
    run("evaluate", "questions.jsonl", "--columns", "references=Antwort", "--entailer", "exact")
    path.write_text(path.read_text().replace("Velm", "Rome"))  # ΔSePer depends on the reference answers
    with pytest.raises(ConfigurationError, match="run of the same questions with other reference answers"):
        run("evaluate", "questions.jsonl", "--columns", "references=Antwort", "--entailer", "exact")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--systems", "lasy"), "no system 'lasy'"),
        (("--systems", "a,a"), "each system once"),
        (("--systems", "plain+compressed+compressed"), "has a step twice"),
        (("--systems", "plain,oracle"), "without contexts.*--columns contexts=NAME"),
        (("--columns", "question"), "field=column"),
        (("--require", "acc(lazy) > 1"), "the requirement 'acc"),
        (("--require", "accuracy(refined) >= 0.5"), "no system 'refined'"),
        (("--require", "bleu(lazy) >= 0.5"), "no measure 'bleu'"),
        (("--run", "no folder/run.db"), "Name a file in an existing folder"),
        (("--run", "docs"), "Name a file in an existing folder"),
        (("--run", "questions.jsonl"), "questions.jsonl is not a run"),
        (("--run", "report.html"), "the report would overwrite the file"),
        (("--documents", "no folder"), "Invalid value for '--documents'"),
    ],
)
def test_wrong_options_are_refused_before_a_model_is_loaded(
    options: tuple[str, ...],
    expected: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(compare, "load_reader", lambda *_: pytest.fail("a model was loaded"))
    path = folder / "questions.jsonl"
    path.write_text(path.read_text().replace("contexts", "others"))
    assert started(monkeypatch, *COMPARE, *options) == 2
    told = " ".join(re.sub("[│╭╰─]", " ", capsys.readouterr().err).split())
    assert re.search(expected, told), told
    assert not Path("run.db").exists()


def test_calibrate_reads_a_run(folder: Path) -> None:
    run(*COMPARE, "--systems", "lazy@inf,lazy@-inf")
    assert "no guarantee is possible with 30 questions; about" in run("calibrate", "run.db", code=4)
    assert run("calibrate", "run.db", "--max-loss", "0.3", "--output", "loss.json").startswith("Threshold ")
    policy = ThresholdPolicy.load("loss.json")
    assert policy.scope["retriever"] == ""  # the retriever of the user's pipeline is another one
    rag = LazyRAG(compare.load_reader(None, None), FixedSummary("x"), "x", threshold=policy)
    assert rag.run("Where was P1 born?").decision.threshold == policy.threshold
    assert policy.scope["reader"] == "scripted" and "entropy" in policy.scope["gate"] and policy.n == 30
    assert "inf:" not in run("calibrate", "run.db", code=4)
    replacing = ("calibrate", "run.db", "--max-risk", "0.3", "--system", "lazy@inf", "--output")
    output = " ".join(run(*replacing, "loss.json").split())
    assert "The policy replaces the ThresholdPolicy that was in loss.json" in output
    with pytest.raises(ConfigurationError, match=r"run.db is not a policy, and would be overwritten"):
        run(*replacing, "run.db")
    assert policy.scope["system"] == "lazy"
    with pytest.raises(ValueError, match="no rewritten@inf and rewritten@-inf"):
        run("calibrate", "run.db", "--system", "rewritten")


@pytest.mark.parametrize("option", ["--max-loss", "--max-risk"])
def test_calibrate_leaves_questions_without_a_reference_out_and_counts_them(
    option: str, folder: Path
) -> None:
    path = folder / "questions.jsonl"
    path.write_text(path.read_text().replace('["Velm"]', "[]", 1))
    run(*COMPARE, "--systems", "lazy@inf,lazy@-inf")
    command = ("calibrate", "run.db", option, "0.3", "--system", "lazy@inf" if "risk" in option else "lazy")
    with pytest.warns(CalibrationWarning, match="^1 of 30 questions is left out, because it has no score"):
        run(*command)
    policy = AbstentionPolicy.load if "risk" in option else ThresholdPolicy.load
    assert policy("policy.json").n == 29


def test_calibrate_withholds_answers_of_any_system_by_their_certainty(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubting(prompt: str) -> Any:
        """Be wrong of every third person, and unsure of them."""
        person = re.findall(r"Where was P(\d+) born", prompt)
        wrong = bool(person) and int(person[-1]) % 3 == 0
        return fake.reply("Nowhere" if wrong else reply(prompt), entropy=2.0 if wrong else 0.1)

    monkeypatch.setattr(compare, "load_reader", lambda *_, **__: FakeReader(doubting))
    run(*COMPARE, "--systems", "plain,lazy")
    command = ("calibrate", "run.db", "--max-risk", "0.3", "--output", "abstain.json")
    output = " ".join(run(*command).split())
    assert "at most 30 % of the answers given are wrong" in output and "Policy for plain: abst" in output
    policy = AbstentionPolicy.load("abstain.json")
    assert policy.coverage == pytest.approx(2 / 3)
    assert policy.scope == {"reader": "scripted", "measure": "greatest_3_mean_entropy", "system": "plain"}
    assert policy.select("Velm", policy.threshold + 1).abstained
    run(*command, "--measure", "mean_entropy", "--system", "lazy")
    scope = AbstentionPolicy.load("abstain.json").scope
    assert scope["measure"] == "mean_entropy"
    assert scope["reader"] == "scripted" and "entropy" in scope["gate"]
    with pytest.raises(ConfigurationError, match=r"no system 'refined'.*Choose from plain, lazy"):
        run(*command, "--system", "refined")
    monkeypatch.setattr(compare, "load_reader", lambda *_, **__: FakeReader(reply, logprob=None))
    run(*COMPARE, "--systems", "plain", "--run", "text.db")
    with pytest.raises(ConfigurationError, match="no answer of plain has both log-probabilities"):
        run("calibrate", "text.db", "--max-risk", "0.3")


def test_evaluate_measures_contexts(folder: Path) -> None:
    output = run("evaluate", "questions.jsonl", "--entailer", "exact", "--run", "contexts.db")
    assert "delta_seper" in output and "contains" not in output
    with EvaluationRun("contexts.db", {}) as rows:
        assert rows.systems == ["contexts"] and rows.scores == ["delta_seper", "seper_after", "seper_before"]
        assert min(rows.values("contexts", "delta_seper").values()) > 0.9
    records = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()[:6]]
    named = [record | {"system": name} for record in records for name in ("bm25", "dense")]
    (folder / "two.jsonl").write_text("\n".join(map(json.dumps, named)))
    for score, text in (
        ("seper", "Stay with bm25 for now"),
        ("dense", "The data do not show a difference in dse"),
    ):
        options = ("--score", score, "--entailer", "exact", "--run", f"{score}.db")
        output = " ".join(run("evaluate", "two.jsonl", *options).split())
        assert text in output and "bm25" in output and ("Stay" in output) == (score == "seper")
    for name in ("contexts", "answers"):
        lacking = [{key: value for key, value in record.items() if key != name} for record in records]
        (folder / "lacking.jsonl").write_text("\n".join(map(json.dumps, lacking)))
        with pytest.raises(ValueError, match=r"contexts|reference answers"):
            run("evaluate", "lacking.jsonl", "--run", "lacking.db")


def test_an_understanding_that_cannot_be_measured_is_no_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = FakeReader(lambda prompt: "a paraphrase" if "Where" not in prompt else "")
    monkeypatch.setattr(evaluate, "load_reader", lambda *_: silent)
    output = run("evaluate", "questions.jsonl", "--score", "dense", "--entailer", "exact", "--run", "run.db")
    assert "no answer could be measured" in " ".join(output.split())
    with EvaluationRun("run.db", {}) as rows:
        assert len(rows.answered("contexts")) == QUESTIONS and rows.scores == []  # not 0, which is "certain"


def test_doctor_tries_the_judge_and_the_methods(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = run("doctor")
    assert (
        "As a judge: 5 of 10 pairs right, 0 replies unusable. This is not enough: at least 8 are needed"
        in output
    )
    assert "Certainty of answers: works, with the measure greatest_3_mean_entropy." in output
    assert "with an NLI classifier" in output and 'gate="entropy"' in output
    labels = {(premise, hypothesis): label for premise, hypothesis, label in doctor.LABELLED_PAIRS}

    def judge(prompt: str) -> str:
        there = [pair for pair in labels if all(text in prompt for text in pair)]
        pair = next(pair for pair in there if prompt.index(pair[0]) < prompt.index(pair[1]))
        return "entailment" if labels[pair] else "neutral"

    reader = FakeReader(judge, entropy=None, logprob=None)
    monkeypatch.setattr(doctor, "load_reader", lambda *_, **__: reader)
    output = run("doctor")
    assert (
        "0 replies unusable. This is enough: at least 8" in output and "Certainty of answers: not" in output
    )
    assert "10 of 10 pairs right" in output and 'gate="abstention"' in output
    assert doctor.try_judge(FakeReader(lambda prompt: "\x1b[2J maybe"))[1].startswith("As a judge: 0 of 10")


def test_every_command_has_at_most_17_options() -> None:
    commands = typer.main.get_command(app.app).commands  # type: ignore[attr-defined]
    assert set(commands) == {"demo", "doctor", "compare", "evaluate", "calibrate", "train-rewriter"}
    for command in commands.values():
        options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
        assert len([option for option in options if option.name != "help"]) <= 17
        assert all(option.help for option in options)


def started(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["surerag", *arguments])
    with pytest.raises(SystemExit) as ended:
        app.main()
    return ended.value.code


def test_errors_are_one_line_with_the_fix(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert started(monkeypatch, "calibrate", "missing.db") == 2
    assert capsys.readouterr().err == "Error: there is no run at missing.db\n"
    assert started(monkeypatch, "compare") == 2
    capsys.readouterr()

    def fails(*_: Any, **__: Any) -> Any:
        raise ServiceError("the server said \x1b[2J\nnothing", hint="start it")

    monkeypatch.setattr(doctor, "load_reader", fails)
    assert started(monkeypatch, "doctor") == 1
    assert capsys.readouterr().err == "Error: the server said nothing. Start it.\n"
    assert started(monkeypatch, "--help") == 0
    with pytest.raises(ValueError, match="expected the name of a model"):
        models.load_reader(None, None)
    with pytest.raises(ConfigurationError, match="--base-url is not an address: Port out of range"):
        models.load_reader("http://h:99999", "m")


def test_errors_name_options_in_place_of_arguments(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*COMPARE, "--systems", "lazy@inf,lazy@-inf")
    assert started(monkeypatch, "calibrate", "run.db", "--max-loss", "2") == 2
    assert "--max-loss must be in (0, 1], got 2.0" in capsys.readouterr().err


def answered() -> int:
    """Answers that are stored in the run, if it is there."""
    try:
        with EvaluationRun("run.db") as rows:
            return len(rows.rows)
    except (ValueError, OSError, sqlite3.Error):  # it is being made
        return 0


def test_an_interrupted_compare_goes_on(folder: Path) -> None:
    """Ctrl-C in a process of its own: exit code 130, and the answers so far are in the run."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        sys.stderr = open(writing, "w", buffering=1)  # noqa: PTH123, SIM115
        code = 1
        try:
            sys.argv = ["surerag", *COMPARE]
            slow = FakeReader(lambda prompt: time.sleep(0.02) or reply(prompt), entropy=0.1)
            compare.load_reader = lambda *_, **__: slow  # type: ignore[assignment]
            signal.signal(signal.SIGINT, signal.default_int_handler)
            app.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            os._exit(code)
    while not answered():
        time.sleep(0.02)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    os.close(writing)
    told = " ".join(os.read(reading, 100_000).decode().split())
    assert "interrupted; " in told and " stored in run.db. Repeat the command to continue" in told
    with EvaluationRun("run.db") as rows:
        assert 0 < len(rows.rows) < 2 * QUESTIONS
    run(*COMPARE)


def test_untrusted_text_is_printed_without_control_codes(capsys: pytest.CaptureFixture[str]) -> None:
    display.show("a\x1b[2Jb\u202e[red]c")
    assert capsys.readouterr().out == "ab[red]c\n"


def test_a_terminal_wraps_between_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the stream for a terminal
    texts = [
        f"Text {number} says more than fits into a line of the terminal, whose width is 60."
        for number in "1234"
    ]
    display.show(texts[0])
    display.show_error(texts[1])
    display.show_note(texts[2])
    display.show(texts[3], wrap=False)
    with warnings.catch_warnings():
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        app._silence_libraries()
        warnings.warn(
            "A warning is a note that is wrapped as well as an error, if it is long", FileNotesWarning, 1
        )
    told = "".join(capsys.readouterr())
    plain = re.sub(r"\x1b\[\d*m", "", told).split("\n")
    assert texts[3] in plain  # a command can be copied
    plain.remove(texts[3])
    assert max(map(len, plain)) <= 60 and "".join(plain).count("Note: ") == 2
    assert all(word in " ".join(plain).split() for text in texts[:2] for word in text.split())
    with evaluate_run({"plain": lambda q: q, "shout": lambda q: q}, [("a?", "A")]) as rows:
        assert max(map(len, str(terminal_table(rows)).split("\n"))) <= 60


def test_progress_without_a_terminal_is_in_ten_lines_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = count(1.0, 60.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with reporting(True, 100, "x") as advance:
        for items in (50, *[10] * 5):  # half of it was there before
            advance(items)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["x: 0 of 100", "x: 50 of 100", "x: 60 of 100, about 0:04:00 left"]
    assert lines[-1] == "x: 100 of 100"
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 1.0))
    with reporting(True, 10, "x") as advance:
        for _ in range(10):  # ten small files in no time
            advance()
    assert capsys.readouterr().err.splitlines() == ["x: 0 of 10", "x: 10 of 10"]


def test_the_bar_shows_the_time_left_of_a_model_that_takes_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, bars = [0.0], []

    class Bar(rich.progress.Progress):
        def __init__(self, *columns: Any, **settings: Any) -> None:
            super().__init__(*columns, get_time=lambda: now[0], **settings)
            bars.append(self)

    monkeypatch.setattr(rich.progress, "Progress", Bar)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with reporting(True, 10) as advance:
        for _ in range(5):
            advance()
            now[0] += 60
        assert bars[0].tasks[0].time_remaining == 300


def test_the_demo_shows_five_methods_and_compares_three(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from surerag import demo as package

    monkeypatch.setattr(
        package,
        "load_reader",
        lambda base, **_: FakeReader(lambda prompt: "gauge bosons", entropy=2.0),
        raising=False,
    )
    monkeypatch.setattr(demo, "packaged_minilm", HashingEncoder)
    output = run("demo", "--questions", "5", "--output", str(tmp_path / "out"), "--base", "folder")
    assert "What are the exchanged particles" in output and "entropy 2.00 nats" in output
    assert "5 questions" in output and (tmp_path / "out" / "demo.html").is_file()


def test_a_server_is_asked_what_it_can_do() -> None:
    with FakeOpenAI(["Velm"]) as server:
        reader = models.load_reader(server.base_url, "toy")
        assert reader.capabilities.logprobs
        output = run("doctor", "--base-url", server.base_url, "--model", "toy")
        assert (
            "log-probabilities" in output and "As a judge: 0 of 10 pairs right, 10 replies unusable" in output
        )


def test_a_servers_model_takes_no_dtype() -> None:
    with pytest.raises(ConfigurationError, match="--dtype is for a local model"):
        models.load_reader("http://127.0.0.1:1/v1", "toy", "bfloat16")


def test_the_version_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert started(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"surerag {metadata.version('surerag')}\n"


def test_where_no_server_listens_it_says_so_at_once(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(ServiceError, match=r"no server answers at 127\.0\.0\.1.*--model demo"):
            models.load_reader(address, "toy")


def test_the_model_demo_is_the_demos_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    from surerag import demo as package

    reader = FakeReader(["Velm"])
    found = iter(["folder", None])
    monkeypatch.setattr(package, "find_base", lambda: next(found))
    monkeypatch.setattr(package, "fetch_base", lambda: Path("fetched"))
    given: list[Any] = []
    monkeypatch.setattr(
        package, "load_reader", lambda base, **options: given.append((base, options)) or reader, raising=False
    )
    assert models.load_reader(None, "demo") is models.load_reader(None, "demo", "bfloat16") is reader
    assert given == [("folder", {"dtype": None}), ("fetched", {"dtype": "bfloat16"})]
    assert compare._options("demo", None)["compressed"]["prompts"] == {"extract": package.EXTRACT_PROMPT}


def test_a_page_shows_no_password_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "https://me:secret@host:8000/v1?key=secret"
    monkeypatch.setattr(sys, "argv", ["surerag", "compare", f"--base-url={address}"])
    assert models.command_line(address) == "surerag compare --base-url=https://host:8000/v1"


OUTPUTS = {
    "demo": ("--output", "taken/out"),
    "train-rewriter": ("questions.jsonl", "--documents", "docs", "--base", "tiny", "--output", "taken/out"),
    "calibrate": ("run.db", "--output", "no/policy.json"),
    "compare": ("questions.jsonl", "--documents", "docs", "--run", "no/run.db"),
    "compare with a folder in the page's place": (*COMPARE[1:], "--run", "page.db"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_cannot_be_written_is_wrong_usage_and_nothing_is_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    pytest.importorskip("surerag.training.pipeline")
    (folder / "taken").write_text("a file in the place of the folder")
    (folder / "page.html").mkdir()
    assert started(monkeypatch, name.split()[0], *OUTPUTS[name]) == 2
    said = capsys.readouterr()
    assert re.match(r"Error: .* cannot be written.*\. Name a f.*\.\n$", said.err) and not said.out
    assert not (folder / "run.db").exists() and not (folder / "page.db").exists()


def test_train_rewriter_calls_the_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = pytest.importorskip("surerag.training")
    pipeline = pytest.importorskip("surerag.training.pipeline")
    calls: list[Any] = []
    bases: list[str] = []

    class Report:
        rewriter = None

        def __str__(self) -> str:
            return "No stage improves."

    def train(queries: Any, base: str, output: Path, **more: Any) -> Report:
        calls.append((len(queries), base, more["options"].reward, more["options"].lora_rank))
        return Report()

    monkeypatch.setattr(training, "train_rewriter", train)
    command = sys.modules["surerag.cli.train_rewriter"]
    monkeypatch.setattr(command, "load_base", lambda base: bases.append(base))
    monkeypatch.setattr(command, "find_base", lambda: "the/base")
    monkeypatch.setattr(pipeline, "MIN_QUERIES", QUESTIONS)
    options = ("--documents", "docs", "--base", "tiny", "--lora-rank", "0", "--reward", "answer")
    assert "No stage improves." in run("train-rewriter", "questions.jsonl", *options, code=4)
    assert calls == [(QUESTIONS, "tiny", "answer", None)]
    run("train-rewriter", "questions.jsonl", "--documents", "docs", "--base", "demo", code=4)
    assert bases == ["tiny", "the/base"]
    # Too few queries, or a base that cannot be found, are an error before the model and documents are read.
    monkeypatch.setattr(command, "load_reader", lambda *_: pytest.fail("the model was loaded too early"))
    monkeypatch.setattr(command, "find_base", lambda: None)
    with pytest.raises(ConfigurationError, match="the base model of the demo is not on this machine"):
        run("train-rewriter", "questions.jsonl", "--documents", "docs", "--base", "demo")
    monkeypatch.setattr(pipeline, "MIN_QUERIES", QUESTIONS + 1)
    with pytest.raises(InputError, match="distinct queries are too few"):
        run("train-rewriter", "questions.jsonl", "--documents", "docs", "--base", "tiny")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.timeout(60)
def test_a_named_pipe_is_refused_instead_of_read_for_ever(folder: Path) -> None:
    for name in ("pipe.jsonl", "pipe.parquet", "pipe.db"):
        os.mkfifo(name)
    options = ("--documents", "docs", "--model", "m")
    for command in (
        ("compare", "pipe.jsonl", *options),
        ("compare", "pipe.parquet", *options),
        (*COMPARE, "--run", "pipe.db"),
        ("calibrate", "pipe.db"),
    ):
        with pytest.raises((ConfigurationError, InputError), match=r"not a regular file|no run at"):
            run(*command)


@pytest.mark.parametrize("path", ["a" * 300, "", ".", "file.txt/inside"])
def test_a_path_that_cannot_be_looked_at_is_a_usage_error(path: str, folder: Path) -> None:
    (folder / "file.txt").write_text("x")
    for command in (
        (*COMPARE, "--run", path),
        ("calibrate", "run.db", "--output", path),
        ("calibrate", path, "--max-risk", "0.1"),
        ("train-rewriter", "questions.jsonl", "--documents", "docs", "--output", path or "file.txt"),
    )[: 3 if path == "." else 4]:  # a model may be written to this folder
        with pytest.raises((ConfigurationError, InputError)):
            run(*command)
