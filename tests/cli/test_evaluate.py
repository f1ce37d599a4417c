"""``surerag evaluate`` as a user types it: killed, resumed, changed, and given hostile texts."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surerag import SePerOptions
from surerag.cli import main
from surerag.cli.display import console
from surerag.cli.readers import ReaderChoice
from surerag.readers.scripted import ScriptedReader
from surerag.recording import generation_key
from surerag.types import Sampling
from tests.clean_process import command_line
from tests.cli.killed import evaluate
from tests.cli.times import CLOCK
from tests.evaluation.noting import NotingReader, notes_of, write_rows
from tests.failing_disk import FailingDisk
from tests.kills import KILLS

RESULTS = ("report.html", "results.json", "rows-?????.parquet", "distribution.svg", "systems.svg")
CONCURRENCY = 4
ANSWER = Sampling(n=3, temperature=1.0, max_tokens=SePerOptions.max_tokens, seed=0, trace="logprobs")
VERDICT = Sampling(max_tokens=8, trace="none")


@pytest.fixture
def surerag(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setattr(console, "_width", 120)

    def run(*arguments: object, reader: object) -> tuple[object, str]:
        monkeypatch.setattr(ReaderChoice, "build", lambda _: reader)
        monkeypatch.setattr(sys, "argv", ["surerag", "evaluate", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capfd.readouterr()
        return exit_.value.code, " ".join((printed.out + printed.err).split())

    return run


def results(folder: Path) -> dict[str, bytes]:
    """Read what a run wrote, but for what its clock said."""
    files = (file for pattern in RESULTS for file in folder.glob(pattern))
    return {file.name: CLOCK.sub(b"", file.read_bytes()) for file in files}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("local", [False, True])
def test_killed_again_and_again_it_ends_as_if_undisturbed(tmp_path: Path, local: bool) -> None:
    file = write_rows(tmp_path / "d.jsonl", questions=20)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.cli.killed"])

    def started(name: str, seconds: float) -> multiprocessing.process.BaseProcess:
        process = processes.Process(
            target=evaluate, args=(file, tmp_path / name / "out", tmp_path / name / "notes", seconds, local)
        )
        (tmp_path / name).mkdir(exist_ok=True)
        process.start()
        return process

    calm = started("calm", 0.0)
    calm.join()
    assert calm.exitcode == 0, (tmp_path / "calm" / "printed.txt").read_text()
    once = notes_of(tmp_path / "calm" / "notes")
    assert len(once) == len(set(once))

    rng = random.Random(5)
    kills = trial = 0
    # A run that gets to its end before the last kill is followed by another one.
    while kills < KILLS:
        trial += 1
        out, notes = tmp_path / f"trial {trial}" / "out", tmp_path / f"trial {trial}" / "notes"
        asked_before, kills_before, done = 0, kills, False
        while not done:
            known = known_prompts(out, once)
            # So many more questions, and then a little while: kills fall at any point.
            reach = asked_before + rng.randrange(12)
            process = started(f"trial {trial}", 0.002)
            while kills < KILLS and process.is_alive() and lines_of(notes) <= reach:
                time.sleep(0.0005)
            if kills < KILLS and process.is_alive():
                time.sleep(rng.random() * 0.004)
                process.kill()
            process.join()
            done = process.exitcode != -signal.SIGKILL
            kills += not done
            asked = notes_of(notes)[asked_before:]
            asked_before += len(asked)
            assert not known & set(asked), "what was answered is asked again"
            assert len(asked) == len(set(asked)), "one run asks twice"
        assert process.exitcode == 0, (tmp_path / f"trial {trial}" / "printed.txt").read_text()
        assert set(notes_of(notes)) == set(once)
        if not local:
            # Each of the rows at work asks for two contexts, or for some pairs, at the same time.
            assert asked_before - len(once) <= (kills - kills_before) * CONCURRENCY * CONCURRENCY
        assert results(out) == results(tmp_path / "calm" / "out")


def lines_of(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def known_prompts(folder: Path, prompts: list[str]) -> set[str]:
    """Which prompts a run's folder holds an answer to: in open journals, and folded away."""
    texts = [file.read_text() for file in folder.glob("open-*.jsonl")]
    for file in folder.glob("answers-*.jsonl.zst"):
        with pa.OSFile(str(file)) as packed:
            texts.append(pa.CompressedInputStream(packed, "zstd").read().decode())
    whole = (text[: text.rfind("\n") + 1] for text in texts)
    keys = {json.loads(line).get("key") for text in whole for line in text.splitlines()}
    return {
        prompt
        for prompt in prompts
        if {generation_key("noting", prompt, sampling) for sampling in (ANSWER, VERDICT)} & keys
    }


