"""Options: said once, checked everywhere, and never ignored in silence."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Annotated, Any, Literal

import pytest

from surerag import FakeReader, LazyRAG, LazyRAGOptions, PromptSet, PromptTemplate
from surerag.errors import ConfigurationError, PromptError
from surerag.messages import Passage
from surerag.options import Doc, Options, Within, options, takes

OURS = PromptTemplate("ask", "Answer: {question}")


@options
class Some(Options):
    """Options of a kind each."""

    PROMPTS = PromptSet(ask=OURS)

    number: Annotated[int, Within(1), Doc("A number.")] = 3
    share: Annotated[float | None, Within(0, 1, above=True), Doc("A share.")] = None
    kind: Annotated[Literal["a", "b"], Doc("A kind.")] = "a"
    texts: Annotated[tuple[str, ...], Doc("Texts.")] = ()
    flag: Annotated[bool, Doc("A flag.")] = False
    prompts: Annotated[Any, Doc("Prompts.")] = PromptSet()


class Corpus:
    """One passage for every query."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage(f"About {query}.", id="p")]


def rag(**chosen: Any) -> LazyRAG:
    return LazyRAG(FakeReader(default="Velm", entropy=0.1), Corpus(), "A summary.", **chosen)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"number": 0}, "number must be at least 1, got 0"),
        ({"number": True}, "number must be a whole number, got True"),
        ({"number": 2.5}, "number must be a whole number"),
        ({"share": 0}, r"share must be in \(0, 1\], got 0"),
        ({"share": float("nan")}, "share must be a number or None, got nan"),
        ({"kind": "c"}, "kind must be one of a, b, got 'c'"),
        ({"texts": "abc"}, "texts must be a list or tuple, each item a text, got 'abc'"),
        ({"texts": [1]}, "texts must be a list or tuple"),
        ({"flag": 1}, "flag must be"),
    ],
)
def test_what_cannot_work_is_refused_in_words(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Some(**given)


def test_unknown_names_are_refused_and_the_near_ones_named() -> None:
    with pytest.raises(ConfigurationError, match=r"Some has no option 'nummber'. Did you mean number"):
        Some(nummber=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="Did you mean threshold"):
        rag(treshold=0.5)
    with pytest.raises(ConfigurationError, match="gate_tokens"):
        rag().with_options(gate_token=3)


def test_a_list_is_kept_as_a_tuple_and_prompts_as_a_whole_set() -> None:
    some = Some(texts=["x"], prompts={"ask": "Say: {question}"})  # type: ignore[arg-type]
    assert some.texts == ("x",)
    assert some.prompts["ask"].render(question="Where?") == "Say: Where?"
    assert Some().prompts["ask"] is OURS
    with pytest.raises(PromptError, match=r"Did you mean ask"):
        Some(prompts={"aks": "x"})
    with pytest.raises(PromptError, match="slots"):
        Some(prompts={"ask": "no slot"})


def test_an_option_without_a_sentence_or_with_a_default_out_of_bounds_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="has no Doc"):

        @options
        class Undocumented(Options):
            number: int = 1

    with pytest.raises(ConfigurationError, match="at least 2"):

        @options
        class Contradictory(Options):
            number: Annotated[int, Within(2), Doc("A number.")] = 1


def test_a_factory_shows_the_options_and_refuses_other_names() -> None:
    @takes(LazyRAGOptions)
    def build(reader: object, **chosen: Any) -> dict[str, Any]:
        """Build something."""
        return chosen

    assert "gate_tokens: Tokens of the first pass" in (build.__doc__ or "")
    assert "gate_tokens: int = 8" in str(inspect.signature(build))
    assert build(None, gate_tokens=3) == {"gate_tokens": 3}
    with pytest.raises(ConfigurationError, match="Did you mean gate_tokens"):
        build(None, gate_tokns=3)


def test_no_option_has_a_name_that_a_frameworks_base_class_has() -> None:
    import surerag

    taken = {"name", "tags", "metadata", "callbacks", "callback_manager", "cache", "id_func"}
    declared = [getattr(surerag, name) for name in surerag.__all__ if name.endswith("Options")]
    assert len(declared) >= 1
    for one in declared:
        assert not taken & one.OPTIONS.keys(), one


def test_copies_and_pickles_hold_the_same_options_and_services() -> None:
    one = rag(threshold=0.3, stop=("\n",))
    again = pickle.loads(pickle.dumps(one))
    assert again.chosen() == one.chosen()
    assert again.run("Where?").answer == "Velm"
    other = copy.deepcopy(one)
    assert other == one
    assert other.reader is one.reader
    changed = one.with_options(gate_tokens=2)
    assert (changed.gate_in_force.look.n_tokens, one.gate_in_force.look.n_tokens) == (2, 8)


def test_what_is_written_down_comes_back() -> None:
    one = rag(threshold=0.3, stop=("\n",), prompts={"closed_book": "Q: {question}"})
    plain = one.to_dict()
    assert plain["stop"] == ["\n"]
    assert plain["reader"] == "scripted"
    living = {"reader": one.reader, "retriever": one.retriever, "summaries": one.summaries}
    assert LazyRAG.from_dict(plain, **living).to_dict() == plain
    with pytest.raises(ConfigurationError, match=r"unknown settings \['surprise'\]"):
        LazyRAG.from_dict({**plain, "surprise": 1}, **living)


async def test_results_come_in_order_and_none_is_kept() -> None:
    questions = [f"Where is {number}?" for number in range(300)]
    taken = iter(questions)
    lazy = rag().iter_many(taken, window=4)
    first = next(lazy)
    assert first.question == questions[0]
    # No more than a few windows were read for it.
    assert len(list(taken)) > 250
    lazy.close()  # type: ignore[attr-defined]
    assert [result.question for result in rag().iter_many(questions, window=7)] == questions
    assert [result.question async for result in rag().aiter_many(questions, window=7)] == questions
    assert [result.question for result in await rag().arun_many(questions)] == questions


def test_verbs_show_their_names_and_arguments() -> None:
    assert LazyRAG.run.__name__ == "run"
    assert LazyRAG.astream.__qualname__ == "LazyRAG.astream"
    assert list(inspect.signature(LazyRAG.arun).parameters) == ["self", "question", "oracle"]
    assert (LazyRAG.run.__doc__ or "").startswith("Work on one case")
