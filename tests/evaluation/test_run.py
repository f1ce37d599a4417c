"""One run: rows as they come, resumed after kills, never mixed."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from surerag import FakeReader, LazyRAG, Passage, Usage
from surerag.calibration import CalibrationRow, calibrate_threshold
from surerag.errors import CapabilityError, ConfigurationError, InputError, ServiceError, StorageError
from surerag.evaluation import EvaluationAnswer, EvaluationRun, Question, aevaluate, evaluate, write_report
from surerag.methods.lazy_rag.component import FixedSummary

QUESTIONS = [(f"What is {i}?", str(i)) for i in range(12)]


def echo(question: str) -> str:
    return question.removeprefix("What is ").removesuffix("?")


def wrong(question: str) -> EvaluationAnswer:
    return EvaluationAnswer("x", ("a context",), Usage(2, 30, 4), "length", 0.5, True, {"delta": 0.25})


def plain_rows(run: EvaluationRun) -> list[tuple[Any, ...]]:
    return [(row.system, row.question, row.answer, row.error) for row in run.rows]


def test_rows_hold_answers_metrics_and_costs() -> None:
    run = evaluate({"echo": echo, "wrong": wrong}, QUESTIONS)
    assert run.systems == ["echo", "wrong"] and len(run.rows) == 24
    assert set(run.values("echo", "exact_match").values()) == {1.0}
    assert set(run.values("wrong", "contains").values()) == {0.0}
    assert run.values("echo", "tokens") == {}
    assert set(run.values("wrong", "tokens").values()) == {34.0}
    assert set(run.values("wrong", "calls").values()) == {2.0}
    assert set(run.values("wrong", "delta").values()) == {0.25} and run.scores == ["delta"]
    assert all(0 <= seconds < 1 for seconds in run.values("echo", "seconds").values())
    assert run.rows[1].answer == wrong("")
    with pytest.raises(ConfigurationError, match=r"no system 'x'\. Its systems are echo, wrong"):
        run.answered("x")


def killed_at(seconds: float, work: Callable[[], None]) -> None:
    """Run work in a forked process that the kernel ends after some time, wherever it is."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize("at_a_time", [1, 4])
def test_a_run_killed_25_times_ends_with_the_same_rows(at_a_time: int, tmp_path: Path) -> None:
    questions = [(f"What is {i}?", str(i)) for i in range(40)]
    calls = tmp_path / "calls"

    def slow(question: str) -> str:
        time.sleep(0.003)
        with calls.open("a") as file:
            file.write("x")
        return echo(question)

    def work() -> None:
        systems = {"slow": slow, "wrong": wrong}
        evaluate(systems, questions, tmp_path / "run.db", at_a_time=at_a_time).close()

    rng = random.Random(0)
    for _ in range(25):
        killed_at(rng.uniform(0.005, 0.06), work)
    work()
    with EvaluationRun(tmp_path / "run.db") as run:
        expected = evaluate({"slow": echo, "wrong": wrong}, questions)
        assert plain_rows(run) == plain_rows(expected)
    # Only what was under way at a kill is asked twice.
    assert 40 <= len(calls.read_text()) <= 40 + 25 * at_a_time
    before = calls.stat().st_size
    work()
    assert calls.stat().st_size == before


def test_errors_are_rows_and_are_asked_again(tmp_path: Path) -> None:
    fails = {"What is 3?", "What is 7?"}

    def flaky(question: str) -> str:
        if question in fails:
            raise TimeoutError("too late")
        return echo(question)

    run = evaluate({"flaky": flaky}, QUESTIONS, tmp_path / "run.db")
    assert [row.error for row in run.rows if row.error] == ["TimeoutError: too late"] * 2
    assert sum(run.values("flaky", "exact_match").values()) == 10  # a failure counts as wrong
    assert len(run.values("flaky", "seconds")) == 10
    assert sum(run.values("flaky", "errors").values()) == 2
    run.close()
    fails.clear()
    again = evaluate({"flaky": flaky}, QUESTIONS, tmp_path / "run.db")
    assert not any(row.error for row in again.rows) and len(again.rows) == 12


def test_a_run_of_systems_that_always_fail_is_an_error() -> None:
    def broken(question: str) -> str:
        raise ConnectionError("no route")

    with pytest.raises(
        ServiceError, match="broken failed on 5 questions in a row: ConnectionError: no route"
    ):
        evaluate({"broken": broken}, QUESTIONS)

    def misconfigured(question: str) -> str:
        raise CapabilityError("no log-probabilities")

    with pytest.raises(CapabilityError):
        evaluate({"misconfigured": misconfigured}, QUESTIONS)
    with pytest.raises(ServiceError, match="InputError: a system returned an int without an answer"):
        evaluate({"number": lambda question: 3}, QUESTIONS)