def test_killed_at_the_last_moments_too(tmp_path: Path, surerag, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_rows(tmp_path / "d.jsonl")
    options = ("--model", "m", "--entailment", "exact", "--output")
    assert surerag(file, *options, tmp_path / "calm", reader=NotingReader())[0] == 0
    out = tmp_path / "out"
    for step in ("write_plots", "render_comparison", "waterfalls", "write_whole"):
        with monkeypatch.context() as patched:

            def dies(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            patched.setattr(f"surerag.cli.evaluate.{step}", dies)
            code, _ = surerag(file, *options, out, reader=NotingReader())
            assert code == 130
    last = NotingReader()
    assert surerag(file, *options, out, reader=last)[0] == 0
    assert last.asked == []
    assert results(out) == results(tmp_path / "calm")
    assert not list(out.glob("*.part"))


@pytest.mark.parametrize("local", [False, True])
def test_a_full_disk_ends_the_run_and_nothing_more_is_asked(
    tmp_path: Path, surerag, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    file = write_rows(tmp_path / "d.jsonl", questions=100)
    options = ("--model", "m", "--entailment", "judge", "--n-samples", "3", "--concurrency", CONCURRENCY)
    calm, again = NotingReader(local=local), NotingReader(local=local)
    assert surerag(file, *options, "--output", tmp_path / "calm", reader=calm)[0] == 0
    out, notes = tmp_path / "out", tmp_path / "notes"
    with monkeypatch.context() as patched:
        patched.setattr("surerag.lines.os", FailingDisk("write", errno.ENOSPC, after=6))
        code, said = surerag(file, *options, "--output", out, reader=NotingReader(notes, local=local))
    [journal] = out.glob("open-*.jsonl")
    kept = journal.read_text().count("\n") - 1
    assert code == 1
    assert "Error:" in said and os.strerror(errno.ENOSPC) in said and "is kept" in said
    under_way = CONCURRENCY * (2 * CONCURRENCY if local else CONCURRENCY)
    assert kept > 0 and len(notes_of(notes)) <= kept + under_way
    assert not (out / "results.json").exists()
    assert surerag(file, *options, "--output", out, reader=again)[0] == 0
    assert len(again.asked) == len(calm.asked) - kept
    assert results(out) == results(tmp_path / "calm")


def test_changed_settings_or_data_are_refused_then_reused(tmp_path: Path, surerag) -> None:
    file, out = write_rows(tmp_path / "d.jsonl", 4), tmp_path / "out"
    options = (file, "--model", "m", "--entailment", "exact", "--output", out)
    assert surerag(*options, reader=NotingReader())[0] == 0
    code, printed = surerag(*options, "--n-samples", 4, reader=NotingReader())
    assert code == 1
    assert "n_samples was 10 and is 4" in printed
    write_rows(file, 5)
    code, printed = surerag(*options, reader=NotingReader())
    assert code == 1
    assert "data was '8 rows, digest" in printed
    more = NotingReader()
    code, printed = surerag(*options, "--reuse", reader=more)
    assert code == 0, printed
    # One question more, of two systems; and the passages of at most two new extremes.
    assert 3 <= len(more.asked) <= 7
    assert all("person 4" in prompt for prompt in more.asked if "Person" not in prompt)
    fresh = NotingReader()
    assert surerag(*options, "--restart", reader=fresh)[0] == 0
    assert len(fresh.asked) > 15


def test_hostile_texts_are_text(tmp_path: Path, surerag) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)> {{ 7 * 7 }} {% raw %} [bold]x[/bold] $x_1$"
    rows = [
        {
            "question": f"{evil} {n}?",
            "answers": [evil],
            "contexts": [evil, f"{evil} {n}"],
            "system": s,
            "id": n,
        }
        for n in range(3)
        for s in (evil, "plain")
    ]
    file = tmp_path / "d.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = ScriptedReader(lambda prompt: evil if "[1]" in prompt else f"{evil}\ud83d")
    code, printed = surerag(
        file, "--model", "m", "--entailment", "exact", "--output", tmp_path / "out", reader=reader
    )
    assert code == 0, printed
    assert "[bold]x[/bold]" in printed
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "{{ 7 * 7 }}" in page
    assert "default-src 'none'" in page
    first = pq.read_table(tmp_path / "out" / "rows-00000.parquet").to_pylist()[0]
    assert first["question"] == f"{evil} 0?"
    assert first["steps"][0]["before"]["answers"][0]["text"] == f"{evil}?"  # UTF-8 has no lone surrogates


def test_reader_without_log_probabilities_is_named_everywhere(tmp_path: Path, surerag) -> None:
    file = write_rows(tmp_path / "d.jsonl", 3, ("good",))
    options = ("--model", "m", "--entailment", "exact", "--output", tmp_path / "out")
    code, printed = surerag(file, *options, reader=NotingReader(logprobs=False))
    assert code == 0
    assert "has no log-probabilities" in printed
    assert "gave no log-probabilities" in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "results.json").read_text())["weighting"] == "frequency"


