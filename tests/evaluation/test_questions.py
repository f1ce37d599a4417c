"""Questions from files and lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surerag.errors import InputError
from surerag.evaluation.questions import Question, as_questions, read_questions


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Where?", "answers": ["Velm"], "contexts": ["Ada was born in Velm."]},
        {"user_input": "Where?", "reference": "Velm", "retrieved_contexts": ["Ada was born in Velm."]},
        {"input": "Where?", "expected_output": "Velm", "retrieval_context": ["Ada was born in Velm."]},
        {
            "inputs": {"question": "Where?"},
            "outputs": {"answer": "Velm", "contexts": [{"page_content": "Ada was born in Velm."}]},
        },
        {"question": "Where?", "answers": {"text": ["Velm", "Velm"]}, "context": "Ada was born in Velm."},
    ],
    ids=["surerag", "ragas", "deepeval", "langsmith", "squad"],
)
def test_columns_of_other_tools_are_recognised(record: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(record) + "\n\n", encoding="utf-8")
    assert read_questions(path) == [Question("Where?", ("Velm",), ("Ada was born in Velm.",))]


def test_csv_json_and_parquet_hold_the_same(tmp_path: Path) -> None:
    expected = [Question("What is 007?", ("007", "an agent"), id="a"), Question("Who?", ("Ada",), id="b")]
    (tmp_path / "q.csv").write_text(
        'id,question,answers\na,What is 007?,"[""007"", ""an agent""]"\nb,Who?,Ada\n'
    )
    records = [{"id": q.id, "question": q.text, "answers": list(q.references)} for q in expected]
    (tmp_path / "q.json").write_text(json.dumps({"data": records}))
    for name in ("q.csv", "q.json"):
        assert read_questions(tmp_path / name) == expected
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "q.parquet")
    assert read_questions(tmp_path / "q.parquet") == expected
    assert read_questions((tmp_path / "q.jsonl").as_uri().replace("jsonl", "json")) == expected
    assert len(read_questions(tmp_path / "q.csv", limit=1)) == 1


def test_columns_are_named_by_the_user(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("Q,A\nWhere?,Velm\n")
    assert read_questions(path, columns={"question": "Q", "references": "A"})[0].references == ("Velm",)
    for columns, message in (
        ({}, "row 1 has no question; its columns are Q, A"),
        ({"question": "X"}, "no column 'X'; there are Q, A"),
        ({"frage": "Q"}, "no field 'frage'"),
    ):
        with pytest.raises(InputError, match=message):
            read_questions(path, columns=columns)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.jsonl", '{"question": "a"}\n{', "line 2: not JSON"),
        ("q.jsonl", '["a"]', "row 1 is a list"),
        ("q.jsonl", "", "holds no questions"),
        ("q.jsonl", '{"question": " "}', "not empty"),
        ("q.json", "{", "not JSON"),
        ("q.txt", "a", "no known ending"),
        ("q.csv", None, "cannot be read"),
        ("q.parquet", "x", "cannot be read"),
    ],
)
def test_unusable_files_are_named(name: str, text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_questions(tmp_path / name)


def test_lists_of_questions() -> None:
    items = ["Where?", ("Who?", "Ada"), {"question": "What?", "answer": "x"}, Question("Why?"), "Where?"]
    assert [(q.text, q.references) for q in as_questions(items)] == [
        ("Where?", ()),
        ("Who?", ("Ada",)),
        ("What?", ("x",)),
        ("Why?", ()),
    ]
    with pytest.raises(InputError, match="there are no questions"):
        as_questions([])
    with pytest.raises(InputError, match="question 1 is a list"):
        as_questions([["a"]])
    assert Question("a", ("b",)).key != Question("a", ("c",)).key
