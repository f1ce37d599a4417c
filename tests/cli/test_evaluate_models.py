"""``surerag evaluate`` with the models a user names: a server, and a classifier from a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from surerag.cli import main
from surerag.encoders import packaged_minilm_path
from tests.evaluation.noting import write_rows
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script

KEY = "a-key-for-tests-alone"


def town(prompt: str) -> str:
    """Answer with the town that the prompt tells of, and otherwise with none of them."""
    return next(
        (name for name in ("Velm", "Orun", "Toren", "Sarl") if f"born in {name}" in prompt), "Nowhere"
    )


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(packaged_minilm_path())
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
        id2label={0: "entailment", 1: "neutral", 2: "contradiction"},
    )
    folder = tmp_path / "nli"
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def evaluate(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr(sys, "argv", ["surerag", "evaluate", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


def test_a_server_and_a_classifier(
    tmp_path: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOWN_KEY", KEY)
    file, out = write_rows(tmp_path / "d.jsonl", 3), tmp_path / "out"
    with FakeOpenAI(Script(town)) as server:
        options = ("--base-url", server.base_url, "--api-key-env", "TOWN_KEY", "--output", out)
        code = evaluate(monkeypatch, file, *options, "--model", "toy", "--entailment", f"nli:{classifier}")
        asked = len(server.requests)
        again = evaluate(monkeypatch, file, *options, "--model", "toy", "--entailment", f"nli:{classifier}")
        probes = len(server.requests) - asked
    printed = capfd.readouterr()
    assert (code, again) == (0, 0), printed.err
    assert any(KEY in str(request.headers) for request in server.requests), "the server got its key"
    # Going on asks the server what it can do, and asks nothing else again.
    assert 0 <= probes < asked
    rows = pq.read_table(out / "rows-00000.parquet").to_pylist()
    assert len(rows) == 6
    assert {row["steps"][0]["after"]["answers"][0]["text"] for row in rows if row["system"] == "good"} == {
        "Velm",
        "Orun",
        "Toren",
    }
    written = "".join(path.read_text(errors="replace") for path in out.rglob("*") if path.is_file())
    with pa.OSFile(str(out / "answers-00000.jsonl.zst")) as packed:
        written += pa.CompressedInputStream(packed, "zstd").read().decode()
    assert KEY not in written + printed.out + printed.err
    assert str(classifier) in written


def test_what_is_no_classifier_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write_rows(tmp_path / "d.jsonl", 2)
    with FakeOpenAI(Script(town)) as server:
        options = ("--base-url", server.base_url, "--model", "toy", "--output", tmp_path / "out")
        code = evaluate(monkeypatch, file, *options, "--entailment", f"nli:{tmp_path / 'nothing'}")
    printed = capfd.readouterr()
    assert code == 1
    assert "nothing" in printed.err + printed.out
    assert "Traceback" not in printed.err
