"""How sure a model was of an answer: in any chain, graph or agent, at no call and no token more."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_core.tools import tool
from langchain_core.tracers import LangChainTracer
from langchain_openai import OpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from langchain_surerag import (
    CertaintyChain,
    CertaintyHandler,
    ChatReader,
    LazyRetrievalChain,
    SelectiveAnswer,
    with_certainty,
)
from surerag import (
    AbstentionPolicy,
    AreYouSure,
    CalibrationRow,
    FakeReader,
    SampleAgreement,
    calibrate_abstention,
)
from surerag.calibration import CalibrationWarning
from surerag.certainty import NO_LOGPROBS, NO_WORDS
from surerag.demo.reader import base_folder, load_reader
from surerag.errors import CapabilityError, ConfigurationError, InputError
from surerag.readers.fake import reply
from tests.langchain.conftest import SUMMARY, SURE, UNSURE, chat, search
from tests.servers.fake_openai import FakeOpenAI, split

PROMPT = ChatPromptTemplate.from_template("Context: {context}\nQuestion: {question}")
QUESTIONS = [f"Where does the river end that is called {name}?" for name in "abcdefghijklmnop"]
POLICY = AbstentionPolicy(0.5, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
NEVER = replace(POLICY, threshold=-1.0)


@pytest.fixture
def toy() -> Iterator[FakeOpenAI]:
    """A server whose model has a distribution of its own for each prompt."""
    with FakeOpenAI() as running:
        yield running


def lcel(model: Any) -> Runnable[Any, str]:
    return (
        {"context": lambda _: "Velm", "question": RunnablePassthrough()} | PROMPT | model | StrOutputParser()
    )


def agent_of(model: Any) -> Runnable[Any, Any]:
    return RunnableLambda(lambda text: {"messages": [("user", text)]}) | create_agent(model)


def graph_of(model: Any) -> Runnable[Any, Any]:
    graph = StateGraph(MessagesState)
    graph.add_node("ask", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_edge(START, "ask")
    return RunnableLambda(lambda text: {"messages": [("user", text)]}) | graph.compile()


KINDS = {"model": lambda model: model, "chain": lcel, "agent": agent_of, "graph": graph_of}
every_kind = pytest.mark.parametrize("kind", KINDS)


class Scripted(BaseChatModel):
    """Gives prepared messages, in order."""

    messages: list[AIMessage]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        message = self.messages.pop(0) if len(self.messages) > 1 else self.messages[0]
        return ChatResult(generations=[ChatGeneration(message=message.model_copy())])


def said(text: str, logprob: float = -0.1, **fields: Any) -> AIMessage:
    entries = [{"token": word, "logprob": logprob} for word in split(text)] or [{"token": "", "logprob": 0.0}]
    return AIMessage(text, response_metadata={"logprobs": {"content": entries}}, **fields)


def script(*messages: AIMessage) -> Scripted:
    return Scripted(messages=list(messages))


def sums(certainty: Any) -> float:
    """Return the negative log-likelihood, by which a message of ``said`` is known."""
    found = certainty["uncertainties"] if isinstance(certainty, dict) else certainty.uncertainties
    value = found["negative_log_likelihood"]
    return round(value if isinstance(value, float) else value.lower, 6)


@every_kind
async def test_one_line_gives_every_answer_its_certainty(toy: FakeOpenAI, kind: str) -> None:
    model = with_certainty(chat(toy, temperature=0))
    chain = CertaintyChain(KINDS[kind](model))
    whole = chain.invoke("Where?")
    assert (
        0 < whole["certainty"]["uncertainty"] == (await chain.ainvoke("Where?"))["certainty"]["uncertainty"]
    )
    pieces = list(chain.stream("Where?"))
    usage = {"usage": whole["usage"]} if kind in ("agent", "graph") else {}  # this stream counts no tokens
    assert pieces[-1] == {"certainty": whole["certainty"], **usage}
    assert [piece async for piece in chain.astream("Where?")][-1] == pieces[-1]
    if kind in ("model", "chain"):
        assert "".join(piece["answer"] for piece in pieces[:-1]) == whole["answer"]
        assert len(pieces) > 2
    else:
        message = whole["messages"][-1]
        assert message.response_metadata["certainty"]["uncertainties"] == whole["certainty"]["uncertainties"]
    events = [event async for event in chain.astream_events("Where?", version="v2")]
    assert [e["data"] for e in events if e["name"] == "surerag.certainty"] == [whole["certainty"]]


@every_kind
def test_it_costs_no_call_and_no_token(toy: FakeOpenAI, kind: str) -> None:
    model = chat(toy, temperature=0)
    plain = KINDS[kind](model)
    assured = CertaintyChain(KINDS[kind](with_certainty(model, top_logprobs=3)))
    for chain in (plain, assured):
        chain.invoke("Where?")
    first, second = toy.requests
    assert second["logprobs"] is True and second["top_logprobs"] == 3
    same = ("messages", "model", "temperature", "max_tokens", "n", "stop", "tools")
    assert {name: first.get(name) for name in same} == {name: second.get(name) for name in same}


async def test_runs_beside_one_another_are_kept_apart(toy: FakeOpenAI) -> None:
    toy.options["seconds"] = 0.01
    chain = lcel(with_certainty(chat(toy, temperature=0)))
    alone = {}
    for question in QUESTIONS:
        handler = CertaintyHandler()
        chain.invoke(question, {"callbacks": [handler]})
        assert handler.certainty is not None
        alone[question] = handler.certainty
    assert len({certainty.uncertainty for certainty in alone.values()}) > len(QUESTIONS) // 2
    ids = {question: uuid4() for question in QUESTIONS}
    told: dict[Any, Any] = {}
    handler = CertaintyHandler(on_answer=told.__setitem__)
    configs: list[Any] = [{"callbacks": [handler], "run_id": ids[question]} for question in QUESTIONS]
    chain.batch(QUESTIONS, configs)
    assert {question: handler.of(ids[question]) for question in QUESTIONS} == alone
    assert told == {ids[question]: alone[question] for question in QUESTIONS}
    await asyncio.gather(*(chain.ainvoke(q, config) for q, config in zip(QUESTIONS, configs, strict=True)))
    assert {question: handler.of(ids[question]) for question in QUESTIONS} == alone
    outputs = CertaintyChain(chain).batch(QUESTIONS)
    assert [out["certainty"] for out in outputs] == [alone[question].to_dict() for question in QUESTIONS]
    assert not handler._trees


def test_a_stream_that_is_abandoned_leaves_nothing_behind(toy: FakeOpenAI) -> None:
    handler = CertaintyHandler()
    stream = lcel(with_certainty(chat(toy))).stream("Where?", {"callbacks": [handler]})
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # it is a generator
    assert not handler._trees


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"{place} lies on the Orun."


def test_of_an_agent_the_last_call_is_the_answer_and_no_call_of_tools() -> None:
    call = {"name": "look", "args": {"place": "Velm"}, "id": "1"}
    model = script(said("", -5.0, tool_calls=[call]), said("By the river", -0.2))
    state = CertaintyChain(create_agent(model, [look])).invoke({"messages": [("user", "Where is Velm?")]})
    assert state["answer"] == "By the river"
    assert sums(state["certainty"]) == 0.6
    assert ["certainty" in m.response_metadata for m in state["messages"] if m.type == "ai"] == [False, True]


def test_an_attempt_that_fails_does_not_count() -> None:
    broken = script(said("no json", -5.0)) | JsonOutputParser()
    second = script(said('{"town": "Velm"}', -0.2)) | JsonOutputParser()
    output = CertaintyChain(broken.with_fallbacks([second])).invoke("Where?")
    assert output["town"] == "Velm" and sums(output["certainty"]) == 0.4
    calm = CertaintyChain(broken.with_fallbacks([RunnableLambda(lambda _: "Try later")])).invoke("Where?")
    assert (calm["answer"], calm["certainty"]["reason"]) == (
        "Try later",
        "no model finished an answer in this run",
    )
    again = (script(said("no json", -5.0), said("{}", -0.3)) | JsonOutputParser()).with_retry(
        wait_exponential_jitter=False, stop_after_attempt=2
    )
    assert sums(CertaintyChain(again).invoke("Where?")["certainty"]) == 0.3


def test_of_several_calls_the_one_counts_whose_text_is_shown() -> None:
    answer, guard = script(said("In Velm", -0.2)), script(said("yes", -5.0))
    chain = RunnableParallel(text=answer | StrOutputParser()) | RunnablePassthrough.assign(
        harmless=(lambda values: values["text"]) | guard | (lambda message: message.text == "yes")
    )
    output = CertaintyChain(chain | (lambda values: values["text"])).invoke("Where?")
    assert output["answer"] == "In Velm" and sums(output["certainty"]) == 0.4


TOWN = said('{"town": "Velm"}', -0.2)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (lambda: RunnableParallel(answer=script(TOWN), note=script(said("In Orun", -5.0))), 0.4),
        (lambda: RunnableParallel(note=script(said("In Orun", -5.0)), answer=script(TOWN)), 0.4),
        (lambda: RunnableParallel(a=script(TOWN), b=script(said("In Orun", -5.0))), None),
        (
            lambda: RunnableParallel(
                a=script(TOWN) | JsonOutputParser(), b=script(said('["Orun"]', -5.0)) | JsonOutputParser()
            ),
            None,
        ),
        (lambda: (lambda text: [text, "again"]) | script(TOWN, said("In Orun", -5.0)).map(), None),
        (lambda: script(TOWN) | JsonOutputParser() | guarded(), 0.4),
    ],
    ids=[
        "answer and note",
        "note and answer",
        "two",
        "two parsed",
        "each of a list",
        "guard of what is parsed",
    ],
)
def test_the_certainty_of_a_call_beside_the_answer_is_never_told(chain: Any, expected: float | None) -> None:
    whole, streamed = (CertaintyChain(RunnableLambda(lambda text: text) | chain()) for _ in range(2))
    for output in (whole.invoke("Where?"), list(streamed.stream("Where?"))[-1]):
        certainty = output["certainty"]
        if expected is None:
            assert certainty["uncertainty"] is None and "answers of several calls" in certainty["reason"]
        else:
            assert sums(certainty) == expected


def guarded() -> Runnable[Any, Any]:
    """Ask another model about a place, and return the place."""
    guard = (lambda place: place["town"]) | script(said("yes", -5.0)) | StrOutputParser()
    return RunnablePassthrough.assign(harmless=guard) | (lambda place: {"town": place["town"]})


@pytest.mark.parametrize("answer_first", [True, False])
@pytest.mark.parametrize("ends_in", ["text", "message", "chosen message"])
def test_of_parallel_calls_with_the_same_text_the_one_counts_that_made_the_answer(
    ends_in: str, answer_first: bool
) -> None:
    end = StrOutputParser() if ends_in == "text" else RunnablePassthrough()
    calls = {
        "answer": ChatReader(FakeReader(["Velm"], entropy=0.25)) | end,
        "other": ChatReader(FakeReader(["Velm"], entropy=2.0)) | end,
    }
    names = sorted(calls, reverse=not answer_first)
    chain: Runnable[Any, Any] = RunnableParallel({name: calls[name] for name in names})
    if ends_in == "chosen message":
        chain |= lambda found: found["answer"]
    assert CertaintyChain(chain).invoke("Where?")["certainty"]["uncertainty"] == 0.25


@pytest.mark.parametrize("order", [(0.25, 2.0), (2.0, 0.25)])
def test_where_nothing_tells_parallel_calls_apart_the_least_certain_counts(
    order: tuple[float, float],
) -> None:
    running, entropies = Barrier(2), iter(order)

    def answer(prompt: str) -> object:
        entropy = next(entropies)
        running.wait(10)
        time.sleep(0.05 if entropy == order[0] else 0.0)
        return reply("Velm", entropy=entropy)

    model = ChatReader(FakeReader(answer)) | StrOutputParser()
    chain = RunnableLambda(lambda question: model.batch([question, question])[0])
    assert CertaintyChain(chain).invoke("Where?")["certainty"]["uncertainty"] == 2.0


def test_a_cached_answer_has_its_certainty(toy: FakeOpenAI) -> None:
    set_llm_cache(InMemoryCache())
    chain = CertaintyChain(lcel(with_certainty(chat(toy))))
    assert chain.invoke("Where?")["certainty"] == chain.invoke("Where?")["certainty"]
    assert len(toy.requests) == 1


def test_each_of_several_answers_has_its_own(toy: FakeOpenAI) -> None:
    model = with_certainty(chat(toy, n=4, temperature=1.5))
    [row] = model.generate([[HumanMessage("Where?")]]).generations
    sure = [one.message.response_metadata["certainty"]["uncertainty"] for one in row]
    assert len(set(sure)) > 1
    chain = CertaintyChain(model)
    output = chain.invoke("Where?")
    assert (
        output["message"].response_metadata["certainty"]["uncertainties"]
        == output["certainty"]["uncertainties"]
    )


@pytest.mark.parametrize("thoughts_in", ["marks", "field"])
def test_thoughts_are_not_measured(thoughts_in: str) -> None:
    found = []
    for thoughts in ("", "Let me see"):
        with FakeOpenAI(["By the Orun"], thoughts=thoughts, thoughts_in=thoughts_in) as server:
            found.append(CertaintyChain(with_certainty(chat(server))).invoke("Where?")["certainty"])
    assert found[0]["uncertainties"] == found[1]["uncertainties"]
    assert found[1]["tokens"] == 3


def test_a_model_of_completions_has_it_too(toy: FakeOpenAI) -> None:
    llm = OpenAI(model="toy", base_url=toy.base_url, api_key="k", max_retries=0)  # type: ignore[arg-type]
    certainty = CertaintyChain(with_certainty(llm)).invoke("Where?")["certainty"]
    assert certainty["measure"] == "greatest_3_mean_entropy" and certainty["uncertainty"] > 0


# Models.


def test_a_model_stays_what_it_is(toy: FakeOpenAI) -> None:
    model = chat(toy)
    assured = with_certainty(model)
    assert type(assured) is type(model) and assured.bind_tools([look]).kwargs["tools"]
    assert model.logprobs is None and model.callbacks is None
    both = with_certainty(
        model.bind(stop=["x"]).with_retry().with_fallbacks([FakeListChatModel(responses=["a"])])
    )
    assert both.invoke("Where?").response_metadata["certainty"]["uncertainty"] > 0
    assert toy.requests[-1]["stop"] == ["x"]
    other = chat(toy, model="other").configurable_alternatives(ConfigurableField("which"), second=chat(toy))
    chosen = with_certainty(other).with_config(configurable={"which": "second"})
    assert CertaintyChain(chosen).invoke("Where?")["certainty"]["uncertainty"] > 0
    with pytest.raises(CapabilityError, match="use_responses_api=False"):
        with_certainty(chat(toy, use_responses_api=True))


@pytest.mark.parametrize(
    "model", [FakeListChatModel(responses=["x"]), RunnableLambda(len), lcel(script(said("x")))]
)
def test_a_model_without_log_probabilities_is_refused(model: Any) -> None:
    with pytest.raises((CapabilityError, ConfigurationError), match=r"second_opinion=surerag|model itself"):
        with_certainty(model)


def test_where_nobody_asked_for_log_probabilities_it_is_said_how(toy: FakeOpenAI) -> None:
    chain = lcel(chat(toy))
    with pytest.warns(UserWarning, match=r"with_certainty\(llm\)"):
        certainty = CertaintyChain(chain).invoke("Where?")["certainty"]
    assert (certainty["uncertainty"], certainty["reason"]) == (
        None,
        "the model was not asked for log-probabilities",
    )
    with pytest.raises(ConfigurationError, match=r"with_certainty\(llm\)"):
        SelectiveAnswer(chain, POLICY).invoke("Where?")


def test_an_answer_that_came_without_log_probabilities_is_withheld(caplog: pytest.LogCaptureFixture) -> None:
    with FakeOpenAI(["In Velm"], no_logprobs=True) as server:
        chain = lcel(with_certainty(chat(server)))
        assert CertaintyChain(chain).invoke("Where?")["certainty"]["reason"] == NO_LOGPROBS
        with caplog.at_level(logging.WARNING, "surerag"):
            assert SelectiveAnswer(chain, POLICY).invoke("Where?")["abstained"]
    assert "certainty.unknown" in caplog.text


# Where the numbers go.


class Client:
    """LangSmith's client, as far as feedback goes."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def create_feedback(self, run_id: Any, key: str, **fields: Any) -> None:
        self.sent.append((run_id, key, fields["score"], fields["trace_id"]))
        raise ConnectionError("no answer fails for it")

    def create_run(self, *_: Any, **__: Any) -> None: ...

    update_run = create_run