def test_a_system_that_fails_ends_and_the_others_go_on() -> None:
    def dies(question: str) -> str:
        if int(echo(question)) >= 2:
            raise ConnectionError("no route")
        return echo(question)

    run = evaluate({"echo": echo, "dies": dies, "wrong": wrong}, QUESTIONS)
    assert run.comparable == ["echo", "wrong"] and len(run.answered("echo")) == 12
    assert [row.error for row in run.rows if row.system == "dies"] == [""] * 2 + [
        "ConnectionError: no route"
    ] * 5


def test_a_system_that_fails_again_is_no_error_of_a_run_that_has_the_others(tmp_path: Path) -> None:
    def dies(question: str) -> str:
        raise ConnectionError("no route")

    for _ in range(2):
        with evaluate({"echo": echo, "dies": dies}, QUESTIONS, tmp_path / "run.db") as run:
            assert len(run.answered("echo")) == 12 and run.comparable == ["echo"]


def test_a_trial_and_what_follows_it_are_one_run(tmp_path: Path) -> None:
    path, calls = tmp_path / "run.db", []

    def counted(question: str) -> str:
        calls.append(question)
        return echo(question)

    for asked in (QUESTIONS[7:9], QUESTIONS, QUESTIONS[:3], QUESTIONS):
        with evaluate({"one": counted}, asked, path) as run:
            assert [row.question.text for row in run.rows] == [text for text, _ in asked]
    assert len(calls) == 12


def test_finished_answers_of_an_interrupted_batch_are_stored(tmp_path: Path) -> None:
    def interrupted(question: str) -> str:
        if question == "What is 0?":
            raise KeyboardInterrupt
        time.sleep(0.05)
        return echo(question)

    with pytest.raises(KeyboardInterrupt):
        evaluate({"one": interrupted}, QUESTIONS, tmp_path / "run.db", at_a_time=12)
    with EvaluationRun(tmp_path / "run.db") as run:
        assert len(run.rows) == 11


def test_a_run_is_read_from_a_medium_that_cannot_be_written() -> None:
    folder = Path(tempfile.mkdtemp())  # of pytest's own folders others may see nothing
    evaluate({"echo": echo}, QUESTIONS, folder / "run.db").close()
    assert [path.name for path in folder.iterdir()] == ["run.db"]
    source = f"""
import os
from surerag.evaluation import EvaluationRun
os.chmod({str(folder)!r}, 0o555)
if os.getuid() == 0:
    os.setuid(65534)  # nobody: what is read-only binds root not
with EvaluationRun({str(folder / "run.db")!r}) as run:
    print(len(run.rows))
"""
    (folder / "run.db").chmod(0o444)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    folder.chmod(0o755)
    shutil.rmtree(folder)
    assert done.stdout == "12\n", done.stderr


