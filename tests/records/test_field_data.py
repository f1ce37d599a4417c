"""Data sets in the shapes in which they come, and BM25 over their paragraphs."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surerag.errors import InputError, ServiceError
from surerag.records.field.bm25 import BM25Index
from surerag.records.field.data import Example, drawn, field_data
from surerag.types import Passage
from tests.records.real_data import shared

SQUAD = {
    "data": [
        {
            "title": "Velm",
            "paragraphs": [
                {
                    "context": "Velm lies\n on the Orun.",
                    "qas": [
                        {"id": "a", "question": "Where is Velm?", "answers": [{"text": "on the Orun"}] * 2},
                        {"id": "b", "question": "Who rules it?", "answers": [], "is_impossible": True},
                    ],
                },
                {"context": "It has nine gates.", "qas": []},
            ],
        }
    ]
}
VELM, ADA = "Velm lies on the Orun.", "Ada paints. She sings."
HOTPOT = [
    {
        "_id": "h",
        "question": "Who?",
        "answer": "Ada",
        "context": [["Ada", ["Ada paints.", " She sings."]], ["Bo", ["Bo swims."]]],
    }
]


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".parquet"])
def test_one_question_in_every_shape(tmp_path: Path, ending: str) -> None:
    rows = [
        {"id": "1", "question": "Who?", "answers": ["Ada"], "paragraphs": ["Ada paints.", "Bo swims."]},
        {"id": "2", "question": "Who else?", "answers": ["Bo"], "paragraphs": ["Bo swims."]},
    ]
    file = tmp_path / f"mine{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text(json.dumps(rows) if ending == ".json" else "\n".join(map(json.dumps, rows)))
    data = field_data(str(file), 9)
    assert sorted((one.text, tuple(one.golds), one.id) for one in data.questions) == [
        ("Who else?", ("Bo",), "2"),
        ("Who?", ("Ada",), "1"),
    ]
    assert [passage.text for passage in data.passages] == ["Ada paints.", "Bo swims."]
    assert len(data.documents) == 2 and data.available == 2


def test_squad_and_hotpot_json(tmp_path: Path) -> None:
    file = tmp_path / "squad.json"
    file.write_text(json.dumps(SQUAD))
    data = field_data(str(file), 9)
    [question] = data.questions  # the one that cannot be answered is left out
    assert (question.id, question.golds) == ("a", ("on the Orun",))
    assert [(one.id, one.text) for one in data.passages] == [("Velm#0", "Velm lies on the Orun.")]
    file.write_text(json.dumps(HOTPOT))
    data = field_data(str(file), 9)
    assert [one.text for one in data.passages] == ["Ada paints. She sings.", "Bo swims."]
    assert [one.title for one in data.documents] == ["Ada", "Bo"]


def test_rows_as_the_hub_has_them(tmp_path: Path) -> None:
    squad = {
        "id": "a",
        "title": "Velm",
        "context": "Velm lies on the Orun.",
        "question": "Where?",
        "answers": {"text": ["on the Orun"], "answer_start": [10]},
    }
    hotpot = {
        "id": "h",
        "question": "Who?",
        "answer": "Ada",
        "context": {"title": ["Ada"], "sentences": [["Ada paints.", " She sings."]]},
    }
    for name, row, text in (("squad", squad, VELM), ("hotpot", hotpot, ADA)):
        folder = tmp_path / name
        folder.mkdir()
        pq.write_table(pa.Table.from_pylist([row]), folder / "validation.parquet")
        data = field_data(f"hf:{folder}", 5)
        assert [one.text for one in data.passages] == [text] and len(data.questions) == 1
    with pytest.raises(ServiceError, match="cannot be had"):
        field_data("hf:nobody/has-this", 5)


@pytest.mark.parametrize(
    ("name", "questions", "passages"),
    [("xquad.en.json", 1190, 240), ("hotpotqa_100.json", 100, 994), ("traces/2wiki.parquet", 500, 3000)],
)
def test_real_files(name: str, questions: int, passages: int) -> None:
    file = shared(name)
    if file is None:
        pytest.skip(f"the file is not there: ../shared/data/{name}")
    data = field_data(str(file), 20, seed=3)
    assert data.available == questions and len(data.questions) == 20
    assert passages <= len(data.passages) <= 1.8 * passages
    assert data == field_data(str(file), 20, seed=3)
    assert data.questions != field_data(str(file), 20, seed=4).questions
    index = BM25Index(data.passages)
    assert all(len(index.retrieve(question.text, 3)) == 3 for question in data.questions)


def test_the_world_is_data_too() -> None:
    data = field_data("world", 10, seed=2)
    assert len(data.questions) == 10 and len(data.passages) > 1000


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file nowhere"):
        field_data("nowhere", 5)
    file = tmp_path / "x.jsonl"
    file.write_text('{"question": "Who?"}')
    with pytest.raises(InputError, match=r"holds no question with gold answers and paragraphs. Each"):
        field_data(str(file), 5)


def test_equal_questions_keep_names_of_their_own() -> None:
    data = drawn("twice", [Example("", "Who?", ("Ada",), (("", "Ada."),))] * 2, 5)
    assert [one.id for one in data.questions] == ["Who?", "Who? (2)"]


def test_bm25_ranks_by_rare_words_and_keeps_what_it_found() -> None:
    corpus = [
        Passage("The river is wet.", id="a"),
        Passage("Ada swims in the river.", id="b", metadata={"x": 1}),
    ]
    index = BM25Index(corpus)
    best = index.retrieve("Does Ada swim in a river?", 1)[0]
    assert (best.id, best.metadata, best.text) == ("b", {"x": 1}, corpus[1].text)
    assert [one.id for one in index.retrieve("zzz", 2)] == ["a", "b"]
    assert index.retrieve_many(["river", "Ada"], 1)[1][0].id == "b"
    numbered = BM25Index([Passage(f"Person {at} swims.", id=str(at)) for at in range(9)])
    assert numbered.retrieve("Does person 7 swim?", 1)[0].id == "7"


def test_fewer_paragraphs_are_those_of_the_questions_and_others() -> None:
    examples = [
        Example(str(at), f"Question {at}?", ("yes",), ((f"T{at // 3}", f"Paragraph {at}."),))
        for at in range(60)
    ]
    every = drawn("all", examples, 5, seed=1)
    few = drawn("few", examples, 5, seed=1, paragraphs=20)
    assert few.questions == every.questions and len(every.passages) == 60 and len(few.passages) == 20
    own = {f"Paragraph {question.id}." for question in few.questions}
    texts = [passage.text for passage in few.passages]
    assert own <= set(texts)
    # In the order of the data, with names and documents of their own.
    assert texts == [passage.text for passage in every.passages if passage.text in texts]
    assert {part for document in few.documents for part in document.text.split("\n\n")} == set(texts)
    assert len(drawn("own", examples, 5, seed=1, paragraphs=1).passages) == 5