def test_langsmith_gets_it_as_feedback(toy: FakeOpenAI) -> None:
    chain, client, run_id = lcel(with_certainty(chat(toy, temperature=0))), Client(), uuid4()
    handler = CertaintyHandler(POLICY, langsmith_client=client)
    chain.invoke("Where?", {"callbacks": [handler], "run_id": run_id})
    certainty = handler.certainty
    assert certainty is not None and certainty.probability is not None
    numbers = [("uncertainty", certainty.uncertainty), ("probability", certainty.probability)]
    assert client.sent == [(run_id, name, value, run_id) for name, value in numbers]
    client.sent.clear()
    tracer = LangChainTracer(client=client)  # type: ignore[arg-type]  # as far as it is needed
    CertaintyChain(chain).invoke("Where?", {"callbacks": [tracer], "run_id": run_id})
    assert client.sent == [(run_id, "uncertainty", certainty.uncertainty, run_id)]


def test_the_open_span_of_opentelemetry_gets_it(toy: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    attributes: dict[str, Any] = {}
    span = SimpleNamespace(set_attribute=attributes.__setitem__)
    module = SimpleNamespace(get_current_span=lambda: span)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", module)  # type: ignore[arg-type]  # its surface
    output = CertaintyChain(lcel(with_certainty(chat(toy)))).invoke("Where?")
    assert attributes["surerag.certainty.uncertainty"] == output["certainty"]["uncertainty"]
    assert attributes["surerag.certainty.measure"] == "greatest_3_mean_entropy"


# Withholding.


@every_kind
async def test_what_is_not_sure_is_nowhere_in_the_output_nor_streamed(kind: str) -> None:
    secret = "The secret town lies by the Orun"
    with FakeOpenAI([secret]) as server:
        chain = SelectiveAnswer(KINDS[kind](with_certainty(chat(server))), NEVER, abstention="No idea.")
        outputs = [chain.invoke("Where?"), await chain.ainvoke("Where?"), *chain.stream("Where?")]
        outputs += [output async for output in chain.astream("Where?")]
        events = [event async for event in chain.astream_events("Where?", version="v2")]
    assert [(one["answer"], one["abstained"]) for one in outputs] == [("No idea.", True)] * 4
    assert "secret" not in str(outputs) + str(events)
    assert all(one["certainty"]["uncertainty"] > 0 for one in outputs)
    if kind in ("agent", "graph"):
        assert outputs[0]["messages"][-1].content == "No idea."


def test_what_was_said_before_stays_where_an_answer_is_withheld() -> None:
    before = [
        AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1"}]),
        AIMessage("Velm is a town"),
    ]
    for text in ("Velm", ""):
        [_, graph] = graph_of(script(said(text))).steps  # type: ignore[attr-defined]  # it is a sequence
        state = SelectiveAnswer(graph, NEVER).invoke({"messages": [*before, ("user", "Where?")]})
        texts = [message.text for message in state["messages"]]
        assert texts == ["", "Velm is a town", "Where?", "I do not know."]
        assert state["messages"][0].tool_calls


def test_what_is_sure_is_shown_with_its_probability(toy: FakeOpenAI) -> None:
    chain = SelectiveAnswer(lcel(with_certainty(chat(toy, temperature=0))), replace(POLICY, threshold=9.0))
    output = chain.invoke("Where?")
    uncertainty = output["certainty"]["uncertainty"]
    assert not output["abstained"]
    assert (
        output["probability"]
        == output["certainty"]["probability"]
        == pytest.approx(max(0.9 - 0.8 * uncertainty, 0.1))
    )


@pytest.mark.parametrize("kind", ["model", "graph", "agent"])
@pytest.mark.parametrize("runnable", [CertaintyChain, SelectiveAnswer])
async def test_the_message_inside_says_what_the_output_says(
    toy: FakeOpenAI, kind: str, runnable: Any
) -> None:
    toy.answers = ["By the Orun"]
    chain = runnable(KINDS[kind](with_certainty(chat(toy))), replace(POLICY, threshold=9.0))
    for output in (chain.invoke("Where?"), await chain.ainvoke("Where?")):
        message = output["message"] if kind == "model" else output["messages"][-1]
        assert output["certainty"]["probability"] is not None
        assert message.response_metadata["certainty"] == output["certainty"]


def test_a_function_of_the_question_may_stand_in_for_the_answer(toy: FakeOpenAI) -> None:
    chain = lcel(with_certainty(chat(toy)))
    output = SelectiveAnswer(chain, NEVER, abstention=lambda question: f"Ask a human: {question}").invoke(
        "Where?"
    )
    assert output["answer"] == "Ask a human: Where?"


def calibrated(chain: CertaintyChain) -> AbstentionPolicy:
    rows = [CalibrationRow.of(chain.invoke(question)["certainty"], 1.0) for question in QUESTIONS]
    return calibrate_abstention(rows * 5, max_risk=0.2)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"model_name": "another"}, "reader"),
        ({"temperature": 0.7}, "settings"),
        ({"top_logprobs": 2}, "settings"),
        ({}, "prompt"),
    ],
)
def test_a_model_or_prompt_that_changes_after_construction_is_noticed(
    toy: FakeOpenAI, change: dict[str, Any], part: str
) -> None:
    toy.answers = ["By the long river Orun"]
    model, prompt = with_certainty(chat(toy, temperature=0)), PROMPT.model_copy()
    chain = (
        {"context": lambda _: "Velm", "question": RunnablePassthrough()} | prompt | model | StrOutputParser()
    )
    policy = calibrated(CertaintyChain(chain))
    assert policy.scope["measure"] == "greatest_3_mean_entropy"
    selective = SelectiveAnswer(chain, policy)
    assert not selective.invoke(QUESTIONS[0])["abstained"]
    for name, value in change.items():
        setattr(model, name, value)
    if part == "prompt":
        prompt.messages = ChatPromptTemplate.from_template("Guess! {context} {question}").messages
        prompt.__dict__.pop("_serialized", None)
    remedy = {"settings": "restore .* temperature", "prompt": "restore the template"}.get(part, "model")
    with pytest.raises(ConfigurationError, match=f"was calibrated for the {part} .*{remedy}"):
        selective.invoke(QUESTIONS[0])