def test_a_second_process_is_refused_while_one_asks(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    reading, writing = os.pipe()

    def waits(question: str) -> str:
        os.write(writing, b"x")
        time.sleep(30)
        return ""

    child = os.fork()
    if not child:
        evaluate({"echo": waits}, QUESTIONS, path)
        os._exit(0)
    os.read(reading, 1)
    with pytest.raises(StorageError, match="another process is adding answers of echo"):
        evaluate({"echo": waits}, QUESTIONS, path)
    evaluate({"wrong": wrong}, QUESTIONS, path).close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    evaluate({"wrong": wrong}, QUESTIONS, path).close()
    assert not (tmp_path / "run.db-lock").exists()


def test_what_a_run_comes_from_is_recorded(tmp_path: Path) -> None:
    with evaluate({"echo": echo}, QUESTIONS, tmp_path / "run.db") as run:
        run.record({"model": "toy"})
        sqlite3.connect(tmp_path / "run.db").execute("SELECT value FROM about")
    with EvaluationRun(tmp_path / "run.db") as run:
        assert run.about == {"model": "toy"} and len(run.rows) == 12


def test_changed_systems_and_questions_are_refused_or_asked_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    reader = FakeReader(lambda prompt: "Velm", entropy=0.1)
    rag = LazyRAG(reader, FixedSummary("more"), "Ada was born in Velm.")
    evaluate({"rag": rag}, ["Where?", "Who?"], path).close()
    calls = len(reader.history)
    evaluate({"rag": rag}, ["Where?", "Who?", "Why?"], path).close()  # more questions
    assert 0 < len(reader.history) - calls < calls
    changed = rag.with_options(threshold=-1.0)
    with pytest.raises(ConfigurationError, match="other settings of rag"):
        evaluate({"rag": changed}, ["Where?", "Who?", "Why?"], path)
    with pytest.raises(ConfigurationError, match="other questions: 3 of its 3 questions are missing now"):
        evaluate({"rag": rag}, ["When?"], path)
    run = evaluate({"rag": changed}, ["Where?", "When?"], path, on_change="ask")
    assert [row.question.text for row in run.rows] == ["Where?", "When?"]
    assert all(row.answer is not None and row.answer.acted for row in run.rows)  # no row of before
    run.close()
    other = evaluate({"other": echo}, ["Where?", "When?"], path)  # one more system
    assert other.systems == ["rag", "other"] and len(other.rows) == 4


def test_decisions_and_usage_of_components_are_recorded() -> None:
    rag = LazyRAG(
        FakeReader(lambda prompt: "Velm", entropy=0.1), FixedSummary("a detail"), "Ada was born in Velm."
    )
    [row] = evaluate({"rag": rag}, ["Where?"]).rows
    assert row.answer is not None and row.answer.usage is not None
    assert (row.answer.text, row.answer.acted, row.answer.contexts) == (
        "Velm",
        False,
        ("Ada was born in Velm.",),
    )
    assert row.answer.uncertainty == pytest.approx(0.1) and row.answer.usage.requests == 1


@pytest.mark.parametrize(
    "target",
    [
        SimpleNamespace(
            query=lambda q: SimpleNamespace(
                response=echo(q),
                source_nodes=[SimpleNamespace(node=SimpleNamespace(text="a context"), text="a context")],
            )
        ),
        SimpleNamespace(
            invoke=lambda q: {"answer": echo(q), "context": [SimpleNamespace(page_content="a context")]}
        ),
        lambda q: {"output": echo(q), "passages": [Passage("a context")]},
    ],
    ids=["query engine", "runnable", "function"],
)
def test_engines_runnables_and_functions_are_systems(target: Any) -> None:
    run = evaluate({"target": target}, QUESTIONS)
    assert [row.answer for row in run.rows] == [
        EvaluationAnswer(reference, ("a context",)) for _, reference in QUESTIONS
    ]


def test_a_message_reports_tokens() -> None:
    message = SimpleNamespace(content="x", usage_metadata={"input_tokens": 7, "output_tokens": 2})
    run = evaluate({"chat": SimpleNamespace(invoke=lambda q: message)}, QUESTIONS)
    assert set(run.values("chat", "tokens").values()) == {9.0}


async def slow_echo(question: str) -> str:
    await asyncio.sleep(0.05)
    return echo(question)


@pytest.mark.parametrize(
    "target", [slow_echo, SimpleNamespace(aquery=slow_echo), SimpleNamespace(ainvoke=slow_echo)]
)
def test_coroutines_are_awaited_and_seconds_of_a_batch_are_divided(target: Any) -> None:
    run = evaluate({"slow": target}, QUESTIONS, at_a_time=12)
    assert sum(run.values("slow", "exact_match").values()) == 12
    seconds = set(run.values("slow", "seconds").values())
    assert len(seconds) == 1 and 0.05 / 12 <= seconds.pop() < 0.03
    assert {row.at_a_time for row in run.rows} == {12}


async def test_aevaluate_runs_coroutines_in_the_loop_of_the_caller() -> None:
    loops = set()

    async def system(question: str) -> str:
        loops.add(asyncio.get_running_loop())
        return echo(question)

    run = await aevaluate({"system": system, "echo": echo}, QUESTIONS, at_a_time=3)
    assert loops == {asyncio.get_running_loop()} and len(run.rows) == 24


async def test_a_cancelled_aevaluate_stops(tmp_path: Path) -> None:
    begun = asyncio.Event()

    def progress(done: int, total: int) -> None:
        if done:
            begun.set()

    run = aevaluate({"slow": slow_echo}, QUESTIONS, tmp_path / "run.db", progress=progress)
    task = asyncio.create_task(run)
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.1)
    with EvaluationRun(tmp_path / "run.db") as run:
        assert 0 < len(run.rows) < 12


