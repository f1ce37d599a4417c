"""Options: checked at construction, on assignment and in copies, with hints for near names."""

from __future__ import annotations

import copy
import pickle
from typing import Any, ClassVar, Literal

import pytest
from pydantic import BaseModel, Field

from surerag import FakeReader, LazyRAG, LazyRAGOptions, Passage, PromptSet, PromptTemplate
from surerag.errors import ConfigurationError, InputError, PromptError
from surerag.options import Options, PromptsOption, prompts_field
from surerag.services import Services

OURS = PromptTemplate("ask", "Answer: {question}")


class Some(Options):
    """Options of several types."""

    PROMPTS: ClassVar[PromptSet] = PromptSet(ask=OURS)

    number: int = Field(3, ge=1)
    """A number."""
    share: float | None = Field(None, gt=0, le=1)
    kind: Literal["a", "b"] = "a"
    prompts: PromptsOption = prompts_field()


class Corpus:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage(f"About {query}.", id="p")]


def rag(**options: Any) -> LazyRAG:
    return LazyRAG(FakeReader(default="Velm", entropy=0.1), Corpus(), "A summary.", **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"number": 0}, "number should be greater than or equal to 1, got 0"),
        ({"number": True}, "Some: number must be a number, got True"),
        ({"number": 2.5}, "number should be a valid integer"),
        ({"share": 0}, "share should be greater than 0, got 0"),
        ({"kind": "c"}, "kind should be 'a' or 'b', got 'c'"),
        ({"prompts": "Say"}, "prompts must be a mapping"),
        ({"nummber": 3}, r"Some has no option 'nummber'. Did you mean number\?"),
        ({"top_k": 3}, r"Some has no option 'top_k'. It takes"),
    ],
)
def test_what_cannot_work_is_refused_in_words(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Some(**options)
    with pytest.raises(ConfigurationError, match=match):
        Some().with_options(**options)
    with pytest.raises(ConfigurationError, match=match):
        Some().model_copy(update=options)
    some = Some()
    [(name, value)] = options.items()
    with pytest.raises(ConfigurationError, match=match):
        setattr(some, name, value)
    assert some == Some()


def test_near_names_are_hinted_at_whatever_a_framework_calls_the_option() -> None:
    for name, hint in [("treshold", "threshold"), ("similarity_top_k", "top_n"), ("llm", "reader")]:
        with pytest.raises(ConfigurationError, match=f"Did you mean {hint}"):
            rag(**{name: 1})


def test_prompts_are_replaced_by_name_and_keep_their_slots() -> None:
    assert Some(prompts={"ask": "Say: {question}"}).prompts["ask"].render(question="Where?") == "Say: Where?"
    assert Some().prompts["ask"] is OURS
    with pytest.raises(PromptError, match=r"Did you mean ask"):
        Some(prompts={"aks": "x"})
    with pytest.raises(PromptError, match="slots"):
        Some(prompts={"ask": "no slot"})


def test_options_are_told_from_services_and_from_a_frameworks_own_fields() -> None:
    class FrameworkBase(BaseModel):
        callbacks: int = 0

    class Adapter(Some, FrameworkBase):
        reader: Any = None

    assert Some.option_names() == Adapter.option_names() == ("number", "share", "kind", "prompts")
    assert LazyRAG.option_names() == LazyRAGOptions.option_names() == tuple(LazyRAGOptions.model_fields)
    assert len(LazyRAG.option_names()) == 9


def test_docstrings_of_fields_are_their_help() -> None:
    assert Some.model_json_schema()["properties"]["number"]["description"] == "A number."
    assert str(Some.__doc__).endswith("types.\n\nArgs:\n    number (int, at least 1, default 3): A number.")


def test_copies_and_pickles_have_the_same_options_and_share_services() -> None:
    one = rag(threshold=0.3)
    again = pickle.loads(pickle.dumps(one))
    assert again.options() == one.options()
    assert again.run("Where?").answer == "Velm"
    for other in (copy.deepcopy(one), copy.copy(one), one.with_options(n_tokens=2)):
        assert other.reader is one.reader
        assert other.run("Where?").answer == "Velm"
    assert one.n_tokens == 8


def test_a_new_reader_is_checked_and_used() -> None:
    one = rag()
    one.reader = FakeReader(["Orun"], name="other")
    assert one.run("Where?").answer == "Orun"
    assert one.to_dict()["reader"] == "other"
    with pytest.raises(ConfigurationError, match="expected a reader"):
        one.reader = "gpt-4o"  # type: ignore[assignment]


@pytest.mark.parametrize("cases", ["Where?", 3])
def test_many_cases_are_a_list(cases: Any) -> None:
    with pytest.raises(InputError, match="cases must be a list"):
        rag().run_many(cases)


def test_a_case_with_too_many_values_is_an_input_error_and_a_type_error_inside_is_none() -> None:
    with pytest.raises(InputError, match=r"a case of LazyRAG is \(question\), got 2 values"):
        rag().run_many([("Where?", "When?")])

    class Broken(LazyRAG):
        def program(self, question: str) -> Any:
            raise TypeError("mine")

    broken = Broken(FakeReader(), Corpus(), "A summary.")
    with pytest.raises(TypeError, match="mine"):
        broken.run_many(["Where?"])


def test_services_name_what_is_missing_and_what_is_of_the_wrong_kind() -> None:
    with pytest.raises(ConfigurationError, match="encoder must be an Encoder"):
        Services(encoder=object())  # type: ignore[arg-type]


async def test_results_come_in_order_and_only_a_few_windows_are_read_ahead() -> None:
    questions = [f"Where is {number}?" for number in range(300)]
    unread = iter(questions)
    results = rag().iter_many(unread, window=4)
    assert next(results).question == questions[0]
    assert len(list(unread)) > 250
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert [result.question async for result in rag().aiter_many(questions, window=7)] == questions


@pytest.mark.parametrize(
    ("option", "hint"),
    [("n", "Did you mean n_tokens or n_samples"), ("variant", "Settings of the papers"), ("k", "mean top_n")],
)
def test_a_usual_name_of_an_option_leads_to_ours(option: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        LazyRAGOptions(**{option: 8})