def test_a_structured_answer_is_shown_or_withheld_as_a_whole() -> None:
    class Place(BaseModel):
        town: str

    with FakeOpenAI(['{"town": "Velm"}']) as server:
        chain = with_certainty(chat(server)).with_structured_output(Place)
        shown = SelectiveAnswer(chain, replace(POLICY, threshold=9.0)).invoke("Where?")
        withheld = SelectiveAnswer(chain, NEVER).invoke("Where?")
        as_json = SelectiveAnswer(with_certainty(chat(server)) | JsonOutputParser(), NEVER).invoke("Where?")
    assert shown["answer"] == Place(town="Velm") and shown["certainty"]["uncertainty"] > 0
    for output in (withheld, as_json):
        assert output["answer"] == "I do not know." and "Velm" not in str(output)


def test_the_certainty_of_another_answer_never_stands_in() -> None:
    inner = script(said("By the Orun", -0.2))
    outer = script(AIMessage("It lies by the Orun, they say."))
    chain = RunnableParallel(inner=inner) | (
        lambda values: [HumanMessage("Where?"), values["inner"], outer.invoke("?")]
    )
    certainty = CertaintyChain(chain).invoke("Where?")["certainty"]
    assert (certainty["uncertainty"], certainty["reason"]) == (
        None,
        "the model was not asked for log-probabilities",
    )


