"""Files of questions in groups: checked once, and read from where there is something left to ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import surerag
from surerag import LazyRAG, Passage, ScriptedReader
from surerag.errors import InputError
from surerag.evaluation.inputs import QuestionFile, check_questions, read_questions
from surerag.evaluation.inputs import questions as module
from surerag.evaluation.inputs.questions import groups_of
from surerag.evaluation.rows import Question
from surerag.evaluation.systems import units
from surerag.records import record


def written(folder: Path, n: int = 10) -> Path:
    file = folder / "questions.jsonl"
    rows = (
        {"id": f"q{at}", "question": f"Where was person {at} born?", "answers": ["Velm"]} for at in range(n)
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count where in a file reading began."""
    begun: list[int] = []
    before = module.parsed

    def parsed(source: Any, start: Any, *more: Any) -> Any:
        begun.append(start.number)
        return before(source, start, *more)

    monkeypatch.setattr(module, "parsed", parsed)
    return begun


def test_groups_of_a_file_are_those_of_its_questions(tmp_path: Path) -> None:
    file = written(tmp_path)
    found = check_questions(file, size=4)
    assert (len(found), list(found)) == (10, list(read_questions(file)))
    one_by_one = list(groups_of(read_questions(file), 4))
    assert [(one.size, one.digest, one.read()) for one in found.groups()] == [
        (one.size, one.digest, one.read()) for one in one_by_one
    ]
    assert [one.size for one in one_by_one] == [4, 4, 2]


def test_a_file_that_did_not_change_is_not_read_again(tmp_path: Path, reads: list[int]) -> None:
    file, folder = written(tmp_path), tmp_path / "out"
    first = check_questions(file, size=4, folder=folder)
    assert reads == [1]
    assert check_questions(file, size=4, folder=folder) == first
    assert reads == [1]
    [*_, last] = first.groups()
    assert [one.id for one in last.read()] == ["q8", "q9"]
    assert reads == [1, 9]
    assert len(check_questions(file, size=4, limit=5, folder=folder)) == 5
    written(tmp_path, 11)
    assert len(check_questions(file, size=4, folder=folder)) == 11


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(InputError, match="holds no questions"):
        check_questions(tmp_path / "none.jsonl", size=4)
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"question": "Where?"}\n' * 2)
    assert len(check_questions(twice, size=4)) == 2
    with pytest.raises(InputError, match="two questions have the id 'Where"):
        check_questions(twice, size=4, unique=True)


class Corpus:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage("Ada was born in Velm.", id="a", score=0.9)]


def recorded(file: QuestionFile, folder: Path, reader: ScriptedReader) -> int:
    return len(record(LazyRAG(reader, Corpus(), mode="standard"), file, folder, n_samples=0, part_size=4))


def compared(file: QuestionFile, folder: Path, reader: ScriptedReader) -> int:
    return surerag.compare({"plain": LazyRAG(reader, Corpus(), mode="standard")}, file, folder).questions


@pytest.mark.parametrize("run", [recorded, compared])
def test_going_on_reads_what_is_not_finished_and_nothing_else(
    tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    monkeypatch.setattr(units, "UNIT", 4)
    folder = tmp_path / "out"
    file = check_questions(written(tmp_path), size=4, folder=folder)

    calls: list[str] = []

    def answer(prompt: str) -> str:
        calls.append(prompt)
        if "person 8" in prompt:
            raise KeyboardInterrupt
        return "Velm"

    with pytest.raises(KeyboardInterrupt):
        run(file, folder, ScriptedReader(answer))
    reads.clear()
    reader = ScriptedReader(lambda _: "Velm")
    assert run(check_questions(file.path, size=4, folder=folder), folder, reader) == 10
    assert reads == [9]
    asked = " ".join(prompt for call in reader.history for prompt in call.prompts)
    assert "person 9" in asked and "person 7" not in asked


def test_questions_that_stand_in_no_file_come_as_texts_pairs_or_records() -> None:
    given = [
        "Who?",
        ("Where?", ["Velm"]),
        {"question": "When?", "answers": ["1802"], "id": "q3"},
        {"user_input": "What?", "reference": "wool"},
        {"question": "Why?"},
    ]
    found = [question for group in groups_of(given, 2) for question in group.read()]
    assert found == [
        Question("Who?", (), ""),
        Question("Where?", ("Velm",), ""),
        Question("When?", ("1802",), "q3"),
        Question("What?", ("wool",), ""),
        Question("Why?", (), ""),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("questions.jsonl", "questions are a list, got 'questions.jsonl'.*read_questions"),
        (Path("questions.jsonl"), "questions are a list.*read_questions"),
        ([7], r"question 1 must be a text, .* got 7"),
        (["Who?", ()], "question 2 must be a text"),
        ([{"golds": ["Velm"]}], "the questions, number 1: .*question"),
        ([("Where?", "Velm")], "the gold answers of 'Where\\?' must be a list, got a text"),
    ],
)
def test_what_is_no_list_of_questions_is_refused_in_words(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        list(groups_of(given, 2))
