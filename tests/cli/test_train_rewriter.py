"""``surerag train-rewriter`` as a user types it, with a tiny base and scripted readers."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import get_args

import pytest

from surerag.cli import main, train_rewriter
from surerag.cli.display import console
from surerag.cli.readers import ReaderChoice
from surerag.methods.dynqr.metrics import METRICS
from surerag.readers.transformers import TransformersReader
from surerag.training.rewriter import REWARDS
from surerag.types import Passage
from tests.clean_process import loaded_by
from tests.training.rewriter_models import CORPUS, QUERIES, Talker, reading, teaching, tiny_base


class Mixed:
    """Finds other passages for every query, in no sensible order."""

    def retrieve(self, query: str, k: int) -> list[Passage]:
        return random.Random(query).sample(CORPUS, k)


def corpus() -> Mixed:
    """What ``--retriever`` names below."""
    return Mixed()


def reading_and_teaching(prompt: str, at: int) -> tuple[str, float]:
    return teaching(prompt, at) if prompt.startswith("Rewrite") else reading(prompt, at)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setattr(console, "_width", 120)
    monkeypatch.setattr(ReaderChoice, "build", lambda _, **__: Talker(reading_and_teaching))

    def run(*arguments: object) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["surerag", "train-rewriter", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capfd.readouterr()
        # Bars of the libraries below: they were loaded before the command line could silence them.
        told = re.sub(r"[\w ]+: +\d+%\|[^]]*\]", "", printed.out + printed.err)
        return exit_.value.code, " ".join(told.split())

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [{"question": q.text, "answers": list(q.golds), "id": q.id} for q in QUERIES]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "queries.jsonl"


RETRIEVER = ("--retriever", "tests.cli.test_train_rewriter:corpus")


def test_all_stages_then_another_reward_from_the_same_samples(tmp_path: Path, file: Path, train) -> None:
    base = tiny_base(tmp_path / "base")
    settings = (
        "--base", base, "--model", "m", *RETRIEVER, "--output", tmp_path / "out", "--held-out-share", 0,
        "--distil-rate", 1e-2,
        "--distil-batch", 5, "--distil-epochs", 60, "--align-rate", 1e-3, "--align-batch", 5,
        "--temperature", 3,
    )  # fmt: skip
    code, printed = train(file, *settings)
    assert code == 0, printed
    assert "Distilled from 5 rewrites of 5 queries" in printed and "of 5 queries: " in printed
    folder = tmp_path / "out" / "align-uncertainty" / "model"
    assert f"from_pretrained({str(folder)!r})" in printed
    assert TransformersReader.from_pretrained(str(folder), device="cpu").count_tokens("a") == 1
    before = (tmp_path / "out" / "sample" / "samples.parquet").read_bytes()
    code, printed = train("--stage", "align", "--reward", "retrieval", *settings)
    assert code == 0 and "Aligned by" in printed, printed
    assert (tmp_path / "out" / "align-retrieval" / "model").is_dir()
    assert (tmp_path / "out" / "sample" / "samples.parquet").read_bytes() == before


def test_a_dry_run_counts_calls_and_tokens_and_does_nothing(tmp_path: Path, file: Path, train) -> None:
    base, out = tiny_base(tmp_path / "base"), tmp_path / "out"
    code, printed = train(
        file,
        "--base",
        base,
        "--model",
        "m",
        *RETRIEVER,
        "--output",
        out,
        "--dry-run",
        "--rewrites",
        4,
        "--held-out-share",
        0,
    )
    assert code == 0, printed
    assert not out.exists()
    for who, calls in (("teacher", 5), ("rewriter", 20), ("retriever", 20), ("reader", 20)):
        assert f"{who} │ {calls} │" in printed, printed
    # 5 rewrites in batches of 4, ten times; then 15 pairs in batches of 4, three times.
    assert "training steps │ 20 │" in printed and "training steps │ 12 │" in printed
    assert "Training, align: about a minute on this machine" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--base", "b", *RETRIEVER), "give either FILE or --world SEED"),
        (("FILE",), "no base was named"),
        (
            ("FILE", "--base", "b"),
            "give one of --documents PATH, --retriever MODULE:FUNCTION and --world SEED",
        ),
        (("FILE", "--base", "b", *RETRIEVER), "the embedded reader knows its closed world only"),
        (("--stage", "align", "--base", "b"), "run --stage distil first, or name it with --rewriter"),
        (
            ("FILE", "--stage", "sample", "--model", "m", "--rewriter", "r", "--retriever", "no.such:thing"),
            "--retriever names 'no.such:thing': No module named 'no'",
        ),
        (
            ("FILE", "--stage", "sample", "--model", "m", "--rewriter", "r", "--retriever", "json"),
            "--retriever must be MODULE:FUNCTION",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, file: Path, train, arguments, message: str) -> None:
    given = [file if argument == "FILE" else argument for argument in arguments]
    code, printed = train(*given, "--output", tmp_path / "out")
    assert code == 1 and message.lower() in printed.lower(), printed


def test_reuse_and_restart_do_not_go_together(train) -> None:
    assert train("--reuse", "--restart")[0] == 2


def test_the_command_line_offers_what_the_library_does() -> None:
    assert get_args(train_rewriter.Reward) == REWARDS
    assert get_args(train_rewriter.Metric) == METRICS


def test_the_command_line_and_the_room_load_no_library() -> None:
    heavy = ("torch", "transformers", "trl", "peft", "datasets", "pyarrow")
    assert loaded_by("import surerag.cli.app, surerag.training.rewriter", *heavy) == []


PEOPLE = ("Ada", "Bo", "Cyr", "Dov", "Eli", "Fay", "Gus", "Hal", "Ivo", "Jan")


def own(folder: Path) -> tuple[Path, Path]:
    """Thirty queries as a table with other names, one of them twice, and a corpus of passages."""
    asked = [f"Where was {name} raised{mark}" for name in PEOPLE for mark in ("?", ", then?", ", say?")]
    rows = [f'"{text}",Velm' for text in [*asked, asked[0]]]
    (folder / "queries.csv").write_text("\n".join(["user_input,reference", *rows]) + "\n")
    lines = [{"text": passage.text, "id": passage.id, "metadata": {"year": 1815}} for passage in CORPUS]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "queries.csv", folder / "corpus.jsonl"


def test_ones_own_queries_and_passages_to_a_report_on_held_out_ones(tmp_path: Path, train) -> None:
    queries, corpus_file = own(tmp_path)
    out, base = tmp_path / "out", tiny_base(tmp_path / "base")
    (tmp_path / "o.yaml").write_text("micro_batch_size: 4\nalign:\n  least_difference: 0\n")
    settings = (
        queries, "--documents", corpus_file, "--base", base, "--model", "m", "--output", out,
        "--options", tmp_path / "o.yaml", "--set", "validation=0", "--distil-rate", 1e-2,
        "--distil-epochs", 40, "--align-epochs", 1, "--temperature", 3, "-k", 3, "--export-trl",
    )  # fmt: skip
    code, printed = train(*settings)
    assert code == 0, printed
    assert "30 of 30 queries drawn at random: 12 to distil, 12 to sample, 6 held out; 1 duplicate" in printed
    assert "steps of 4 at rate 0.01, loss" in printed
    assert "6 held-out queries" in printed and "as asked" in printed and "aligned" in printed
    card = (out / "align-uncertainty" / "model" / "README.md").read_text()
    assert "6 held-out queries; changes are paired" in card and "steps of" in card
    assert (out / "distil" / "rewrites.jsonl").is_file()
    vectors = (out / "index" / "vectors.npy").stat().st_mtime_ns
    code, again = train(*settings)
    assert code == 0 and printed.partition("6 held-out queries")[2] in again, again
    assert (out / "index" / "vectors.npy").stat().st_mtime_ns == vectors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--reward", "answer"), "needs gold answers, and no query has some"),
        (("--set", "distil.max_unusabel=1"), "If 'max_unusable' is meant"),
        (("--set", "max_tokens=8"), "are more than the 8 that"),
        (("--documents", "none.jsonl"), "is not there"),
    ],
)
def test_what_cannot_work_is_said_before_a_model_is_built(
    tmp_path: Path, train, monkeypatch: pytest.MonkeyPatch, arguments, message: str
) -> None:
    _, corpus_file = own(tmp_path)
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"question": query.text}) + "\n" for query in QUERIES))

    def build(_: ReaderChoice, **__: bool) -> Talker:
        raise AssertionError("a model was built")

    monkeypatch.setattr(ReaderChoice, "build", build)
    searched = () if "--documents" in arguments else ("--documents", corpus_file)
    base = tiny_base(tmp_path / "base")
    code, printed = train(
        queries, *searched, "--base", base, "--model", "m", "--output", tmp_path / "out", *arguments
    )
    assert code == 1 and message in printed, printed


def test_only_who_has_to_tell_something_is_probed(
    tmp_path: Path, train, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, corpus_file = own(tmp_path)
    probed: list[tuple[str | None, bool]] = []

    def build(choice: ReaderChoice, *, probe: bool = True) -> Talker:
        probed.append((choice.model, probe))
        return Talker(reading_and_teaching)

    monkeypatch.setattr(ReaderChoice, "build", build)
    settings = ("--base", tiny_base(tmp_path / "base"), "--model", "reader", "--teacher", "teacher")
    common = (queries, "--documents", corpus_file, *settings, "--distil-epochs", 1)
    assert train(*common, "--output", tmp_path / "a", "--stage", "distil")[0] == 0
    assert probed == [("teacher", False)]
