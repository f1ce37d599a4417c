"""The three public classes of DENSE-RAG: options, copies, pickles, many cases, and who judges."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from surerag import DenseEvaluator, DenseRefiner, FakeReader, Passage, SemanticChunker
from surerag.component import Component
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer, JudgeEntailer
from surerag.errors import ConfigurationError, PromptError
from surerag.methods.dense.options import VARIANTS
from tests.methods.dense_rag.script import MENDED, QUESTION, Letters, distinct, passages, script

JUDGE_PROMPT = "entailment? {question} {premise} {hypothesis}"


def components() -> list[Component[Any, Any]]:
    reader = FakeReader(["A"])
    return [
        DenseEvaluator(
            reader, ExactEntailer(), threshold=0.3, prompts={"rephrase": "Rewrite. Text: {passage}"}
        ),
        DenseRefiner(reader, ExactEntailer(), HashingEncoder(), top_n=2, variant="paper", more=3),
        SemanticChunker(HashingEncoder(), chunk_size=99, language="de"),
    ]


def named(component: Any) -> str:
    return type(component).__name__


@pytest.mark.parametrize("component", components(), ids=named)
def test_options_survive_a_dictionary_a_pickle_and_a_copy(component: Component[Any, Any]) -> None:
    living = {
        name: getattr(component, name)
        for name in ("reader", "entailer", "encoder")
        if hasattr(component, name)
    }
    written = component.to_dict()
    assert type(component).from_dict(written, **living).to_dict() == written
    assert pickle.loads(pickle.dumps(component)).to_dict() == written
    copied = copy.deepcopy(component)
    assert (copied, copied.to_dict()) == (component, written)
    assert all(getattr(copied, name) is service for name, service in living.items()), "no model is copied"


@pytest.mark.parametrize(
    ("component", "wrong", "near"),
    list(
        zip(
            components(), ["treshold", "topn", "chunksize"], ["threshold", "top_n", "chunk_size"], strict=True
        )
    ),
    ids=["DenseEvaluator", "DenseRefiner", "SemanticChunker"],
)
def test_an_unknown_option_raises_and_names_the_near_ones(
    component: Component[Any, Any], wrong: str, near: str
) -> None:
    for make in (type(component), component.with_options):
        with pytest.raises(ConfigurationError, match=f"no option '{wrong}'.*{near}"):
            make(**{wrong: 1})


def test_a_copy_with_changes_is_in_force_and_shares_the_cache() -> None:
    dense = DenseEvaluator(script({"a'b": "B"}), ExactEntailer())
    assert dense.run(QUESTION, passages("ab")).labels == ("uncertain", "certain")
    labelling = dense.with_options(mask=True)
    assert labelling.run(QUESTION, passages("ab")).labels == ("unnecessary", "certain")
    assert labelling.cache is dense.cache


def test_many_come_in_order_as_there_is_room_for_them() -> None:
    drawn: list[str] = []

    def cases() -> Iterator[tuple[str, list[Passage]]]:
        for letter in "abcdef":
            drawn.append(letter)
            yield f"Where is {letter}?", passages(letter)

    results = DenseEvaluator(script(distinct), ExactEntailer()).iter_many(cases(), window=2)
    assert next(results).question == "Where is a?"
    assert len(drawn) < 6
    assert [result.question[-2] for result in results] == list("bcdef")


def test_without_an_entailer_the_reader_judges_in_words() -> None:
    def reply(prompt: str) -> str:
        if prompt.startswith("Two possible answers"):
            return "entailment"
        return "other words" if prompt.startswith("Rewrite") else "B" if "[1] other" in prompt else "A"

    reader = FakeReader(reply)
    dense = DenseEvaluator(reader)
    result = dense.run(QUESTION, passages("ab"))
    assert (result.score, result.answers) == (0.0, ("A", "B", "A"))
    told = DenseEvaluator(reader, JudgeEntailer(reader)).run(QUESTION, passages("ab"))
    assert (told.score, told.calls) == (result.score, result.calls)
    assert dense.to_dict()["entailer"] == f"judge:{reader.name}"
    assert DenseEvaluator.from_dict(dense.to_dict(), reader=reader).to_dict() == dense.to_dict()


def test_a_judge_keeps_count_across_copies_and_has_its_own_prompt() -> None:
    judge = FakeReader(lambda _: "Bananas")
    dense = DenseEvaluator(script({"a'b": "B"}), judge)
    dense.run(QUESTION, passages("ab"))
    assert (dense.unparsed, dense.with_options(threshold=1.0).unparsed) == (2, 2)
    asked = dense.with_options(prompts={"entailment": JUDGE_PROMPT})
    asked.run("When?", passages("ab"))
    assert judge.prompts[-1].startswith("entailment? When?")
    assert (asked.unparsed, dense.unparsed) == (2, 2)
    assert asked.services.entailer != dense.services.entailer


def test_a_prompt_that_nobody_is_asked_with_is_refused() -> None:
    for make in (DenseEvaluator, DenseRefiner):
        with pytest.raises(PromptError, match="ExactEntailer is not asked"):
            make(script({}), ExactEntailer(), prompts={"entailment": JUDGE_PROMPT})
    with pytest.raises(PromptError, match="no prompt 'sufficient'"):
        DenseEvaluator(script({}), ExactEntailer(), prompts={"sufficient": "{passages}{question}"})


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_an_option_that_is_none_goes_by_the_variant(variant: Any) -> None:
    refiner = DenseRefiner(script({}), ExactEntailer(), variant=variant)
    assert {name: refiner.settled(name) for name in VARIANTS[variant]} == VARIANTS[variant]
    assert refiner.with_options(keep="lowest", half="necessary").settled("half") == "necessary"


def test_a_context_never_holds_more_than_top_n_unless_asked_for() -> None:
    reader = script(distinct, sufficient=lambda _: "no")
    for changes, most in (({}, 2), ({"max_chunks": 4}, 4)):
        options: dict[str, Any] = {"top_n": 2, **changes}
        result = DenseRefiner(reader, ExactEntailer(), Letters(), **options).run(QUESTION, passages("abcdef"))
        assert max(len(one.measured.passages) for one in result.rounds) == most
    with pytest.raises(ConfigurationError, match="max_chunks=1 is less than top_n=2"):
        DenseRefiner(reader, ExactEntailer(), top_n=2, max_chunks=1)


def test_without_a_retriever_nobody_is_asked_for_more() -> None:
    refiner = DenseRefiner(script(MENDED), ExactEntailer(), Letters(), top_n=3)
    result = refiner.run(QUESTION, passages("abc"))
    assert (refiner.more, refiner.reserve, result.retrievals, result.failure) == (20, 0, 0, "")


def test_an_answer_is_as_long_as_its_model_lets_it_be() -> None:
    class Short(FakeReader):
        max_tokens = 7

    assert DenseEvaluator(Short(["A"]), ExactEntailer()).answering.max_tokens == 7
    assert DenseEvaluator(Short(["A"]), ExactEntailer(), max_tokens=3).answering.max_tokens == 3
