"""A folder that was tampered with is refused, however carefully that was done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import InputError
from surerag.records import record
from surerag.records.field.data import Example, drawn
from surerag.records.field.run import Field, FieldTest
from surerag.records.packing import PACK, files_in, fingerprint
from surerag.records.verify import Checked, TamperedError, verify
from surerag.runs import digest_of
from tests.evaluation.noting import NotingReader
from tests.records.corpora import TOWNS, pipeline, questions


def quiet(_: str) -> bool:
    return False


def field(folder: Path, *, hash_texts: bool = False) -> Path:
    examples = [
        Example(
            f"q{at}",
            f"Where was Person {at} born?",
            (TOWNS[at % 4],),
            ((f"Person {at}", f"Person {at} was born in {TOWNS[at % 4]}. Rivers are wet."),),
        )
        for at in range(12)
    ]
    wanted = FieldTest(n_samples=2, seper_samples=2, max_tokens=8, part_size=8, hash_texts=hash_texts)
    test = Field(drawn("tiny", examples, 10), HashingEncoder(), wanted)
    test.record(NotingReader(local=True), ExactEntailer(), folder, quiet)
    test.packed(folder)
    return folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return field(tmp_path_factory.mktemp("field") / "packed")


@pytest.fixture
def folder(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "copy"))


def found(folder: Path) -> list[Checked]:
    return list(verify(folder))


def test_what_was_packed_is_what_it_says(packed: Path) -> None:
    held = found(packed)
    assert all(one.held for one in held)
    told = " | ".join(one.what for one in held)
    for part in ("answers judged again", "signals computed again", "ΔSePer of 10 questions", "figures.json"):
        assert part in told
    assert "20 tables" in told


def test_bytes_files_and_names_are_watched(folder: Path) -> None:
    part = folder / "bm25" / "questions-00000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(TamperedError, match=r"bm25/questions-00000.parquet was changed"):
        found(folder)
    part.write_bytes(whole)
    (folder / "bm25" / "note.txt").write_text("?")
    with pytest.raises(TamperedError, match=r"note.txt was added"):
        found(folder)
    (folder / "bm25" / "note.txt").unlink()
    (folder / "figures.json").unlink()
    with pytest.raises(TamperedError, match=r"figures.json is missing"):
        found(folder)
    with pytest.raises(InputError, match=r"holds neither pack.json nor manifest.jsonl"):
        found(folder / "nowhere")


def sealed_again(folder: Path) -> None:
    """Give every file its new digest, as a forger would."""
    for trace in ("bm25", "minilm"):
        manifest = folder / trace / "manifest.jsonl"
        lines = [json.loads(line) for line in manifest.read_text().splitlines()]
        for file in (file for line in lines for file in line.get("files", {}).values()):
            file["sha256"] = digest_of(folder / trace / file["name"])
        manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = folder / PACK
    told = json.loads(file.read_text())
    told["files"] = {name: digest_of(folder / name) for name in files_in(folder)}
    file.write_text(json.dumps(told))


def rewritten(folder: Path, change: Callable[[list[dict[str, Any]]], None], kind: str = "questions") -> None:
    """Change rows of a part, and seal the folder again."""
    file = folder / "bm25" / f"{kind}-00000.parquet"
    table = pq.read_table(file)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(type(table).from_pylist(rows, table.schema), file)
    sealed_again(folder)


def test_nothing_changed_and_sealed_again_holds(folder: Path) -> None:
    rewritten(folder, lambda rows: None)
    assert all(one.held for one in found(folder))


def set_correct(rows: list[dict[str, Any]]) -> None:
    one = rows[0]["passes"][0]
    one["correct"] = 1.0 - one["correct"]


def set_answer(rows: list[dict[str, Any]]) -> None:
    from hashlib import sha256

    one = next(p for row in rows for p in row["passes"] if p["correct"] == 0.0)
    row = next(row for row in rows if one in row["passes"])
    one["text"], one["correct"] = row["golds"][0] + "!", 1.0
    one["sha256"] = sha256(one["text"].encode()).hexdigest()


def set_signal(rows: list[dict[str, Any]]) -> None:
    one = rows[0]["passes"][0]
    one["signals"] = [(name, value + 1 if name == "perplexity" else value) for name, value in one["signals"]]


def set_logprobs(rows: list[dict[str, Any]]) -> None:
    from surerag.records.schema import question_record, trace_row
    from surerag.records.signals import signals_of

    one = rows[0]["passes"][0]
    one["logprobs"] = [value - 1 for value in one["logprobs"]]
    for sample in one["samples"]:
        sample["logprobs"] = [value - 1 for value in sample["logprobs"]]
    row = trace_row(rows[0])
    told = row.passes[0]
    traces = [sample.trace for sample in told.samples if sample.trace]
    clusters = [sample.cluster for sample in told.samples]
    one["signals"] = list(signals_of(told.text or "", told.trace, clusters, traces).items())
    assert question_record(row)["id"]


def set_seper(rows: list[dict[str, Any]]) -> None:
    rows[0]["measures"] = [
        (name, 0.5 if name == "delta_seper" else value) for name, value in rows[0]["measures"]
    ]


def set_cluster(rows: list[dict[str, Any]]) -> None:
    rows[0]["passes"][0]["samples"][1]["cluster"] += 1


def drop_row(rows: list[dict[str, Any]]) -> None:
    del rows[0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (set_correct, "judged again it is"),
        (set_answer, "never gave this answer"),
        (set_signal, r"signals.perplexity is .* computed again"),
        (set_logprobs, "never gave this answer with these log-probabilities"),
        (set_seper, r"measures.delta_seper is 0.5, and computed again"),
        (set_cluster, "mean other things"),
        (drop_row, "holds 7 rows, not 8"),
    ],
)
def test_a_change_with_all_digests_made_anew_is_found_out(
    folder: Path, change: Callable[[list[dict[str, Any]]], None], why: str
) -> None:
    rewritten(folder, change)
    with pytest.raises(TamperedError, match=why):
        found(folder)


def test_a_figure_or_a_table_that_says_more_than_the_rows_is_found_out(folder: Path) -> None:
    file = folder / "figures.json"
    figures = json.loads(file.read_text())
    figures["traces"][0]["conditions"][1]["score"] += 0.1
    plain = file.read_text()
    file.write_text(json.dumps(figures))
    sealed_again(folder)
    with pytest.raises(TamperedError, match=r"the traces: figures.json.traces.0.conditions"):
        found(folder)
    file.write_text(plain)
    tables = folder / "tables.md"
    tables.write_text(tables.read_text().replace("| retrieval |", "| retrieval, better |", 1))
    sealed_again(folder)
    with pytest.raises(TamperedError, match=r"tables.md does not follow"):
        found(folder)


def test_what_cannot_be_checked_is_said(tmp_path: Path) -> None:
    held = found(field(tmp_path, hash_texts=True))
    told = {one.what for one in held if not one.held}
    assert any("no texts, or a rule of one's own" in one for one in told)
    assert any("answers stand for themselves" in one for one in told)
    assert any(one.held and "signals computed again" in one.what for one in held)


def test_a_single_trace_is_verified_too_and_an_unfinished_one_is_not(tmp_path: Path) -> None:
    trace = record(pipeline(NotingReader(local=True), 4), questions(4), tmp_path)
    assert all(one.held for one in found(tmp_path)) and len(fingerprint(tmp_path)) == 64
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(manifest.read_text().replace('{"complete":true}\n', ""))
    with pytest.raises(TamperedError, match="is not complete"):
        found(trace.folder)
