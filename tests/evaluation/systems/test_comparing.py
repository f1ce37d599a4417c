"""Whole systems on the same questions: users' own objects, failures, costs, verdicts, resumes."""

from __future__ import annotations

import asyncio
import threading

import pytest

from surerag import LazyRAG, Passage, ScriptedReader, SystemAnswer, acompare, compare
from surerag.errors import BudgetError, ConfigurationError, InputError
from surerag.evaluation.rows import Question
from surerag.evaluation.systems.units import UNIT
from surerag.prices import Costs, Price, Prices

N = 80
QUESTIONS = [Question(f"Where was P{n} born?", [f"Town{n}"], str(n)) for n in range(N)]


def number(question: str) -> int:
    return int(question.split("P")[1].split()[0])


def right(question: str) -> str:
    return f"In Town{number(question)}."


def every_other(question: str) -> str:
    return right(question) if number(question) % 2 else "I do not know."


class Corpus:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage(f"P{number(query)} was born in Town{number(query)}.", id=f"p{number(query)}")]


def test_functions_are_compared_and_the_better_one_is_recommended():
    report = compare({"plain": every_other, "new": right}, QUESTIONS)
    assert report.system("plain").measures["accuracy"].value == 0.5
    assert report.system("new").measures["accuracy"].value == 1.0
    assert report.system("new").measures["exact_match"].value == 0.0  # "In Town…"
    gap = report.difference("new")
    assert (gap.lost, gap.gained, gap.n) == (0, 40, 80) and 0.3 < gap.low < 0.5 < gap.high < 0.7
    assert report.recommendation.system == "new" and report.recommendation.decided
    assert "Use new: its accuracy is +50.0 points" in report.recommendation.text


def test_coroutine_functions_and_results_of_many_kinds_are_answers():
    async def waits(question: str) -> dict[str, object]:
        await asyncio.sleep(0)
        return {"answer": right(question), "context": ["a passage"], "usage": {"prompt_tokens": 7}}

    def typed(question: str) -> SystemAnswer:
        return SystemAnswer(right(question), (Passage("x"),), Costs(10, 2, 4, 1), retrieved=False)

    report = compare({"waits": waits, "typed": typed}, QUESTIONS[:40])
    assert report.system("waits").costs["prompt_tokens"] == 7
    typed_figures = report.system("typed")
    assert typed_figures.costs["tokens"] == 12 and typed_figures.cached == 0.4
    assert typed_figures.retrieved == 0.0
    assert report.system("waits").costs["seconds"] > 0


async def test_coroutine_functions_run_on_the_callers_own_loop():
    loop, seen = asyncio.get_running_loop(), set()

    async def waits(question: str) -> str:
        seen.add(asyncio.get_running_loop())
        return right(question)

    report = await acompare({"waits": waits}, QUESTIONS[:5], margin=0.1)
    assert seen == {loop} and report.system("waits").n == 5
    with pytest.raises(TypeError, match="nonsense"):
        await acompare({"waits": waits}, QUESTIONS[:5], nonsense=1)


def test_components_and_retrievers_are_systems_and_tell_their_costs():
    def answer(prompt: str) -> str:
        return right(prompt) if "born in" in prompt else "unknown"

    reader = ScriptedReader(answer)
    rag = LazyRAG(reader, Corpus(), mode="none")
    report = compare(
        {"found": Corpus(), "closed": rag},
        QUESTIONS[:30],
        reader=reader,
        prices=Prices({reader.name: Price(1.0, 2.0)}),
    )
    found, closed = report.system("found"), report.system("closed")
    assert found.measures["accuracy"].value == 1.0 and closed.measures["accuracy"].value == 0.0
    assert found.retrieved == 1.0 and closed.retrieved == 0.0
    assert found.costs["calls"] == 1 and found.costs["tokens"] > closed.costs["tokens"] > 0
    expected = (found.costs["prompt_tokens"] + 2 * found.costs["completion_tokens"]) / 1e6
    assert found.costs["money"] == pytest.approx(expected)
    assert report.cost == "money" and report.currency == "USD"


def test_a_question_that_fails_is_a_row_and_left_out_of_the_pairs():
    def fails_on_three(question: str) -> str:
        if number(question) < 3:
            raise TimeoutError("too slow")
        return right(question)

    report = compare({"plain": right, "new": fails_on_three}, QUESTIONS[:40])
    assert report.system("new").failed == 3 and report.system("new").n == 37
    assert report.incomplete == 3 and report.difference("new").n == 37
    assert report.errors == {"new": "TimeoutError: too slow"}