def test_samples_that_were_cut_are_told_in_terminal_and_report(tmp_path: Path, surerag) -> None:
    class Cut(NotingReader):
        def generate(self, prompts, sampling):
            rows = super().generate(prompts, sampling)
            return [[replace(answer, finish="length") for answer in row] for row in rows]

    file = write_rows(tmp_path / "d.jsonl", 3, ("good",))
    options = ("--model", "m", "--entailment", "exact", "--output", tmp_path / "out")
    code, printed = surerag(file, *options, reader=Cut())
    told = "60 samples, of 3 of 3 questions, were cut at 512 tokens (max_tokens)"
    assert code == 0
    assert told in printed
    assert told in (tmp_path / "out" / "report.html").read_text()
    assert json.loads((tmp_path / "out" / "results.json").read_text())["systems"][0]["truncated"] == 60


def test_failed_rows_are_told_and_tried_again(tmp_path: Path, surerag) -> None:
    class Choosy(NotingReader):
        def generate(self, prompts, sampling):
            if any("Person 1 " in str(prompt) for prompt in prompts):
                raise RuntimeError("no")
            return super().generate(prompts, sampling)

    file = write_rows(tmp_path / "d.jsonl", 3, ("good",))
    options = (file, "--model", "m", "--entailment", "exact", "--output", tmp_path / "out")
    code, printed = surerag(*options, reader=Choosy())
    assert code == 1
    assert "1 of 3 rows could not be measured, the first because: RuntimeError: no" in printed
    assert "What could not be measured" in (tmp_path / "out" / "report.html").read_text()
    again = NotingReader()
    assert surerag(*options, reader=again)[0] == 0
    assert all("1" in prompt for prompt in again.asked)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--entailment", "nil"), "--entailment must be exact, judge, nli or nli:MODEL"),
        (("--entailment", "judge:x"), "--entailment must be"),
        (("--baseline", "none"), "none of the systems"),
        (("--reuse", "--restart"), "goes without --restart"),
    ],
)
def test_wrong_usage_is_one_friendly_line(tmp_path: Path, surerag, options, words) -> None:
    file = write_rows(tmp_path / "d.jsonl", 2)
    reader = NotingReader()
    code, printed = surerag(file, "--output", tmp_path / "out", *options, reader=reader)
    assert code in (1, 2)
    assert words in printed
    assert "Traceback" not in printed
    assert reader.asked == []


