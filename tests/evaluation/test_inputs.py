"""Reading data sets: what is accepted, and what is said about what is not."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.inputs import check_rows, given_columns, read_questions, read_rows

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
        ({**ROW, "contexts": [{"words": "a"}]}, "found {'words': 'a'}"),
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
        check_rows(file)
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
        (json.dumps({**ROW, "system": {"name": "a"}}), "the field 'system' must be texts"),
        ('{"question": "Where?", "answers": "Velm", "contexts": ' + "[" * 600 + "]" * 600 + "}", "found"),
    ],
)
def test_nothing_in_a_line_escapes_the_checks(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_rows(written(tmp_path, ROW, line))


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    file = written(tmp_path, ROW)
    monkeypatch.setattr(Path, "open", refused)  # root may read all files, and runs some of our tests
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        check_rows(file)


def test_what_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no file"):
        check_rows(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=r"'\.xlsx'"):
        check_rows(written(tmp_path, ROW, name="d.xlsx"))
    with pytest.raises(InputError, match="holds no rows"):
        check_rows(written(tmp_path))
    (tmp_path / "latin.jsonl").write_bytes(json.dumps(ROW).encode() + b"\n\xff\n")
    with pytest.raises(InputError, match="line 2: the text is not UTF-8"):
        check_rows(tmp_path / "latin.jsonl")


def test_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    plain = check_rows(written(tmp_path, ROW))
    spaced = check_rows(written(tmp_path, "", json.dumps({"more": 1, **ROW}, indent=None), name="e.jsonl"))
    other = check_rows(written(tmp_path, {**ROW, "answers": ["Orun"]}, name="f.jsonl"))
    assert plain.digest == spaced.digest != other.digest
    assert (plain.rows, plain.systems) == (1, ("contexts",))


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    rows = [{**ROW, "id": str(at), "system": name} for at in range(300) for name in ("a", "b")]
    write_table(arrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    assert check_rows(tmp_path / "d.parquet").digest == check_rows(written(tmp_path, *rows)).digest
    write_table(arrow.Table.from_pylist([{**ROW, "answers": []}]), tmp_path / "e.parquet")
    with pytest.raises(InputError, match=r"e\.parquet, row 1: the field 'answers'"):
        check_rows(tmp_path / "e.parquet")
    (tmp_path / "f.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        check_rows(tmp_path / "f.parquet")


CONTEXTS = ["Ada was born in Velm.", "Boats, in Orun; and more."]


def rows_of(path: Path, **columns: str) -> list[tuple[Any, ...]]:
    """What was read, the same way whether all at once or unit by unit, and again from what was noted."""
    found = list(read_rows(path, columns))
    data = check_rows(path, columns, folder=path.parent / "checked")
    assert list(data) == list(check_rows(path, columns, folder=path.parent / "checked")) == found
    return [(row.question, row.golds, [p.text for p in row.contexts[0]], row.id) for row in found]


WHERE = ("Where?", ("Velm",), CONTEXTS, "Where?")


@pytest.mark.parametrize(
    "record",
    [
        {"user_input": "Where?", "retrieved_contexts": CONTEXTS, "response": "Orun", "reference": "Velm"},
        {"question": "Where?", "contexts": CONTEXTS, "answer": "Orun", "ground_truth": "Velm"},
        {"question": "Where?", "contexts": CONTEXTS, "answer": "Orun", "ground_truths": ["Velm"]},
        {
            "input": "Where?",
            "retrieval_context": CONTEXTS,
            "actual_output": "Orun",
            "expected_output": "Velm",
        },
        {"input": "Where?", "retrievalContext": CONTEXTS, "actualOutput": "Orun", "expectedOutput": "Velm"},
        {
            "inputs": {"question": "Where?"},
            "outputs": {"answer": "Orun", "contexts": CONTEXTS},
            "reference_outputs": {"answer": "Velm"},
        },
        {
            "inputs.question": "Where?",
            "outputs.answer": "Orun",
            "outputs.documents": [{"page_content": text} for text in CONTEXTS],
            "reference.answer": "Velm",
        },
        {"question": "Where?", "ctxs": [{"id": "1", "text": text} for text in CONTEXTS], "answer": ["Velm"]},
    ],
)
def test_exports_of_others_are_known(tmp_path: Path, record: dict[str, Any]) -> None:
    lines = written(tmp_path, record)
    listed, wrapped = tmp_path / "list.json", tmp_path / "wrapped.json"
    listed.write_text(json.dumps([record], indent=2))
    wrapped.write_text(json.dumps({"name": "mine", "made": {"by": [1, 2]}, "test_cases": [record]}))
    renamed = written(tmp_path, record, name="lines.json")
    for file in (lines, listed, wrapped, renamed):
        assert rows_of(file) == [WHERE], file
    [asked] = read_questions(lines)
    assert (asked.text, asked.golds) == ("Where?", ("Velm",))
    assert "answers from" in check_rows(lines).told or "answers" in record


def test_lists_in_cells_are_lists(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    as_json, as_python = json.dumps(CONTEXTS), repr(CONTEXTS)
    for number, (shown, golds) in enumerate([(as_json, '["Velm"]'), (as_python, "Velm")]):
        row = {"user_input": "Where?", "retrieved_contexts": shown, "reference": golds, "score": "0.5"}
        for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
            with (tmp_path / f"{number}{suffix}").open("w", newline="", encoding="utf-8-sig") as opened:
                table = csv.DictWriter(opened, row, delimiter=delimiter)
                table.writeheader()
                table.writerows([row, {**row, "user_input": "Where,\nthen?"}])
            assert rows_of(tmp_path / f"{number}{suffix}") == [
                WHERE, ("Where,\nthen?", ("Velm",), CONTEXTS, "Where,\nthen?"),
            ]  # fmt: skip
        write_table(arrow.Table.from_pylist([row]), tmp_path / f"{number}.parquet")
        assert rows_of(tmp_path / f"{number}.parquet") == [WHERE]
    (tmp_path / "deepeval.csv").write_text("input,retrieval_context,expected_output\nWhere?,a|b,Velm\n")
    assert rows_of(tmp_path / "deepeval.csv") == [("Where?", ("Velm",), ["a", "b"], "Where?")]
    (tmp_path / "wide.csv").write_text("question,answers,contexts\nWhere, then?,Velm,[]\n")
    with pytest.raises(InputError, match=r"row 1: 4 cells, and the first line names 3"):
        check_rows(tmp_path / "wide.csv")


def experiment(reference: str) -> dict[str, Any]:
    """A row of ``ExperimentResults`` as LangSmith 0.15 flattens it (``to_pandas``)."""
    return {
        "inputs.question": "Where?",
        "outputs.answer": "Orun",
        "outputs.documents": [
            {"page_content": text, "metadata": {}, "type": "Document"} for text in CONTEXTS
        ],
        "error": None,
        f"reference.{reference}": "Velm",
        "execution_time": 0.01,
        "example_id": "44ae84a9-77df-4450-89c5-7bd697f6d34f",
        "id": "fcae85eb-2813-4fde-970c-d62e9817cc06",
    }


@pytest.mark.parametrize("reference", ["answer", "expected"])
def test_a_row_of_an_experiment_is_named_by_its_example_and_judged_by_its_reference(
    tmp_path: Path, reference: str
) -> None:
    row = experiment(reference)
    assert rows_of(written(tmp_path, row)) == [("Where?", ("Velm",), CONTEXTS, row["example_id"])]


def test_what_a_run_said_is_no_gold_answer_even_where_no_other_is_known(tmp_path: Path) -> None:
    file = written(tmp_path, experiment("of_our_own"))
    with pytest.raises(InputError, match="'answers' is missing"):
        check_rows(file)
    assert [asked.golds for asked in read_questions(file)] == [()]
    assert rows_of(file, answers="reference.of_our_own")[0][1] == ("Velm",)


def test_a_langsmith_example_asks_and_answers_and_its_run_only_asks(tmp_path: Path) -> None:
    example = {"id": "e1", "dataset_id": "d", "inputs": {"question": "Where?"}, "outputs": {"answer": "Velm"}}
    run = {
        "id": "r1", "name": "r", "run_type": "chain", "reference_example_id": "e1",
        "inputs": {"question": "Where?"}, "outputs": {"answer": "Orun"},
    }  # fmt: skip
    for record, golds in ((example, ("Velm",)), (run, ())):
        [asked] = read_questions(written(tmp_path, record))
        assert (asked.text, asked.golds, asked.id) == ("Where?", golds, "e1")


def test_deepeval_joins_its_passages_in_json_lines_as_in_csv_and_marks_their_sources(tmp_path: Path) -> None:
    joined = f"deepeval_source=ada.txt,deepeval_context={CONTEXTS[0]}|{CONTEXTS[1]}"
    row = {"input": "Where?", "actual_output": "Orun", "expected_output": "Velm", "context": None}
    assert rows_of(written(tmp_path, {**row, "retrieval_context": joined})) == [WHERE]
    assert rows_of(written(tmp_path, {**row, "retrieval_context": joined.split("|")})) == [WHERE]
    with (tmp_path / "deepeval.csv").open("w", newline="") as opened:
        table = csv.DictWriter(opened, [*row, "retrieval_context"])
        table.writeheader()
        table.writerow({**row, "retrieval_context": joined})
    assert rows_of(tmp_path / "deepeval.csv") == [WHERE]


def test_squad_hotpotqa_and_beir(tmp_path: Path) -> None:
    asked = [
        {
            "id": "1",
            "question": "Where?",
            "answers": [{"text": "Velm"}, {"text": "Velm"}, {"text": "in Velm"}],
        },
        {"id": "2", "question": "When?", "answers": [], "is_impossible": True},
        {"id": "3", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]},
    ]
    article = {"title": "Ada", "paragraphs": [{"context": "Ada was born in Velm.", "qas": asked}]}
    squad = tmp_path / "squad.json"
    squad.write_text(
        json.dumps({"version": "1", "data": [article, article]})
        .replace('"3"', '"4"', 1)
        .replace('"1"', '"5"', 1)
    )
    with pytest.raises(InputError, match="'1' stands in element 1"):
        check_rows(squad)
    squad.write_text(json.dumps({"data": [article]}))
    assert [(row.id, row.golds) for row in read_rows(squad)] == [("1", ("Velm", "in Velm")), ("3", ("Ada",))]

    hotpot = tmp_path / "hotpot.json"
    pages = [["Ada", ["Ada was born", " in Velm."]], ["Boats", ["Boats."]]]
    record = {
        "_id": "a",
        "question": "Where?",
        "answer": "Velm",
        "supporting_facts": [["Ada", 0]],
        "context": pages,
    }
    hotpot.write_text(json.dumps([record]))
    assert rows_of(hotpot) == [("Where?", ("Velm",), ["Ada\nAda was born in Velm.", "Boats\nBoats."], "a")]

    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    written(
        beir, *({"_id": f"d{n}", "title": "T", "text": f"text {n}"} for n in range(3)), name="corpus.jsonl"
    )
    queries = [{"_id": f"q{n}", "text": f"Where {n}?", "metadata": {"answer": ["Velm"]}} for n in range(3)]
    written(beir, *queries, name="queries.jsonl")
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td2\t1\nq1\td0\t1\nq2\td1\t0\n")
    assert [(one.id, one.text) for one in read_questions(beir)] == [("q1", "Where 1?")]
    assert rows_of(beir) == [("Where 1?", ("Velm",), ["T\ntext 2", "T\ntext 0"], "q1")]


def test_hugging_face_data_sets_on_disk(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    rows = [
        {"id": str(n), "question": f"Where {n}?", "context": "Velm.", "answers": {"text": ["Velm"]}}
        for n in range(5)
    ]
    folder = tmp_path / "train"
    folder.mkdir()
    names = []
    for number, part in enumerate((rows[:3], rows[3:])):  # as save_to_disk() writes shards: Arrow streams
        names.append({"filename": f"data-{number:05}-of-00002.arrow"})
        table = arrow.Table.from_pylist(part)
        with (
            arrow.OSFile(str(folder / names[-1]["filename"]), "wb") as opened,
            arrow.ipc.new_stream(opened, table.schema) as stream,
        ):
            stream.write_table(table, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": names}))
    assert [row[3] for row in rows_of(folder)] == ["0", "1", "2", "3", "4"]
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InputError, match=r"several splits.*'train', 'test'.*such as"):
        check_rows(tmp_path)
    (folder / "state.json").write_text(json.dumps({"_data_files": names, "_indices_data_files": [{}]}))
    with pytest.raises(InputError, match="flatten_indices"):
        check_rows(folder)
    (tmp_path / "else" / "note").mkdir(parents=True)
    with pytest.raises(InputError, match="folder of no known kind; it holds 'note'"):
        check_rows(tmp_path / "else")


def test_what_a_system_said_is_never_taken_for_a_gold_answer(tmp_path: Path) -> None:
    logged = written(tmp_path, {"question": "Where?", "contexts": CONTEXTS, "answer": "Orun"})
    with pytest.raises(InputError, match=r"'answers' is missing.*--columns answers=answer"):
        check_rows(logged)
    assert rows_of(logged, answers="answer") == [("Where?", ("Orun",), CONTEXTS, "Where?")]
    run = {
        "run_type": "chain",
        "inputs": {"question": "Where?"},
        "outputs": {"answer": "Orun", "contexts": []},
    }
    with pytest.raises(InputError, match="'answers' is missing"):
        check_rows(written(tmp_path, run))
    example = {"inputs": {"question": "Where?"}, "outputs": {"answer": "Velm"}}
    assert next(read_questions(written(tmp_path, example))).golds == ("Velm",)


def test_columns_are_as_the_user_says_and_near_ones_are_named(tmp_path: Path) -> None:
    file = written(tmp_path, {"frage": "Where?", "gold_answer": "Velm", "found": {"texts": CONTEXTS}, "n": 7})
    given = {"question": "frage", "answers": "gold_answer", "contexts": "found.texts", "id": "n"}
    assert rows_of(file, **given) == [("Where?", ("Velm",), CONTEXTS, "7")]
    assert check_rows(file, given).told == (
        "question from 'frage', answers from 'gold_answer', contexts from 'found.texts', id from 'n'"
    )
    with pytest.raises(InputError, match=r"no column 'frge'; found 'frage'.*--columns question=frage"):
        check_rows(file, {**given, "question": "frge"})
    with pytest.raises(
        InputError, match=r"if 'gold_answer' is it, say so with --columns answers=gold_answer"
    ):
        check_rows(file, {"question": "frage"})
    assert given_columns(["question=frage", "id=n"]) == {"question": "frage", "id": "n"}
    with pytest.raises(ConfigurationError, match=r"write answers=gold"):
        given_columns(["answer=gold"])


def test_systems_that_stand_one_after_the_other_are_put_together(tmp_path: Path) -> None:
    rows = [{**ROW, "id": f"q{n}", "question": f"Where {n}?", "system": s} for s in "ab" for n in range(600)]
    apart = written(tmp_path, *rows)
    beside = written(tmp_path, *sorted(rows, key=lambda row: int(row["id"][1:])), name="beside.jsonl")
    one = check_rows(apart, folder=tmp_path / "apart")
    other = check_rows(beside, folder=tmp_path / "beside")
    assert (one.questions, one.units) == (other.questions, other.units) == (600, 3)
    assert [one.unit(n) for n in range(3)] == [other.unit(n) for n in range(3)]
    assert [len(one.unit(n)) for n in range(3)] == [512, 512, 176]
    assert check_rows(apart, folder=tmp_path / "apart") == one
    assert one.digest == check_rows(apart).digest != other.digest


def test_units_are_the_rows_and_questions_that_come_again_keep_their_numbers(tmp_path: Path) -> None:
    rows = [{**ROW, "question": f"Where {n % 300}?"} for n in range(700)]
    data = check_rows(written(tmp_path, *rows), folder=tmp_path / "checked")
    assert [row for unit in range(data.units) for row in data.unit(unit)] == list(read_rows(data.path))
    assert data.unit(2)[-1].id == "Where 99? (3)"


def test_a_file_that_was_checked_is_not_read_again_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, *({**ROW, "id": str(n)} for n in range(3)))
    data = check_rows(file, folder=tmp_path / "checked")
    with monkeypatch.context() as patched:
        patched.setattr("surerag.evaluation.inputs.dataset.parsed", None)
        assert check_rows(file, folder=tmp_path / "checked") == data
    assert check_rows(file, {"id": "id"}, folder=tmp_path / "checked") != data
    written(tmp_path, {**ROW, "id": "4"})
    assert check_rows(file, folder=tmp_path / "checked").rows == 1


@pytest.mark.parametrize("size", [1, 3, 64, 1 << 16])
def test_json_lists_are_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("surerag.evaluation.inputs.json_files._CHUNK", size)
    rows = [{**ROW, "question": f"Wo ist Übersee {n}?", "id": n, "n": 12.5e3} for n in range(300)]
    file = tmp_path / "d.json"
    file.write_text(
        "\ufeff" + json.dumps({"more": [{}, "]"], "data": rows, "end": 1}, indent=1, ensure_ascii=False)
    )
    assert [row[3] for row in rows_of(file)] == [str(n) for n in range(300)]
    assert check_rows(file).unit(1)[0].question == "Wo ist Übersee 256?"
    for broken, words in (
        ("[1, 2", "object with the fields"),
        ('{\n"a": 1}', "no list of questions; found 'a'"),
        ("[{]", "not JSON"),
    ):
        file.write_text(broken)
        with pytest.raises(InputError, match=words):
            check_rows(file)


@pytest.mark.parametrize(
    ("name", "rows", "first"),
    [("xquad.en.json", 1190, "308"), ("hotpotqa_100.json", 100, "a spirit")],
)
def test_real_files(name: str, rows: int, first: str) -> None:
    file = Path(__file__).parents[3] / "shared" / "data" / name
    if not file.exists():
        pytest.skip(f"{file} is not here")
    data = check_rows(file)
    assert data.rows == data.questions == rows
    assert data.unit(0)[0].golds == (first,)