def test_what_would_fail_every_question_ends_the_comparison():
    def misconfigured(question: str) -> str:
        raise ConfigurationError("no such model")

    with pytest.raises(ConfigurationError, match="no such model"):
        compare({"plain": misconfigured}, QUESTIONS)


def test_without_gold_answers_agreement_counts_and_nothing_is_called_accuracy():
    report = compare({"plain": right, "new": every_other}, [question.text for question in QUESTIONS])
    assert report.measure == "agreement"
    assert "accuracy" not in report.system("new").measures
    assert report.system("new").measures["agreement"].value == 0.5
    assert "accuracy" not in report.recommendation.text


@pytest.mark.parametrize(
    ("systems", "told"),
    [
        ({}, "no system"),
        ({"x": 3}, "answers no questions"),
        ({"x": Corpus()}, "nobody who answers|no one who answers"),
    ],
)
def test_what_is_no_system_is_refused_at_once(systems, told):
    with pytest.raises(ConfigurationError, match=told):
        compare(systems, QUESTIONS)


def test_questions_are_asked_once_over_a_resume(tmp_path):
    asked: list[int] = []
    lock = threading.Lock()

    def stops(question: str) -> str:
        with lock:
            asked.append(number(question))
            if len(asked) == 50:
                raise KeyboardInterrupt
        return right(question)

    systems = {"plain": stops, "new": every_other}
    with pytest.raises(KeyboardInterrupt):
        compare(systems, QUESTIONS, tmp_path / "run", max_concurrency=1)
    report = compare(systems, QUESTIONS, tmp_path / "run", max_concurrency=1)
    # The one that was interrupted was being asked, and is asked again.
    assert len(asked) == N + 1 and set(asked) == set(range(N))
    assert report.to_json() == compare(systems, QUESTIONS, tmp_path / "run").to_json()
    assert len(asked) == N + 1


def test_a_folder_of_other_questions_or_systems_is_refused(tmp_path):
    compare({"plain": right}, QUESTIONS, tmp_path / "run")
    with pytest.raises(InputError, match="other questions"):
        compare({"plain": right}, QUESTIONS[::-1], tmp_path / "run")
    with pytest.raises(ConfigurationError, match="systems"):
        compare({"plain": right, "new": right}, QUESTIONS, tmp_path / "run")


def test_two_questions_of_one_id_are_refused():
    with pytest.raises(InputError, match="two questions"):
        compare({"plain": right}, [QUESTIONS[0], QUESTIONS[0]])


def test_money_ends_a_run_before_it_is_exceeded_and_more_of_it_goes_on(tmp_path):
    asked = []
    many = [Question(f"Where was P{n} born?", [f"Town{n}"], str(n)) for n in range(UNIT + 20)]

    def costs_one(question: str) -> SystemAnswer:
        asked.append(question)
        return SystemAnswer(right(question), costs=Costs(1_000_000, 0, calls=1), model="m")

    prices = Prices({"m": Price(1.0, 1.0)})
    with pytest.raises(BudgetError, match=f"{UNIT} of 200 is spent"):
        compare({"plain": costs_one}, many, tmp_path / "run", prices=prices, max_money=200)
    assert len(asked) == UNIT
    report = compare({"plain": costs_one}, many, tmp_path / "run", prices=prices, max_money=1000)
    assert len(asked) == len(many) and report.system("plain").costs["money"] == 1.0
    with pytest.raises(BudgetError, match="not known"):
        compare({"plain": costs_one}, many[:3], max_money=100)


def test_a_cheaper_system_that_loses_nothing_is_recommended_for_its_price():
    def cheap(question: str) -> SystemAnswer:
        return SystemAnswer(right(question), costs=Costs(10 + number(question) % 3, 1, calls=1))

    def dear(question: str) -> SystemAnswer:
        return SystemAnswer(right(question), costs=Costs(100 + number(question) % 5, 1, calls=1))

    report = compare({"plain": dear, "lazy": cheap}, QUESTIONS)
    assert report.recommendation.system == "lazy" and report.recommendation.decided
    assert "times the tokens" in report.recommendation.text
    assert report.system("lazy").pareto and not report.system("plain").pareto


def test_what_is_undecided_is_said_with_the_questions_that_would_decide_it():
    def noisy(question: str) -> str:
        return right(question) if number(question) % 7 else "no"

    def other(question: str) -> str:
        return right(question) if number(question) % 8 else "no"

    report = compare({"plain": noisy, "new": other}, QUESTIONS)
    assert report.recommendation.system == "plain" and not report.recommendation.decided
    assert report.recommendation.undecided == ("new",) and report.recommendation.more > 100
    assert "more questions" in report.recommendation.text
