"""``surerag record``, ``verify`` and ``field-test`` as a user types them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from surerag.records import Trace
from surerag.records.packing import fingerprint
from tests.evaluation.noting import NotingReader
from tests.records.corpora import TOWNS, Dying


def data(folder: Path, n: int = 14) -> Path:
    file = folder / "tiny.jsonl"
    rows = [
        {
            "id": f"q{at}",
            "question": f"Where was Person {at} born?",
            "answers": [TOWNS[at % 4]],
            "paragraphs": [f"Person {at} was born in {TOWNS[at % 4]}. Rivers are wet.", f"Tin {at} melts."],
        }
        for at in range(n)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def field_tested(surerag: Any, folder: Path, reader: Any, *more: object) -> Any:
    options = ("--data", data(folder), "--questions", 10, "--n-samples", 2, "--seper-samples", 2)
    return surerag(
        "field-test", *options, "--max-tokens", 8, "--output", folder / "out", *more, reader=reader
    )


def test_a_field_test_says_what_it_will_cost_tells_and_packs(surerag: Any, tmp_path: Path) -> None:
    reader = NotingReader(local=True)
    ran = field_tested(surerag, tmp_path, reader)
    assert ran.code == 0, ran.err
    assert "10 of 14 questions of tiny.jsonl, over its 28 paragraphs" in ran.out
    told = re.search(r"estimated on its first questions: ([\d,]+) prompts", ran.out)
    assert told is not None
    asked = int(told.group(1).replace(",", ""))
    # The second way of retrieving asks some of it again, word for word: each trace stands for itself.
    assert 0.8 * len(reader.asked) <= asked <= 1.25 * len(reader.asked)
    for text in (
        "bm25: answers by condition",
        "minilm: who knows when to retrieve?",
        "ΔSePer",
        "Gate − random",
    ):
        assert text in ran.out
    assert "cluster_compression" not in ran.out + ran.err
    assert f"--fingerprint {fingerprint(tmp_path / 'out')}" in ran.out.replace("\n", "")

    again = NotingReader(local=True)
    ran = field_tested(surerag, tmp_path, again)
    assert ran.code == 0 and again.asked == [] and "Going on" in ran.out

    good = surerag("verify", tmp_path / "out", "--fingerprint", fingerprint(tmp_path / "out"))
    assert good.code == 0 and "It is what it says it is." in good.out
    other = surerag("verify", tmp_path / "out", "--fingerprint", "0" * 64)
    assert other.code == 1 and "was asked for" in other.err
    tables = tmp_path / "out" / "tables.md"
    tables.write_text(tables.read_text().replace("retrieval", "magic", 1))
    bad = surerag("verify", tmp_path / "out")
    assert bad.code == 1 and "tables.md was changed" in bad.err and "what it says" not in bad.out


def test_a_dry_run_asks_nothing(surerag: Any, tmp_path: Path) -> None:
    reader = NotingReader(local=True)
    ran = field_tested(surerag, tmp_path, reader, "--dry-run")
    assert ran.code == 0 and reader.asked == [] and "To be asked" in ran.out
    assert not list((tmp_path / "out").iterdir())


def test_interrupted_it_goes_on(surerag: Any, tmp_path: Path) -> None:
    ran = field_tested(surerag, tmp_path, Dying(9, local=True))
    assert ran.code == 130 and "the same command goes on from here" in ran.out
    ran = field_tested(surerag, tmp_path, NotingReader(local=True))
    assert ran.code == 0 and surerag("verify", tmp_path / "out").code == 0


def test_recording_ones_own_questions_over_ones_own_documents(surerag: Any, tmp_path: Path) -> None:
    questions, documents = tmp_path / "q.jsonl", tmp_path / "docs"
    documents.mkdir()
    for at, town in enumerate(TOWNS):
        (documents / f"{town}.txt").write_text(f"Person {at} was born in {town}. Rivers are wet.")
    rows = [{"question": f"Where was Person {at} born?", "answers": town} for at, town in enumerate(TOWNS)]
    questions.write_text("\n".join(map(json.dumps, rows)))
    options = ("--documents", documents, "--output", tmp_path / "t", "--retrieval", "bm25", "--top-n", 1)
    ran = surerag("record", questions, *options, reader=NotingReader(local=True))
    assert ran.code == 0, ran.err
    assert "4 questions over 4 passages of 4 documents" in ran.out and "t: answers by condition" in ran.out
    trace = Trace(tmp_path / "t")
    assert [row.under("retrieval").retrieved[0].id for row in trace] == [f"{town}.txt#0" for town in TOWNS]  # type: ignore[union-attr]
    assert trace.about["retriever"] == "bm25"
    assert surerag("verify", tmp_path / "t").code == 0
    ran = surerag("record", questions, *options, "--hash-texts", reader=NotingReader(local=True))
    assert ran.code == 1 and "hash_texts was False and is True" in ran.err
    ran = surerag("record", questions, *options, "--hash-texts", "--restart", reader=NotingReader(local=True))
    assert ran.code == 0 and Trace(tmp_path / "t").hashed
    ran = surerag("verify", tmp_path / "t")
    assert ran.code == 0 and "All that can be checked holds." in ran.out


def test_what_cannot_be_used_is_one_line(surerag: Any, tmp_path: Path) -> None:
    ran = surerag("verify", tmp_path)
    assert ran.code == 1 and "holds neither pack.json nor manifest.jsonl" in ran.err
    file = tmp_path / "q.jsonl"
    file.write_text('{"ask": "Who?"}')
    ran = surerag("record", file, "--documents", file, "--output", tmp_path / "t")
    assert ran.code == 1 and "q.jsonl, line 1: the field 'text' is missing" in ran.err
    ran = surerag("field-test", "--data", tmp_path / "none.json", "--output", tmp_path / "t")
    assert ran.code == 1 and "there is no file" in ran.err
