"""Questions from files and lists."""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surerag.documents import FileNotesWarning
from surerag.errors import InputError
from surerag.evaluation import evaluate
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


def test_a_question_knows_its_document() -> None:
    """From a column, from the first context's name of its document, or from that context itself."""
    passages = [
        {"id": 7, "text": "Ada was born in Velm.", "metadata": {"source": "velm.pdf"}},
        {"text": "No."},
    ]
    rows = [
        {"question": "Where?", "document": "atlas", "contexts": passages},
        {"question": "When?", "contexts": passages},
        {"question": "Where?", "contexts": ["Ada was born in Velm."]},
        {"question": "Who?", "contexts": ["Ada was born in Velm.", "No."]},
        {"question": "Why?"},
    ]
    atlas, named, first, same, alone = as_questions(rows)
    assert (atlas.group, named.group, alone.group) == ("atlas", "velm.pdf", "")
    assert first.group == same.group == Question("x", contexts=("Ada was born in Velm.",)).group != ""
    whole = Question("Where?", group="A long text. " * 99)
    assert len(whole.group) == 12 and whole.group == Question("When?", group="A long text. " * 99).group
    assert Question("Where?", group="a").key == Question("Where?").key  # nothing is asked again for its sake


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


def test_rows_of_pandas_and_numpy_are_read_and_what_is_missing_is() -> None:
    nan = float("nan")
    rows = [
        {
            "id": 0,
            "question": "When?",
            "answer": np.float64(1912.0),
            "contexts": np.array(["In 1912.", "No."]),
        },
        {"id": 1.0, "question": "Why?", "answer": nan, "contexts": nan},
        {"id": np.int64(2), "question": "How many?", "answer": [np.int64(2), 2.5], "contexts": None},
    ]
    assert as_questions(rows) == [
        Question("When?", ("1912",), ("In 1912.", "No."), id="0"),
        Question("Why?", id="1"),
        Question("How many?", ("2", "2.5"), id="2"),
    ]
    with pytest.raises(InputError, match="question 1, column 'question': expected a text that is not empty"):
        as_questions([{"question": nan, "answer": "Velm"}])


def test_a_table_in_place_of_a_list_is_refused() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"question": ["Where?"], "answer": ["Velm"]})
    for table in (frame, {"question": "Where?"}):
        with pytest.raises(InputError, match="expected a list of questions, got a"):
            as_questions(table)
    assert as_questions(frame.to_dict("records")) == [Question("Where?", ("Velm",))]