# Asking again.


def test_asking_again_costs_what_it_says() -> None:
    def answers(prompt: str) -> str:
        return "Yes" if "Is your answer right?" in prompt else "In Velm"

    with FakeOpenAI(answers, logprob=-0.25) as server:
        model = chat(server, temperature=0.5)
        chain = lcel(model)
        sure = CertaintyChain(chain, second_opinion=AreYouSure(model)).invoke("Where?")
        assert (sure["certainty"]["measure"], len(server.requests)) == ("self_doubt", 2)
        assert sure["certainty"]["uncertainty"] == pytest.approx(1 - math.exp(-0.25))
        asked = server.requests[-1]
        assert [turn["role"] for turn in asked["messages"]] == ["user", "assistant", "user"]
        assert asked["max_completion_tokens"] == 3
        agreed = CertaintyChain(chain, second_opinion=SampleAgreement(model, n_samples=4)).invoke("Where?")
        assert (agreed["certainty"]["measure"], agreed["certainty"]["uncertainty"]) == ("disagreement", 0.0)
        assert len(server.requests) == 4 and server.requests[-1]["n"] == 4


async def test_a_second_opinion_that_fails_leaves_the_answer() -> None:
    with FakeOpenAI(["In Velm"]) as server:
        model = chat(server)
        chain = CertaintyChain(lcel(model), second_opinion=AreYouSure(FakeReader(lambda prompt: 1 / 0)))  # type: ignore[arg-type, return-value]
        output = await chain.ainvoke("Where?")
    assert (output["answer"], output["certainty"]["reason"]) == (
        "In Velm",
        "the second call of the model failed",
    )


