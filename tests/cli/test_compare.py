"""``surerag compare`` as a user types it: figures, costs before and after, conditions, kills."""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from surerag.cli import compare_runs
from surerag.encoders import HashingEncoder
from surerag.readers.scripted import reply
from surerag.types import Generation, Prompt, Sampling
from tests.cli.killed import compare
from tests.cli.towns import corpus
from tests.evaluation.noting import NotingReader, notes_of
from tests.kills import KILLS


class Local(NotingReader):
    """A model in this process that says the town of whom it is asked about, where it stands before it."""

    def __init__(self) -> None:
        super().__init__(local=True)

    def _answer(self, text: str, sampling: Sampling, at: int) -> Generation:
        told = re.findall(r"(Person\d+) was born in (\w+)", text)
        asked = re.findall(r"Question: .*?(Person\d+)", text)
        towns = [town for person, town in told if asked and person == asked[0]]
        answer = towns[0] if towns else "Nowhere"
        extracted = f"{asked[0]} was born in {answer}." if "Extracted:" in text and towns else answer
        said = reply(extracted, logprobs=-0.5, entropy=None)
        return replace(said, prompt_tokens=len(text.split()), completion_tokens=1)


class Dies(Local):
    """Is interrupted at a prompt."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        if len(self.asked) >= self._last:
            raise KeyboardInterrupt
        return super().generate(prompts, sampling)


PRICES = '[models."noting"]\nprompt = 1.0\ncompletion = 2.0\n'


@pytest.fixture
def compared(surerag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(compare_runs, "packaged_minilm", HashingEncoder)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    questions, documents = corpus(tmp_path)

    def run(*more: object, reader: Any = None, systems: str = "plain,none,compressed") -> Any:
        return surerag(
            "compare", questions, "--documents", documents, "--model", "m", "--systems", systems,
            "--output", tmp_path / "out", *more, reader=reader or Local(),
        )  # fmt: skip

    return run


def test_it_tells_figures_costs_and_a_recommendation_and_writes_a_page(compared: Any, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES)
    ran = compared("--prices", prices)
    assert ran.code == 0, ran.err
    for text in ("24 questions over", "To be asked", "A question costs", "Against plain", "USD"):
        assert text in ran.out
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    systems = {one["name"]: one for one in found["systems"]}
    right = {name: one["measures"]["accuracy"]["value"] for name, one in systems.items()}
    assert right["plain"] > 0.9 and right["none"] == 0.0
    assert systems["plain"]["costs"]["money"] > 0 and systems["compressed"]["costs"]["calls"] >= 2
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<b>boats</b>" not in page and "&lt;b&gt;boats" in page
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert found["recommendation"]["text"][:20] in page


def test_the_same_command_again_asks_nothing(compared: Any) -> None:
    assert compared().code == 0
    again = Local()
    assert compared(reader=again).code == 0 and again.asked == []


def test_a_dry_run_says_what_is_to_come_and_asks_nothing(compared: Any, tmp_path: Path) -> None:
    reader = Local()
    ran = compared("--dry-run", reader=reader)
    assert ran.code == 0 and reader.asked == [] and "To be asked" in ran.out and "together" in ran.out
    assert not (tmp_path / "out" / "manifest.jsonl").exists()


def test_a_cost_that_is_too_high_or_unknown_is_refused_before_anything_is_asked(
    compared: Any, tmp_path: Path
) -> None:
    reader = Local()
    ran = compared("--max-cost", 1, reader=reader)
    assert ran.code == 1 and "--prices FILE" in ran.err
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES)
    ran = compared("--max-cost", 0.0001, "--prices", prices, reader=reader)
    assert ran.code == 1 and "expected to cost" in ran.err and reader.asked == []
    assert compared("--max-cost", 10, "--prices", prices, reader=reader).code == 0


def test_conditions_have_exit_codes_and_are_told_to_machines(compared: Any, tmp_path: Path) -> None:
    junit, summary = tmp_path / "junit.xml", tmp_path / "summary.md"
    told = ("--junit", junit, "--summary", summary)
    # Nothing is right without passages.
    ran = compared("--fail-if", "accuracy of none < plain - 5", *told)
    assert ran.code == 3 and "fails" in ran.out, ran.err
    suite = ET.fromstring(junit.read_text())[0]
    assert suite.get("failures") == "1" and suite[0][0].get("type") == "regression"
    assert "❌ fails" in summary.read_text()

    ran = compared("--fail-if", "accuracy of compressed < plain - 5", *told)
    assert ran.code == 4 and "cannot be told" in ran.out
    ran = compared("--fail-if", "accuracy of compressed < plain - 5", "--undecided", "pass", *told)
    assert ran.code == 0 and ET.fromstring(junit.read_text())[0].get("skipped") == "1"
    ran = compared("--fail-if", "tokens of none > plain", *told)
    assert ran.code == 0 and "passes" in ran.out
    assert summary.read_text().count("## surerag compare") == 4


def test_a_baseline_file_is_tested_against(compared: Any, surerag: Any, tmp_path: Path) -> None:
    assert compared().code == 0
    baseline = tmp_path / "main.parquet"
    baseline.write_bytes((tmp_path / "out" / "baseline.parquet").read_bytes())
    ran = compared("--baseline", baseline)
    # Twenty-four questions show nothing, and it says how many would.
    assert ran.code == 4 and "accuracy of plain < baseline - 5" in ran.out and "it takes about" in ran.out
    ran = compared("--baseline", baseline, "--margin", 20)
    assert ran.code == 0
    ran = compared("--baseline", baseline, "--fail-if", "accuracy of none < baseline:plain - 10")
    assert ran.code == 3


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (("--fail-if", "accuracy of lasy < plain"), 1, "no system 'lasy'"),
        (("--systems", "plain,lazzy"), 1, "there is no system 'lazzy'"),
        (("--junit", "x.xml"), 2, "goes with --fail-if"),
        (("--seper",), 2, "goes with --entailment"),
        (("--trace", "nowhere"), 2, "alone"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(
    compared: Any, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], code: int, told: str
) -> None:
    class Never:
        @property
        def name(self) -> str:
            raise AssertionError("a model was loaded")

    ran = compared(*more, reader=Never())
    assert ran.code == code and told in ran.err


def test_without_gold_answers_nothing_is_called_accuracy(
    surerag: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(compare_runs, "packaged_minilm", HashingEncoder)
    questions, documents = corpus(tmp_path, golds=False)
    ran = surerag(
        "compare", questions, "--documents", documents, "--model", "m", "--systems", "plain,none",
        "--output", tmp_path / "out", "--consistency", 2, reader=Local(),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    page = (tmp_path / "out" / "report.html").read_text()
    for text in (ran.out, page):
        assert "ccuracy" not in text
    assert "Agreement with the reference" in ran.out and "Self consistency" in ran.out
    assert "It says nothing of whether answers are right" in " ".join(page.split())


def test_interrupted_it_says_what_was_kept_and_goes_on(compared: Any, tmp_path: Path) -> None:
    ran = compared(reader=Dies(9))
    assert ran.code == 130 and "What is committed is kept, and what was answered since" in ran.out
    assert compared().code == 0


@pytest.mark.timeout(900)
def test_killed_again_and_again_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    questions, documents = corpus(tmp_path)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.cli.killed"])

    def started(name: str, seconds: float) -> Any:
        (tmp_path / name).mkdir(exist_ok=True)
        out, notes = tmp_path / name / "out", tmp_path / name / "notes"
        process = processes.Process(target=compare, args=(questions, documents, out, notes, seconds))
        process.start()
        return process

    calm = started("calm", 0.0)
    calm.join()
    assert calm.exitcode == 0, (tmp_path / "calm" / "printed.txt").read_text()
    once = notes_of(tmp_path / "calm" / "notes")
    assert len(once) == len(set(once)), "a run asks twice what systems share"

    rng, kills, trial = random.Random(16), 0, 0
    while kills < KILLS:
        trial += 1
        notes, done, before = tmp_path / f"trial {trial}" / "notes", False, kills
        while not done:
            reach = len(notes_of(notes)) + rng.randrange(16)
            process = started(f"trial {trial}", 0.002)
            while kills < KILLS and process.is_alive() and len(notes_of(notes)) <= reach:
                time.sleep(0.001)
            if kills < KILLS and process.is_alive():
                time.sleep(rng.random() * 0.004)
                process.kill()
            process.join()
            done = process.exitcode != -signal.SIGKILL
            kills += not done
        assert process.exitcode == 0, (tmp_path / f"trial {trial}" / "printed.txt").read_text()
        asked = notes_of(notes)
        assert set(asked) == set(once)
        # Only what was being asked at the moment of a kill is asked again: at most as much as is at work.
        assert len(asked) - len(once) <= (kills - before) * 4 * 4
        assert figures(tmp_path / f"trial {trial}") == figures(tmp_path / "calm")


def figures(folder: Path) -> Any:
    """Return what a report says, the clock apart."""
    found = json.loads((folder / "out" / "results.json").read_text())
    for system in found["systems"]:
        del system["costs"]["seconds"]
    found["differences"] = [one for one in found["differences"] if one["measure"] != "seconds"]
    return found
