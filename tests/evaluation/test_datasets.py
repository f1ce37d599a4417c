"""Reading data sets: what is accepted, and what is said about what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surerag.errors import InputError
from surerag.evaluation.datasets import check_file, read_rows

ROW = {"question": "Where?", "answers": ["Velm"], "contexts": ["Ada was born in Velm."]}


def written(folder: Path, *rows: Any, name: str = "d.jsonl") -> Path:
    file = folder / name
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def test_rows_of_both_systems_keep_their_question_apart(tmp_path: Path) -> None:
    rows = [{**ROW, "system": name, "extra": 1} for name in ("a", "b", "a")]
    read = list(read_rows(written(tmp_path, *rows)))
    assert [(row.system, row.id) for row in read] == [("a", "Where?"), ("b", "Where?"), ("a", "Where? (2)")]
    assert read[0].contexts[0][0].text == "Ada was born in Velm."


OTHER = {**ROW, "question": "When?"}


@pytest.mark.parametrize(
    "rows",
    [
        [{**OTHER, "id": "Where?"}, ROW],
        [ROW, {**OTHER, "id": "Where?"}],
        [ROW, ROW, {**OTHER, "id": "Where? (2)"}],
        [ROW, {**OTHER, "question": "Where? (2)"}, ROW],
        [{**OTHER, "id": "Where?", "system": "a"}, {**ROW, "system": "b"}],
        [{**ROW, "system": "a"}, {**OTHER, "id": "Where?", "system": "b"}],
    ],
)
def test_no_two_questions_share_an_id(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError, match=r"Where\?.*an id of its own"):
        list(read_rows(written(tmp_path, *rows)))


def test_a_question_that_is_its_own_id_is_that_of_the_system_without_ids(tmp_path: Path) -> None:
    rows = [{**ROW, "id": "Where?", "system": "a"}, {**ROW, "system": "b"}]
    assert [row.id for row in read_rows(written(tmp_path, *rows))] == ["Where?", "Where?"]


def test_steps_single_answers_number_ids_and_nothing_found(tmp_path: Path) -> None:
    row = {**ROW, "answers": "Velm", "contexts": [["a"], ["a", "b"]], "id": 7}
    first, second = read_rows(written(tmp_path, row, "", {**ROW, "contexts": [], "id": "8"}))
    assert first.id == "7"
    assert first.golds == ("Velm",)
    assert [[p.text for p in step] for step in first.contexts] == [["a"], ["a", "b"]]
    assert second.contexts == ((),)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({**ROW, "answers": 17}, "line 2: the field 'answers' must be a text or a list of at least one text"),
        ({**ROW, "answers": []}, "line 2: the field 'answers'"),
        ({**ROW, "answers": ["Velm", " "]}, "found ' '"),
        ({**ROW, "question": ""}, "line 2: the field 'question' must be texts that are not empty; found ''"),
        ({**ROW, "contexts": "text"}, "line 2: the field 'contexts' must be a list of texts"),
        ({**ROW, "contexts": ["a", ["b"]]}, "line 2: the field 'contexts'"),
        ({**ROW, "contexts": [{"text": "a"}]}, "found {'text': 'a'}"),
        ({"question": "Where?", "answer": "Velm"}, "'answers' is missing; found 'question', 'answer'"),
        ({**ROW, "system": "a"}, "line 2: a field 'system', other than in the rows before"),
        ({**ROW, "id": "one"}, "line 2: the id 'one' stands in line 1 already"),
        ([ROW], "line 2: the row must be an object"),
        ('{"question": ', "line 2: not a JSON object"),
        ({**ROW, "question": "\ud800"}, "without lone surrogates"),
    ],
)  # fmt: skip
def test_errors_name_file_line_field_and_what_was_found(tmp_path: Path, second: Any, words: str) -> None:
    file = written(tmp_path, {**ROW, "id": "one"}, second)
    with pytest.raises(InputError) as caught:
        check_file(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[" * 100_000, "line 2: not a JSON object .*too deep"),
        ('{"question": ' + '{"a":' * 100_000, "line 2: not a JSON object .*too deep"),
        ('{"id": ' + "9" * 5_000 + "}", "line 2: not a JSON object .*4300"),
        (json.dumps({**ROW, "contexts": [[["a"]]]}), r"the field 'contexts' must be .*; found \['a'\]"),
        (json.dumps({**ROW, "question": {"text": ["Where?"]}}), "the field 'question' must be texts"),
        (json.dumps({**ROW, "id": ["one"]}), "the field 'id' must be texts"),
        (json.dumps({**ROW, "system": {"name": "a"}}), "line 2: a field 'system'"),
        ('{"question": "Where?", "answers": "Velm", "contexts": ' + "[" * 600 + "]" * 600 + "}", "found"),
    ],
)
def test_nothing_in_a_line_escapes_the_checks(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_file(written(tmp_path, ROW, line))


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    file = written(tmp_path, ROW)
    monkeypatch.setattr(Path, "open", refused)  # root may read all files, and runs some of our tests
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        check_file(file)


def test_what_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no file"):
        check_file(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=r"'\.csv'"):
        check_file(written(tmp_path, ROW, name="d.csv"))
    with pytest.raises(InputError, match="holds no rows"):
        check_file(written(tmp_path))
    (tmp_path / "latin.jsonl").write_bytes(json.dumps(ROW).encode() + b"\n\xff\n")
    with pytest.raises(InputError, match="line 2: the text is not UTF-8"):
        check_file(tmp_path / "latin.jsonl")


def test_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    plain = check_file(written(tmp_path, ROW))
    spaced = check_file(written(tmp_path, "", json.dumps({"more": 1, **ROW}, indent=None), name="e.jsonl"))
    other = check_file(written(tmp_path, {**ROW, "answers": ["Orun"]}, name="f.jsonl"))
    assert plain.digest == spaced.digest != other.digest
    assert (plain.rows, plain.systems) == (1, ("contexts",))


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    rows = [{**ROW, "id": str(at), "system": name} for at in range(300) for name in ("a", "b")]
    write_table(arrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    assert check_file(tmp_path / "d.parquet").digest == check_file(written(tmp_path, *rows)).digest
    write_table(arrow.Table.from_pylist([{**ROW, "answers": []}]), tmp_path / "e.parquet")
    with pytest.raises(InputError, match=r"e\.parquet, row 1: the field 'answers'"):
        check_file(tmp_path / "e.parquet")
    (tmp_path / "f.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        check_file(tmp_path / "f.parquet")