# Parts of surerag.


@pytest.mark.parametrize(("logprob", "retrieves"), [(SURE, False), (UNSURE, True)])
async def test_the_final_answer_of_l_rag_has_its_certainty(logprob: float, retrieves: bool) -> None:
    with FakeOpenAI(["By the long river Orun"], logprob=logprob) as server:
        chain = LazyRetrievalChain(chat(server), search, SUMMARY, threshold=0.5)
        handler = CertaintyHandler()
        output = chain.invoke("Where?", {"callbacks": [handler]})
        assert output["decision"]["retrieve"] is retrieves and len(server.requests) == 1 + retrieves
        certainty = output["certainty"]
        assert certainty["measure"] == "greatest_3_mean_entropy" and certainty["tokens"] == 5
        assert sums(certainty) == pytest.approx(-5 * logprob)
        assert output["message"].response_metadata["certainty"] == certainty
        assert handler.certainty is not None and handler.certainty.to_dict() == certainty
        for pieces in (list(chain.stream("Where?")), [piece async for piece in chain.astream("Where?")]):
            assert pieces[-1]["certainty"] == certainty
        assert CertaintyChain(chain).invoke("Where?")["certainty"] == certainty
        assert "127.0.0.1" not in str(certainty)


# A reader as a chat model.


async def test_a_reader_is_a_chat_model() -> None:
    answer = reply("In Velm by the river", entropy=[0.1, 0.9, 0.2, 0.3, 0.5])
    reader = FakeReader([answer] * 4)
    model = ChatReader(reader)
    whole = await model.ainvoke("Where?")
    assert whole.response_metadata["certainty"]["uncertainty"] == pytest.approx(1.7 / 3)
    chunks = list(model.stream("Where?"))
    assert "".join(str(chunk.content) for chunk in chunks) == whole.content
    assert chunks[-1].response_metadata == whole.response_metadata
    assert [chunk async for chunk in model.astream("Where?")][-1].response_metadata == whole.response_metadata
    output = CertaintyChain(lcel(with_certainty(model))).invoke("Where?")
    assert output["certainty"]["uncertainty"] == pytest.approx(1.7 / 3)
    assert output["certainty"]["scope"]["reader"] == "scripted"