def test_an_interruption_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    calls: list[str] = []

    def interrupted(question: str) -> str:
        calls.append(question)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return echo(question)

    with pytest.raises(KeyboardInterrupt):
        evaluate({"one": interrupted}, QUESTIONS, tmp_path / "run.db")
    counts: list[tuple[int, int]] = []
    evaluate({"one": interrupted}, QUESTIONS, tmp_path / "run.db", progress=lambda *two: counts.append(two))
    assert counts[0] == (4, 12) and counts[-1] == (12, 12) and len(calls) == 13


def test_files_that_are_no_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run at"):
        EvaluationRun(tmp_path / "none.db")
    (tmp_path / "x.db").write_text("not a database, but long enough to be read as one" * 10)
    with pytest.raises(InputError, match="not a run"):
        EvaluationRun(tmp_path / "x.db")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE other (x)")
    with pytest.raises(InputError, match="not a run"):
        evaluate({"echo": echo}, QUESTIONS, tmp_path / "other.db")
    with pytest.raises(StorageError):
        evaluate({"echo": echo}, QUESTIONS, tmp_path / "no folder" / "x.db")
    rows = [CalibrationRow(i, 1.0, 1.0) for i in range(200)]
    run = evaluate({"echo": echo}, QUESTIONS)
    for write in (calibrate_threshold(rows).save, run.to_parquet, partial(write_report, run)):
        with pytest.raises(
            StorageError, match=r"no folder.* cannot be written: .*\. Name a file in an existing folder"
        ):
            write(tmp_path / "no folder" / "x")


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


DAMAGES = {
    "newer": ("PRAGMA user_version = 99", "has format 99, and this version of surerag reads format 1"),
    "no JSON": ("UPDATE rows SET answer = '{'", "the answer of a to question .* cannot be read"),
    "a further field": (
        "UPDATE rows SET answer = json_set(answer, '$.new', 1)",
        "damaged, or another version",
    ),
    "a missing field": (
        "UPDATE rows SET answer = json_remove(answer, '$.usage')",
        "damaged, or another version",
    ),
    "another type": ("UPDATE rows SET answer = '[1, 2]'", "damaged, or another version"),
    "a certainty of another form": (
        "UPDATE rows SET answer = json_set(answer, '$.certainty', json('{}'))",
        "damaged, or another version",
    ),
    "questions": ("UPDATE questions SET question = '[]'", "damaged, or another version"),
    "a missing table": ("DROP TABLE questions", "damaged, or another version|no such table"),
    "a missing column": ("ALTER TABLE rows DROP COLUMN seconds", "damaged, or another version"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_or_newer_run_is_an_error_with_the_remedy(kind: str, tmp_path: Path) -> None:
    statement, message = DAMAGES[kind]
    path, calls = tmp_path / "run.db", []

    def answer(question: str) -> str:
        calls.append(question)
        return "x"

    evaluate({"a": answer}, QUESTIONS, path).close()
    changed(path, statement)

    def read() -> None:
        with EvaluationRun(path) as run:
            write_report(run, tmp_path / "page.html")

    attempts = (
        [read] if kind == "a missing table" else [read, lambda: evaluate({"a": answer}, QUESTIONS, path)]
    )
    for attempt in attempts:
        with pytest.raises(InputError, match=message) as caught:
            attempt()
        assert str(path) in str(caught.value) and caught.value.hint
    assert len(calls) == len(QUESTIONS)  # nothing is asked before the file is read


@pytest.mark.parametrize("where", ["cut", "overwritten"])
def test_a_run_whose_pages_are_broken_is_an_error_of_ours(where: str, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    evaluate({"a": lambda question: "x" * 3000}, QUESTIONS, path).close()
    data = bytearray(path.read_bytes())
    if where == "cut":
        del data[9000:]
    else:
        data[4096 * 3 :: 97] = bytes(255 - byte for byte in data[4096 * 3 :: 97])
    path.write_bytes(data)
    with pytest.raises((InputError, StorageError), match="damaged"):
        _ = EvaluationRun(path).rows
    with pytest.raises((InputError, StorageError), match="damaged"):
        evaluate({"a": echo, "b": echo}, QUESTIONS, path)


def test_a_run_without_a_format_is_read_as_long_as_its_rows_can_be(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    evaluate({"a": echo}, QUESTIONS, path).close()
    remove = "UPDATE rows SET answer = json_remove(answer, '$.certainty', '$.sources')"
    changed(path, "PRAGMA user_version = 0", "DROP TABLE documents", remove)
    with EvaluationRun(path) as run:
        assert len(run.rows) == len(QUESTIONS) and run.documents is None
    assert len(evaluate({"a": echo}, QUESTIONS, path).rows) == len(QUESTIONS)


def test_a_lock_that_cannot_be_opened_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "run.db-lock").symlink_to(tmp_path / "no folder" / "lock")
    with pytest.raises(StorageError, match=r"run\.db cannot be written"):
        evaluate({"a": echo}, QUESTIONS, tmp_path / "run.db")


def test_a_notebook_shows_findings_and_the_table() -> None:
    html = evaluate({"plain": echo, "<b>": wrong}, QUESTIONS)._repr_html_()
    assert "<table>" in html and "&lt;b&gt; answers worse than plain" in html and "<b>" not in html
    assert "It is not known which answers are right" in evaluate({"a": echo}, ["one"])._repr_html_()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"systems": {}}, "no systems"),
        ({"systems": {"a": 3}}, "the system 'a' is an int, which cannot answer questions"),
        ({"at_a_time": 0}, "at_a_time must be a whole number of at least 1"),
        ({"metrics": ("bleu",)}, "no metric 'bleu'"),
        ({"systems": [echo]}, "systems must be systems by their names, got a list"),
        ({"on_change": "aks"}, "on_change must be 'refuse' or 'ask', got 'aks'"),
    ],
)
def test_unusable_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        evaluate(**{"systems": {"echo": echo}, "questions": QUESTIONS, **options})