def test_an_interruption_says_what_is_kept(tmp_path: Path, surerag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surerag.evaluation.inputs.dataset.UNIT", 4)
    file, out = write_rows(tmp_path / "d.jsonl", 12), tmp_path / "out"

    class Interrupted(NotingReader):
        def generate(self, prompts, sampling):
            if any("person 9 " in str(prompt) for prompt in prompts):
                raise KeyboardInterrupt
            return super().generate(prompts, sampling)

    options = (file, "--model", "m", "--entailment", "exact", "--output", out, "--concurrency", 2)
    first = Interrupted(local=True)
    code, printed = surerag(*options, reader=first)
    assert code == 130
    assert f"16 of 24 rows are measured and kept in {out}" in printed
    assert "The same command goes on from here." in printed
    again = NotingReader(local=True)
    code, printed = surerag(*options, reader=again)
    assert code == 0 and "Going on: 16 of 24 rows are measured." in printed
    assert not set(first.asked) & set(again.asked)


def test_finished_units_are_neither_read_nor_scored_again(
    tmp_path: Path, surerag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surerag.evaluation.inputs.dataset.UNIT", 4)
    file, out = write_rows(tmp_path / "d.jsonl", 12), tmp_path / "out"
    options = (file, "--model", "m", "--entailment", "exact", "--output", out, "--extremes", 0)
    assert surerag(*options, reader=NotingReader())[0] == 0
    before = results(out)
    manifest = out / "manifest.jsonl"
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(line for line in lines if '"unit":1' not in line and "complete" not in line))
    (out / "answers-00001.jsonl.zst").unlink()
    units: list[int] = []
    from surerag.evaluation.inputs.dataset import DataSet

    read = DataSet.unit
    monkeypatch.setattr(DataSet, "unit", lambda data, unit: units.append(unit) or read(data, unit))
    monkeypatch.setattr("surerag.evaluation.inputs.dataset._checked", None)  # the file is not read again
    again = NotingReader()
    assert surerag(*options, reader=again)[0] == 0
    assert units == [1]
    assert all(any(f" {n} " in f"{prompt} " for n in range(4, 8)) for prompt in map(spaced, again.asked))
    assert results(out) == before


def spaced(prompt: str) -> str:
    return "".join(char if char.isalnum() else " " for char in prompt)


def test_exports_of_others_are_evaluated_and_told(tmp_path: Path, surerag) -> None:
    file = tmp_path / "ragas.csv"
    file.write_text(
        "user_input,retrieved_contexts,response,reference\n"
        'Where was person 1 born?,"[""Person 1 was born in Velm.""]",Orun,Velm\n'
    )
    options = ("--model", "m", "--entailment", "exact", "--output", tmp_path / "out")
    code, printed = surerag(file, *options, reader=NotingReader())
    assert code == 0, printed
    told = "question from 'user_input', answers from 'reference', contexts from 'retrieved_contexts'"
    assert f"Taken from CSV: {told}" in printed
    code, printed = surerag(file, *options, "--columns", "answers=respons", reader=NotingReader())
    assert code == 1 and "--columns answers=response" in printed


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", "none.jsonl"),
        ("evaluate", "d.jsonl", "--columns", "answer=gold"),
        ("evaluate", "d.jsonl", "--entailment", "nil"),
        ("record", "none.jsonl", "--documents", "."),
        ("record", "d.jsonl", "--documents", "none.txt"),
        ("train-rewriter", "none.jsonl", "--base", "b", "--documents", ".", "--model", "m"),
        ("train-rewriter", "d.jsonl", "--world", "3"),
    ],
)
def test_wrong_arguments_are_told_before_anything_heavy_is_imported(tmp_path: Path, arguments) -> None:
    write_rows(tmp_path / "d.jsonl", 2)
    watch = (
        "import atexit, sys\n"
        "heavy = {'torch', 'scipy', 'transformers', 'matplotlib'}\n"
        "atexit.register(lambda: print(sorted(heavy & {*sys.modules})))\n"
    )
    done = command_line(arguments, before=watch, folder=tmp_path)
    assert done.returncode in (1, 2), done.stderr
    assert "Error" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout.strip() == "[]"
