"""Training queries from files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from surerag.errors import ConfigurationError, InputError
from surerag.training.rewriter import (
    AlignOptions,
    DistilOptions,
    FineTuning,
    Query,
    SampleOptions,
    Shares,
    draw,
    read_queries,
)
from surerag.training.rewriter.queries import as_queries
from surerag.types import Sampling

ROWS = [
    {"question": "Where?", "answers": ["Velm", "in Velm"], "id": "q1", "contexts": ["ignored"]},
    {"question": "Who?", "answers": "Ada"},
    {"question": "Where?", "answers": "twice"},
]
QUERIES = [Query("Where?", ("Velm", "in Velm"), "q1"), Query("Who?", ("Ada",)), Query("Where?", ("twice",))]


def lines(file: Path, *rows: object) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_json_lines(tmp_path: Path) -> None:
    assert list(read_queries(lines(tmp_path / "q.jsonl", *ROWS))) == QUERIES


def test_csv_with_other_names_and_a_kind(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("user_input,reference,sort\nWhere?,Velm,vague\nWho?,Ada,\n")
    found = list(read_queries(tmp_path / "q.csv", kind="sort"))
    assert found == [Query("Where?", ("Velm",), kind="vague"), Query("Who?", ("Ada",))]


def test_equal_texts_are_one_query_with_all_gold_answers() -> None:
    assert as_queries(QUERIES) == [
        Query("Where?", ("Velm", "in Velm", "twice"), "q1"),
        Query("Who?", ("Ada",)),
    ]


def test_parquet(tmp_path: Path) -> None:
    rows = [
        {**row, "answers": [row["answers"]] if isinstance(row["answers"], str) else row["answers"]}
        for row in ROWS
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    assert list(read_queries(tmp_path / "q.parquet")) == QUERIES


def test_answers_are_optional(tmp_path: Path) -> None:
    assert list(read_queries(lines(tmp_path / "q.jsonl", {"question": "Why?"}))) == [Query("Why?")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"wherefore": "Where?"}, r"1: the field 'question' is missing; found 'wherefore'"),
        ({"question": " "}, r"'question' must be texts that are not empty"),
        ({"question": "Where?", "answers": [""]}, r"'answers' must be texts"),
        ({"question": "Where?", "answers": 3}, r"'answers' must be a text or a list"),
        ({"question": "\ud800"}, r"without lone surrogates"),
        ("text", r"found"),
    ],
)
def test_rows_that_cannot_be_used_are_named(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_queries(lines(tmp_path / "q.jsonl", row)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 100_000, "line 2: not a JSON object"),
        ('{"question": "Why?", "id": ' + "9" * 5_000 + "}", "line 2: not a JSON object"),
        ('{"question": "Why?", "id": ["a"]}', "line 2: the field 'id'"),
        ('{"question": "Why?", "id": "\\ud800"}', "line 2: the field 'id' .* surrogates"),
        ('{"question": {"a": "' + "b" * 10_000 + '"}}', r"line 2: the field 'question' must be texts"),
    ],
)
def test_nothing_in_a_line_escapes_the_checks(tmp_path: Path, line: str, message: str) -> None:
    file = lines(tmp_path / "q.jsonl", {"question": "Who?"})
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(InputError, match=message):
        list(read_queries(file))


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("question\n")
    (tmp_path / "bad.jsonl").write_text("{\n")
    (tmp_path / "bad.parquet").write_text("no")
    for name, message in (
        ("q.txt", "unknown format"),
        ("bad.jsonl", "line 1: not a JSON object"),
        ("bad.parquet", "cannot be read as Parquet"),
        ("missing.jsonl", "is no file"),
    ):
        with pytest.raises(InputError, match=message):
            list(read_queries(tmp_path / name))


def test_a_file_without_a_query(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(InputError, match="0 different queries cannot be shared"):
        draw(read_queries(tmp_path / "none.jsonl"), Shares())


def test_settings_that_cannot_work_are_refused() -> None:
    for make in (
        lambda: FineTuning(learning_rate=0),
        lambda: FineTuning(dtype="int8"),  # type: ignore[arg-type]
        lambda: FineTuning(batch=0),
        lambda: DistilOptions(rewriting=Sampling(n=2)),
        lambda: SampleOptions(rewrites=0),
        lambda: SampleOptions(metric="doubt"),  # type: ignore[arg-type]
        lambda: AlignOptions(reward="praise"),  # type: ignore[arg-type]
        lambda: AlignOptions(beta=0),
        lambda: AlignOptions(least_difference=-1),
        lambda: FineTuning(validation=1),
        lambda: FineTuning(four_bit=True),
        lambda: FineTuning(trainer={"seed": 3}),
    ):
        with pytest.raises(ConfigurationError):
            make()
