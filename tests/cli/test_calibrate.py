"""``surerag calibrate`` and ``surerag reproduce decisions``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from surerag.cli.readers import ReaderChoice
from surerag.decisions.files import write_rows
from surerag.decisions.policy import Policy
from surerag.decisions.rows import DecisionRow
from tests.evaluation.noting import NotingReader
from tests.records.corpora import TOWNS, Dying


def rows_file(folder: Path, n: int, **more: float) -> Path:
    rows = [DecisionRow({"doubt": float(i), **more}, i < 0.75 * n, True) for i in range(n)]
    write_rows(rows, folder / "rows.jsonl")
    return folder / "rows.jsonl"


def test_the_command_writes_a_policy_and_says_what_it_promises(surerag, tmp_path: Path) -> None:
    ran = surerag(
        "calibrate", rows_file(tmp_path, 400), "--model", "one", "--output", tmp_path / "policy.json"
    )
    assert ran.code == 0, ran.err
    assert "holds" in ran.out
    assert "at most 2 points" in ran.out
    found = Policy.load(tmp_path / "policy.json")
    assert (found.identity.model, found.identity.signal, found.verdict) == ("one", "doubt", "holds")


def test_the_command_says_how_many_would_be_needed(surerag, tmp_path: Path) -> None:
    ran = surerag("calibrate", rows_file(tmp_path, 100))
    assert ran.code == 1
    assert "about 149 would be needed" in " ".join(ran.out.split())
    several = surerag("calibrate", rows_file(tmp_path, 400, other=1.0))
    assert several.code == 1
    assert "choose one with --signal" in several.err.lower()
    assert surerag("calibrate", tmp_path / "rows.jsonl", "--signal", "doubt").code == 0


def test_the_study_of_decisions_prints_and_stores_every_figure(surerag, tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    ran = surerag("reproduce", "decisions", "--splits", 10, "--streams", 5, "--json", file)
    assert ran.code == 0, ran.err
    assert "Promises broken" in ran.out
    stored = json.loads(file.read_text())
    assert {row["rule"] for row in stored["promises"]} >= {"certified", "normal approx.", "its lower end"}
    assert stored["gates"] == []
    assert [row["shift"] for row in stored["monitors"]] == [0.0, 0.25, 0.5, 1.0]


def mine(folder: Path, n: int = 12, *, golds: bool = True) -> tuple[object, ...]:
    """Return the arguments for questions and documents of one's own."""
    rows = [
        {"question": f"Where was Person {at} born?", **({"answers": [TOWNS[at % 4]]} if golds else {})}
        for at in range(n)
    ]
    (folder / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    documents = [{"id": f"d{at}", "text": f"Person {at} was born in {TOWNS[at % 4]}."} for at in range(n)]
    (folder / "docs.jsonl").write_text("\n".join(map(json.dumps, documents)))
    options = ("--retrieval", "bm25", "--top-n", 1, "--max-tokens", 8, "--max-loss", 0.5, "--timed", 2)
    return ("calibrate", folder / "q.jsonl", "--documents", folder / "docs.jsonl", *options)


def test_ones_own_questions_become_a_policy_a_table_and_a_page(surerag, tmp_path: Path) -> None:
    given, out = mine(tmp_path), tmp_path / "out"
    reader = NotingReader(local=True)
    dry = surerag(*given, "--output", out, "--dry-run", reader=reader)
    assert dry.code == 0 and reader.asked == [] and not list(out.glob("*/trace"))
    told = re.search(r"To be asked.*?: ([\d,]+) prompts.*?and up to (\d+) answers more", dry.out)
    assert told is not None

    (tmp_path / "prices.toml").write_text('[models."noting"]\nprompt = 1.0\ncompletion = 2.0\n')
    more = ("--output", out, "--prices", tmp_path / "prices.toml", "--method", "l-rag", "--method", "edc2")
    ran = surerag(*given, *more, reader=reader)
    assert ran.code in (0, 1), ran.err
    for text in ("what each threshold gives, 12 questions", "what it costs a question", "USD", "1000 ms"):
        assert text in ran.out
    assert "all 2 together at 0.9. For 0.95 together, ask for --confidence 0.975" in ran.out
    policy = Policy.load(out / "noting" / "l-rag.policy.json")
    assert policy.identity.model == "noting" and policy.max_loss == 0.5 and policy.n == 12
    assert Policy.load(out / "noting" / "edc2.policy.json").identity.signal == "tokens"
    stored = json.loads((out / "calibration.json").read_text())
    assert [one["method"] for one in stored] == ["l-rag", "edc2"] and stored[0]["times"]["alone"] == 2
    assert "noting/l-rag.policy.json" in (out / "index.html").read_text()
    assert "| certified |" in (out / "tables.md").read_text() or policy.verdict == "infeasible"

    # Nothing is asked twice: neither of the recording nor of the times.
    again = NotingReader(local=True)
    ran = surerag(*given, *more, reader=again)
    assert again.asked == [] and "Going on" in ran.out
    assert json.loads((out / "calibration.json").read_text()) == stored

    # And a trace needs no model.
    ran = surerag(
        "calibrate", "--trace", out / "noting" / "trace", "--max-loss", 0.5, "--output", tmp_path / "t"
    )
    assert ran.code in (0, 1) and Policy.load(tmp_path / "t" / "noting" / "l-rag.policy.json") == policy


def test_the_dry_run_counts_what_will_be_asked(surerag, tmp_path: Path) -> None:
    given, reader = mine(tmp_path), NotingReader(local=True)
    dry = surerag(*given, "--timed", 0, "--output", tmp_path / "out", "--dry-run", reader=reader)
    told = re.search(r"To be asked.*?: ([\d,]+) prompts", dry.out)
    assert told is not None
    surerag(*given, "--timed", 0, "--output", tmp_path / "out", reader=reader)
    assert int(told.group(1)) == len(reader.asked)


def test_questions_come_as_people_have_them(surerag, tmp_path: Path) -> None:
    mine(tmp_path)
    (tmp_path / "q.csv").write_text("asked,reference\nWhere was Person 1 born?,Orun\n")
    given = ("calibrate", tmp_path / "q.csv", "--documents", tmp_path / "docs.jsonl", "--retrieval", "bm25")
    ran = surerag(
        *given, "--columns", "question=asked", "--output", tmp_path / "o", "--dry-run",
        reader=NotingReader(local=True),
    )  # fmt: skip
    assert ran.code == 0 and "1 questions over" in ran.out, ran.err


def test_without_gold_answers_agreement_is_certified_and_named(surerag, tmp_path: Path) -> None:
    ran = surerag(*mine(tmp_path, golds=False), "--output", tmp_path / "out", reader=NotingReader(local=True))
    assert "Agrees" in ran.out and "there are no gold answers" in ran.out
    assert Policy.load(tmp_path / "out" / "noting" / "l-rag.policy.json").scored == "agreement"


def test_interrupted_it_says_what_was_kept_and_goes_on(surerag, tmp_path: Path) -> None:
    given = (*mine(tmp_path), "--output", tmp_path / "out", "--concurrency", 2)
    ran = surerag(*given, reader=Dying(9, local=True))
    assert ran.code == 130 and "0 questions are kept whole, and what was answered since" in ran.out
    whole = NotingReader(local=True)
    assert surerag(*given, reader=whole).code in (0, 1)
    fresh = NotingReader(local=True)
    surerag(*given[:-4], "--output", tmp_path / "other", "--concurrency", 2, reader=fresh)
    assert len(whole.asked) < len(fresh.asked)


def test_several_models_are_recorded_each_into_its_own_folder(
    surerag, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Called(NotingReader):
        def __init__(self, name: str) -> None:
            super().__init__(local=True)
            self._called = name

        @property
        def name(self) -> str:
            return self._called

    monkeypatch.setattr(ReaderChoice, "build", lambda self: Called(str(self.model)))
    given = (*mine(tmp_path), "--output", tmp_path / "out")
    ran = surerag(*given, "--model", "org/one", "--model", "two")
    assert ran.code in (0, 1), ran.err
    assert "Certified thresholds" in ran.out
    assert {file.parent.name for file in (tmp_path / "out").glob("*/l-rag.policy.json")} == {"org-one", "two"}
    assert "was named twice" in surerag(*given, "--model", "two", "--model", "two").err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("calibrate",), "give questions and --documents"),
        (("calibrate", "--documents", "docs"), "goes with a file of questions"),
        (("calibrate", "q.jsonl", "--trace", "t"), "goes without questions"),
        (("calibrate", "q.jsonl", "--documents", "d", "--prompts", "x"), "a file of rows"),
        (("calibrate", "q.jsonl", "--documents", "d", "--method", "magic"), "none of l-rag, dynqr, edc2"),
        (("calibrate", "q.jsonl", "--model", "a", "--model", "b"), "the one reader"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_is_loaded(surerag, arguments, told: str) -> None:
    ran = surerag(*arguments)
    assert ran.code == 2 and told in re.sub(r"[\s│]+", " ", ran.err)
