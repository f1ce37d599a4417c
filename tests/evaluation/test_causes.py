"""Why answers are wrong."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from surerag import FakeReader, LazyRAG, Passage
from surerag.evaluation import EvaluationAnswer, EvaluationRun, Question, build_system, evaluate, write_report
from surerag.evaluation.causes import SKIPPED, causes_of, documents_with_references, remedy
from surerag.evaluation.pipelines import PipelineSetup

PASSAGES = [
    Passage("Ada was born in Velm.", metadata={"path": "town/ada.md"}),
    Passage("Bo paid 1,500 crowns for the old mill.", metadata={"source": "bo.pdf"}),
    Passage("维尔姆是一个城市。", id="three"),
]
QUESTIONS = [
    Question("Where was Ada born?", ("Velm",)),
    Question("How much did Bo pay?", ("1500 crowns", "1500")),
    Question("Who is Cy?", ("Cyrus of Tarn",)),
    Question("Is it so?", ("yes",)),
]


def run_of(*shown: str) -> EvaluationRun:
    run = evaluate({"plain": lambda question: EvaluationAnswer("something else", shown)}, QUESTIONS)
    run.record_documents(documents_with_references(QUESTIONS, PASSAGES))
    return run


def test_documents_that_hold_a_reference_are_found_as_contains_finds_it() -> None:
    names = documents_with_references([*QUESTIONS, Question("Which city?", ("维尔姆",))], PASSAGES)
    assert list(names.values()) == [("town/ada.md",), ("bo.pdf",), (), ("three",)]
    many = [Passage("Velm", id=str(number)) for number in range(9)]
    assert documents_with_references(QUESTIONS[:1], many) == {QUESTIONS[0].key: ("0", "1", "2")}


def test_a_wrong_answer_has_one_cause_and_an_answer_of_yes_none() -> None:
    run = run_of(PASSAGES[0].text)
    causes = causes_of(run)
    assert [causes.place(row) for row in run.rows] == ["shown", "elsewhere", "nowhere", None]
    assert causes.count("plain") == {"shown": 1, "elsewhere": 1, "nowhere": 1}
    assert remedy(causes, "plain", "plain").startswith(
        "Improve the model or its prompt, and the retriever: for 1 of plain's 4 wrong answers, the"
    )
    without = evaluate({"plain": lambda question: EvaluationAnswer("x", ("Cy fled.",))}, QUESTIONS)
    assert causes_of(without).count("plain") == {"shown": 0, "elsewhere": 3, "nowhere": 0}
    assert "Improve the retriever or the documents first" in remedy(causes_of(without), "plain", "plain")
    right = evaluate({"plain": lambda question: "Velm"}, QUESTIONS[:1])
    assert remedy(causes_of(right), "plain", "plain") == ""


@pytest.mark.parametrize(
    ("shown", "passages", "sentence"),
    [
        (
            True,
            True,
            "Improve the model or its prompt first: for all of plain's 20 wrong answers, the reference",
        ),
        (False, True, "Improve the retriever first: for all of"),
        (
            False,
            False,
            "Improve the documents first: for all of plain's 20 wrong answers, the reference answer is in",
        ),
    ],
)
def test_the_largest_cause_is_what_to_improve(shown: bool, passages: bool, sentence: str) -> None:
    questions = [Question(f"Which is number {number}?", (f"word{number}",)) for number in range(20)]
    corpus = [Passage(f"It is word{number}.") for number in range(20)]
    contexts = tuple(passage.text for passage in corpus) if shown else ("Another passage.",)
    run = evaluate({"plain": lambda question: EvaluationAnswer("no idea", contexts)}, questions)
    run.record_documents(documents_with_references(questions, corpus if passages else []))
    assert remedy(causes_of(run), "plain", "plain").startswith(sentence)


def test_the_page_says_why_with_file_names_and_what_was_skipped(tmp_path: Path) -> None:
    class Retriever:
        def retrieve(self, query: str, k: int | None) -> list[Passage]:
            return PASSAGES[:1]

    system = build_system("plain", PipelineSetup(FakeReader("no idea"), Retriever()))
    path = tmp_path / "run.db"
    with evaluate({"plain": system}, QUESTIONS, path) as run:
        run.record_documents(documents_with_references(QUESTIONS, PASSAGES))
        run.record({SKIPPED: "a<b.bin: no known kind\nscan.pdf: damaged"})
    with EvaluationRun(path) as run:
        write_report(run, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert text.index('class="causes"') < text.index("<table>") < text.index("No system is right (4)")
    assert "plain: 4 wrong" in text and text.count('<span class="') == 4  # as many as are listed
    assert "<b>town/ada.md: contains the reference answer</b>" in text and "<b>town/ada.md</b>" in text
    assert "the reference answer is in a passage that the model was not shown (bo.pdf)" in text
    assert "the reference answer is in no document" in text
    assert "2 files were not read" in text and "a&lt;b.bin: no known kind" in text
    assert '<i class="unplaced"></i>The reference answer is only yes, no, a letter or' in text


def test_a_system_that_reports_no_passages_has_no_causes(tmp_path: Path) -> None:
    questions = [(f"q{number}?", "Velm") for number in range(8)]

    def page(**systems: object) -> str:
        write_report(evaluate(systems, questions), tmp_path / "page.html")
        return html.unescape((tmp_path / "page.html").read_text("utf-8"))

    alone = page(f=lambda question: "no idea")
    assert "Improve" not in alone and '<span class="' not in alone and "improve" not in alone
    assert alone.count("f reports no passages, so the causes of its wrong answers are not known.") == 1
    assert "reports no passages" not in page(f=lambda question: "Velm")

    class Nothing:
        def retrieve(self, query: str, k: int | None) -> list[Passage]:
            return []

    reader = FakeReader(lambda prompt: "Orun", entropy=2.0)
    setup = PipelineSetup(reader, Nothing())
    mixed = page(
        lazy=LazyRAG(reader, Nothing(), summaries="x"),
        plain=build_system("plain", setup),
        f=lambda question: "no idea",
        g=lambda question: "nobody knows",
        none=build_system("none", setup),
    )
    assert "for all of lazy's 8 wrong answers" in mixed and "plain: 8 wrong" in mixed
    assert mixed.count("f and g report no passages") == 1 and mixed.count('<span class="elsewhere"') == 2
    assert "f: 8 wrong" not in mixed and "none: 8 wrong" not in mixed


def test_a_question_that_nothing_answers_asks_nobody_to_mend_the_folder(tmp_path: Path) -> None:
    """The pages tell users to write this abstention as the right answer."""
    questions = [
        *(Question(f"Who is {n}?", ("I do not know.",)) for n in range(20)),
        Question("Wer ist es?", ("I do not know.", "Das weiß ich nicht.")),
    ]
    answers = iter(["Ada", "I don't know. No passage says so.", "I do not know", *["Bo"] * 18])
    run = evaluate({"plain": lambda question: next(answers)}, questions)
    run.record_documents(documents_with_references(questions, PASSAGES))
    assert sum(run.values("plain", "contains").values()) == 2
    assert remedy(causes_of(run), "plain", "plain") == ""
    write_report(run, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "in no document" not in text and "Improve" not in text


@pytest.mark.parametrize(
    ("n", "sentence"), [(1, "for 1 of plain's 3 wrong"), (4, "for 4 of plain's 6 wrong")]
)
def test_a_remedy_says_how_many_wrong_answers_have_a_known_cause(n: int, sentence: str) -> None:
    questions = [Question(f"Which is number {number}?", (f"word{number}",)) for number in range(n)]
    questions += [Question(f"Is {number} even?", ("yes",)) for number in range(2)]
    contexts = tuple(f"It is word{number}." for number in range(n))
    run = evaluate({"plain": lambda question: EvaluationAnswer("no", contexts=contexts)}, questions)
    assert sentence in remedy(causes_of(run), "plain", "plain")