def test_columns_are_named_by_the_user(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("Q,A\nWhere?,Velm\n")
    assert read_questions(path, columns={"question": "Q", "references": "A"})[0].references == ("Velm",)
    for columns, message in (
        ({}, "line 2 has no question; its columns are Q, A.*--columns question=Q,references=A, or in Python"),
        ({"question": "X"}, "no column 'X'. Its columns are Q, A"),
        ({"frage": "Q"}, "no field 'frage'"),
    ):
        with pytest.raises(InputError, match=message):
            read_questions(path, columns=columns)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.jsonl", '{"question": "a"}\n{', "line 2, column 2: not JSON.*each line is one JSON value"),
        ("q.jsonl", '["a"]', "element 1 is a str"),
        ("q.jsonl", "[[1]]", "element 1 is a list, not an object with columns. Write"),
        ("q.jsonl", "", "contains no questions. Write one question per line"),
        ("q.jsonl", '{"question": " "}', "element 1, column 'question': expected a text that is not empty"),
        (
            "q.jsonl",
            '{"question": "a"}\n{"question": "b", "answer": [[]]}',
            "line 2, column 'answer': expected",
        ),
        ("q.json", "{", "line 1, column 2: not JSON"),
        ("q.json", "3", "element 1 is an int"),
        ("q.json", "[" * 200_000, "line 1: brackets are nested too deep"),
        ("q.json", "9" * 5000, "line 1: Exceeds the limit.*Write the number as a text"),
        (
            "q.csv",
            "question,answer\nWhat, then?,Ada\n",
            "line 2 has 3 cells, and the header has 2. Put a text",
        ),
        ("q.csv", 'question,answer\nWhat?,Ada\n"Who?,Jon\n', "line 3: a quotation mark is opened and never"),
        ("q.csv", "question,answer\n,Ada\n", "line 2, column 'question': expected a text"),
        ("q.txt", "a", "has an unknown suffix"),
        ("q.csv", None, "there is no file .*q.csv"),
        ("q.csv", "Frage;Antwort\n", "no questions. Write a header, and below it a row"),
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
    with pytest.raises(InputError, match="got an empty list"):
        as_questions([])
    with pytest.raises(InputError, match="question 1 is a list"):
        as_questions([["a"]])
    assert Question("a", ("b",)).key != Question("a", ("c",)).key


QUESTIONS = [Question("Wo wohnt Zoë Møller?", ("Zürich",)), Question("Wer, außer ihr?", ("niemand",))]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("delimiter", [";", "\t", "|", ","])
def test_a_spreadsheet_is_read_as_it_was_exported(tmp_path: Path, encoding: str, delimiter: str) -> None:
    rows = [("question", "answer"), *((q.text, q.references[0]) for q in QUESTIONS)]
    text = "".join(
        delimiter.join(f'"{cell}"' if delimiter in cell else cell for cell in row) + "\r\n" for row in rows
    )
    (tmp_path / "q.csv").write_bytes(text.encode(encoding))
    if encoding in ("cp1252", "utf-16-le"):
        with pytest.warns(
            FileNotesWarning, match=rf"q.csv: its encoding is a guess: {encoding.replace('-', '_')}"
        ):
            assert read_questions(tmp_path / "q.csv") == QUESTIONS
    else:
        assert read_questions(tmp_path / "q.csv") == QUESTIONS


@pytest.mark.parametrize("mark", ["\u2028", "\u0085", "\x0c", "\x1e"])
def test_lines_of_json_end_at_line_feeds_alone(tmp_path: Path, mark: str) -> None:
    record = {"question": f"Where{mark}is it?", "answer": "Velm"}
    lines = json.dumps(record, ensure_ascii=mark < " ") + "\n"
    (tmp_path / "q.jsonl").write_text(lines * 2 + '{"question": "Who?"}\n', encoding="utf-8")
    assert [q.text for q in read_questions(tmp_path / "q.jsonl")] == [f"Where{mark}is it?", "Who?"]


@pytest.mark.parametrize("name", ["q.jsonl", "q.json"])
@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_and_lines_are_read_in_either_file(tmp_path: Path, name: str, indent: int | None) -> None:
    records = [{"question": "Where?"}, {"question": "Who?"}]
    (tmp_path / name).write_text(json.dumps(records, indent=indent))
    assert [q.text for q in read_questions(tmp_path / name)] == ["Where?", "Who?"]
    (tmp_path / name).write_text("\n".join(map(json.dumps, records)))
    assert [q.text for q in read_questions(tmp_path / name)] == ["Where?", "Who?"]


def test_one_question_with_contexts_is_no_list_of_questions(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text('{"question": "Where?", "contexts": [{"text": "In Velm."}]}')
    assert read_questions(tmp_path / "q.json") == [Question("Where?", contexts=("In Velm.",))]


def test_a_cell_may_be_of_any_length(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    context = "Velm " * 60_000
    (tmp_path / "q.csv").write_text(f"question,context\nWhere?,{context}\n")
    assert read_questions(tmp_path / "q.csv")[0].contexts == (context.strip(),)
    assert csv.field_size_limit() == limit
    (tmp_path / "q.csv").write_text(f"question,context\nWhere?,{'[' * 200_000}\n")
    assert read_questions(tmp_path / "q.csv")[0].contexts == ("[" * 200_000,)


def test_questions_with_commas_stand_in_one_column(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text('question\n"Who, then?"\nWhere?\n')
    assert [q.text for q in read_questions(tmp_path / "q.csv")] == ["Who, then?", "Where?"]


@pytest.mark.parametrize("column", ["golden_answers", "gold_answers", "possible_answers", "expected_answer"])
def test_reference_answers_stand_under_the_names_of_usual_data_sets(tmp_path: Path, column: str) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "Where?", column: ["Velm"]}), encoding="utf-8")
    assert read_questions(tmp_path / "q.jsonl")[0].references == ("Velm",)


REFERENCES = {
    "Ada": ("Ada",),
    "Ada; Ada Voss": ("Ada", "Ada Voss"),
    "Ada | the engineer": ("Ada", "the engineer"),
    "Ada\nAda Voss\n": ("Ada", "Ada Voss"),
    '["Ada; Bo", "Ada"]': ("Ada; Bo", "Ada"),
    "['Ada', 'Bo']": ("Ada", "Bo"),
    "It was built by Ada Voss in 1912; since then nobody has lived in the tower of Velm.": (
        "It was built by Ada Voss in 1912; since then nobody has lived in the tower of Velm.",
    ),
    "The tower was built by Ada Voss, who had come from Orun, in the year 1912.\nIt is white.": (
        "The tower was built by Ada Voss, who had come from Orun, in the year 1912.\nIt is white.",
    ),
    "1912": ("1912",),
    "1912;": ("1912;",),
}


def cells_of(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    if path.suffix == ".xlsx":
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for row in (header, *rows):
            book.active.append(list(row))
        book.save(path)
        return path
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([header, *rows])
    return path


@pytest.mark.parametrize("name", ["q.csv", "q.tsv", "q.xlsx"])
def test_several_answers_stand_in_a_cell_as_people_write_them(name: str, tmp_path: Path) -> None:
    rows = [(f"Question {n}?", cell) for n, cell in enumerate(REFERENCES)]
    path = cells_of(tmp_path / name, ("question", "answers"), rows)
    with pytest.warns(FileNotesWarning, match=r"3 cells hold several right answers.*'Ada; Ada Voss'") as told:
        questions = read_questions(path)
    assert [question.references for question in questions] == [*REFERENCES.values()]
    assert len(told) == 1


def test_a_list_of_jsonl_is_not_divided(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text(
        '{"question": "Who?", "answers": ["Ada; Bo"]}\n{"question": "I?", "answer": "a; b"}'
    )
    assert [one.references for one in read_questions(tmp_path / "q.jsonl")] == [("Ada; Bo",), ("a; b",)]


def test_a_workbook_is_read_as_people_keep_it(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.create_sheet("Questions")
    for row in ([None, None], ["Frage", "Antwort"], ["Wann?", 1912], ["Wer?", "Ada"]):
        book["Questions"].append(row)
    book.create_sheet("Notes").append(["later"])
    book.save(tmp_path / "q.xlsx")
    with pytest.warns(FileNotesWarning, match=r"only the sheet 'Questions' is read, not 'Notes'"):
        questions = read_questions(tmp_path / "q.xlsx", columns={"question": "Frage", "answers": "Antwort"})
    assert [(one.text, one.references) for one in questions] == [("Wann?", ("1912",)), ("Wer?", ("Ada",))]
    cells_of(tmp_path / "q.xlsx", ("Frage",), [("Wann?",)])
    with pytest.raises(
        InputError, match=r"no column of questions in the first 10 rows.*the sheet 'Sheet' begins with Frage"
    ):
        read_questions(tmp_path / "q.xlsx")
    (tmp_path / "cut.xlsx").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"cut.xlsx: damaged"):
        read_questions(tmp_path / "cut.xlsx")
    with pytest.raises(InputError, match=r"q.xls has an unknown suffix. Save it as .xlsx"):
        read_questions(tmp_path / "q.xls")


@pytest.mark.parametrize("columns", [{"question": "frage", "answers": "antwort"}, None])
@pytest.mark.parametrize("suffix", [".xlsx", ".csv"])
def test_the_header_is_found_below_a_title_and_after_a_cover(
    columns: dict[str, str] | None, suffix: str, tmp_path: Path
) -> None:
    header = ["Nr", "Frage", "Antwort"] if columns else ["Nr", "Question", "ANSWER"]
    rows = [["Questions of the department", "", ""], ["November", "", ""], header, ["1", "Wann?", "1912"]]
    path = cells_of(tmp_path / f"q{suffix}", rows[0], rows[1:])
    assert read_questions(path, columns=columns) == [Question("Wann?", ("1912",))]
    if suffix == ".xlsx":
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.load_workbook(path)
        book.create_sheet("Cover", 0).append(["A title"])
        book.save(path)
        with pytest.warns(FileNotesWarning, match="only the sheet 'Sheet' is read, not 'Cover'"):
            assert read_questions(path, columns=columns) == [Question("Wann?", ("1912",))]
        with pytest.raises(InputError, match=r"no column 'Fragen'.*'Cover' begins with A title.*--columns"):
            read_questions(path, columns={"question": "Fragen"})


def test_case_counts_where_two_columns_differ_in_nothing_else(tmp_path: Path) -> None:
    path = cells_of(tmp_path / "q.csv", ("QUESTION", "Question", "id"), [("a", "b", "1")])
    with pytest.raises(InputError, match="has no question"):
        read_questions(path)
    assert read_questions(path, columns={"question": "Question"})[0].text == "b"


def test_any_name_of_a_field_names_its_column(tmp_path: Path) -> None:
    path = cells_of(tmp_path / "q.csv", ("frage", "antwort", "id"), [("Wer?", "Ada", "7")])
    for named in ({"question": "frage", "answers": "antwort"}, {"query": "frage", "references": "antwort"}):
        assert read_questions(path, columns=named) == [Question("Wer?", ("Ada",), id="7")]
    with pytest.raises(InputError, match="the column of references is named twice: 'antwort' and 'id'"):
        read_questions(path, columns={"question": "frage", "answers": "antwort", "references": "id"})


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".jsonl"])
def test_an_error_names_all_columns_at_once_as_the_file_does(suffix: str, tmp_path: Path) -> None:
    header, rows = ("Nr", "Frage", "Antwort"), [["1", "Wer war es?", "Ada"], ["2", "Wann?", ""]]
    path = tmp_path / f"q{suffix}"
    records = [dict(zip(header, row, strict=True)) for row in rows]
    if suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, records)))
    else:
        cells_of(path, header, rows)
    with pytest.raises(
        InputError, match=r"--columns question=Frage,references=Antwort, or in Python"
    ) as info:
        evaluate({"one": lambda question: "Ada"}, path)
    columns = ast.literal_eval(str(info.value).partition("columns=")[2].partition("}")[0] + "}")
    for asked in (path, records[:1]):  # the advice works in Python
        run = evaluate({"one": lambda question: "Ada"}, asked, columns=columns)
        assert run.questions[0] == Question("Wer war es?", ("Ada",))


@pytest.mark.parametrize(
    ("record", "option"),
    [
        ({"Text": "Who", "Other": "Ada"}, "question=NAME,references=NAME"),
        ({"Text": "Who"}, "question=NAME"),
        ({"answer": "Ada", "Text": "Who?"}, "question=Text"),
        ({"questions": "Who", "right one": "Ada"}, "'question=questions,references=right one'"),
    ],
)
def test_columns_that_cannot_be_guessed_are_left_to_the_user(record: dict[str, str], option: str) -> None:
    with pytest.raises(InputError, match=rf"--columns {option}, or in Python"):
        as_questions([record])