def test_the_error_of_a_system_of_your_own_shows_no_key() -> None:
    def refused(question: str) -> str:
        raise ValueError("Incorrect API key provided: sk-9f8e7d6c5b4a")

    run = evaluate({"refused": refused, "echo": echo}, ["one"])
    assert run.rows[0].error == "ValueError: Incorrect API key provided: [key]"


def test_metrics_may_be_functions() -> None:
    run = evaluate({"echo": echo}, QUESTIONS, metrics={"length": lambda answer, _: len(answer) / 10})
    assert run.values("echo", "length")[Question(*[QUESTIONS[11][0], ("11",)]).key] == 0.2


def test_scores_and_metrics_are_finite_numbers() -> None:
    run = evaluate({"nan": lambda q: EvaluationAnswer("x", scores={"s": float("nan")})}, ["one"])
    assert "expected finite numbers" in run.rows[0].error
    run = evaluate({"none": lambda q: EvaluationAnswer(None)}, ["one"])  # type: ignore[arg-type]
    assert "an EvaluationAnswer without an answer" in run.rows[0].error
    run = evaluate({"echo": echo}, QUESTIONS, metrics={"length": lambda answer, _: 2 * len(answer)})
    with pytest.raises(
        ConfigurationError, match=r"the metric length returned 2, expected a number in \[0, 1\]"
    ):
        run.values("echo", "length")


def test_rows_go_to_parquet(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    run = evaluate({"echo": echo, "wrong": wrong}, QUESTIONS, at_a_time=12)
    run.to_parquet(tmp_path / "rows.parquet")
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert len(rows) == 24
    assert run.values("echo", "f1") == {row["key"]: row["f1"] for row in rows if row["system"] == "echo"}
    assert {row["at_a_time"] for row in rows} == {12}
    assert (rows[0]["answer"], rows[0]["exact_match"], rows[0]["prompt_tokens"]) == ("0", 1.0, None)
    assert (rows[1]["delta"], rows[1]["prompt_tokens"], rows[1]["contexts"]) == (0.25, 30, ["a context"])


def test_a_threshold_is_calibrated_from_a_run() -> None:
    rag = LazyRAG(FakeReader(lambda prompt: "Velm"), FixedSummary("Velm"), "Ada was born in Velm.")
    both = {"lazy@inf": rag.with_options(threshold=1e9), "lazy@-inf": rag.with_options(threshold=-1e9)}
    questions = [Question("Where?", ("Velm",), group="atlas"), Question("Who?", ("Ada",))]
    run = evaluate(both, questions, metrics=("exact_match",))
    rows = run.calibration_rows()
    assert [row.group for row in rows] == ["atlas", ""]
    assert [(row.score_without, row.score_with, row.uncertainty) for row in rows] == [
        (1.0, 1.0, pytest.approx(0.1)),
        (0.0, 0.0, pytest.approx(0.1)),
    ]
    with pytest.raises(ConfigurationError, match=r"has no lazy@inf and lazy@-inf.*--max-risk"):
        evaluate({"echo": echo}, QUESTIONS).calibration_rows()