@pytest.mark.skipif(not base_folder().is_dir(), reason="the demo's reader is not in the cache: make reader")
async def test_a_real_small_model_in_a_chain_and_an_agent() -> None:
    model = ChatReader(load_reader(), max_tokens=12)
    context = "Ada Lovelace was born in London in 1815."
    prompt = ChatPromptTemplate.from_template("Context: " + context + "\nQuestion: {question}\nAnswer:")
    chain = CertaintyChain({"question": RunnablePassthrough()} | prompt | model | StrOutputParser())
    told = chain.invoke("Where was Ada Lovelace born?")
    untold = chain.invoke("What did Ada Lovelace eat on her ninth birthday?")
    assert "London" in told["answer"]
    assert told["certainty"]["uncertainty"] < untold["certainty"]["uncertainty"]
    streamed = [piece async for piece in chain.astream("Where was Ada Lovelace born?")]
    assert streamed[-1]["certainty"]["uncertainty"] == pytest.approx(
        told["certainty"]["uncertainty"], rel=0.1
    )
    state = CertaintyChain(create_agent(model)).invoke({"messages": [("user", "Where is London?")]})
    assert state["certainty"]["uncertainty"] > 0 and state["answer"]


def test_no_warning_is_given_where_all_is_well(toy: FakeOpenAI) -> None:
    chain = CertaintyChain(lcel(with_certainty(chat(toy))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chain.invoke("Where?")


def test_a_policy_of_a_run_of_compare_serves_the_same_model_in_a_chain() -> None:
    names = CertaintyChain(ChatReader(FakeReader(["Velm"], entropy=0.2))).invoke("Where?")["certainty"][
        "scope"
    ]
    policy = replace(POLICY, scope={"reader": names["reader"], "measure": POLICY.scope.get("measure", "")})
    assert names["reader"] == FakeReader(["Velm"]).name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert SelectiveAnswer(ChatReader(FakeReader(["Velm"], entropy=0.2)), policy).invoke("Where?")[
            "answer"
        ]


async def test_what_a_policy_does_not_record_is_told_once() -> None:
    reader = FakeReader(lambda prompt: "Velm", entropy=0.2)
    policy = replace(POLICY, scope={"reader": reader.name})
    chain = SelectiveAnswer(lcel(with_certainty(ChatReader(reader), policy)), policy)
    with pytest.warns(CalibrationWarning, match="the policy does not record the") as warned:
        chain.invoke("Where?")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        await chain.ainvoke("Where?")
    told = [(one.filename, str(one.message).split()[6]) for one in warned]
    assert told == [(__file__, "settings"), (__file__, "prompt")]


@pytest.mark.parametrize("question", ["", " ", {"question": ""}, [HumanMessage("")], [("user", " ")]])
async def test_an_empty_question_is_refused(question: Any) -> None:
    chain = SelectiveAnswer(ChatReader(FakeReader(["Velm"], entropy=0.2)), POLICY)
    with pytest.raises(InputError, match="the question is empty"):
        chain.invoke(question)
    with pytest.raises(InputError, match="the question is empty"):
        await chain.ainvoke(question)


def test_of_several_answers_the_first_is_shown_and_its_certainty_told(toy: FakeOpenAI) -> None:
    model = with_certainty(chat(toy, temperature=1.0, n=3, seed=1))
    first, *others = model.generate([[HumanMessage("Where?")]]).generations[0]
    assert first.text not in {one.text for one in others}
    shortened = CertaintyChain(model | StrOutputParser() | (lambda text: {"length": len(text)}))
    assert shortened.invoke("Where?")["certainty"] == first.message.response_metadata["certainty"]


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_without_words_says_so_and_makes_a_row(streaming: bool) -> None:
    with FakeOpenAI([""]) as server:
        model = with_certainty(chat(server))
        message = list(model.stream("Where?"))[-1] if streaming else model.invoke("Where?")
    certainty = message.response_metadata["certainty"]
    assert certainty["reason"] == NO_WORDS
    assert CalibrationRow.of(certainty, 0.0).uncertainty == math.inf


def test_a_policy_that_withholds_every_answer_says_so(toy: FakeOpenAI) -> None:
    policy = calibrate_abstention([CalibrationRow(0.1, score_without=1.0)], max_risk=0.1)
    with pytest.warns(CalibrationWarning, match="no answer will be shown: no guarantee is possible with 1"):
        SelectiveAnswer(lcel(with_certainty(chat(toy))), policy)
