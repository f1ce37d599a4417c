"""Chains over a model that tells nothing of how sure it is: gated by the disagreement of its answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel, SimpleChatModel
from langchain_core.load import dumps, loads
from langchain_core.runnables import RunnableLambda
from pydantic import PrivateAttr

from langchain_surerag import (
    LazyRetrievalChain,
    RunnableRetriever,
    UncertaintyRewriter,
    UncertaintyRewriteRetriever,
    reader_from_model,
)
from surerag import CombinedGate, DisagreementGate, EntropyGate, LazyRAG, any_of
from surerag.entailment import ExactEntailer
from surerag.errors import CapabilityError, MissingServiceError
from surerag.readers.fake import FakeReader
from tests.methods.disagreeing import Guessing, text_reader

KNOWN, UNKNOWN = "Where was Ada born?", "Where does the Orun end?"
SUMMARY = "A summary."
SEARCH = RunnableLambda(lambda question: [Document("The Orun ends in the lake of Mir.", id="orun")])
TELLING = {"Ada born": "In Velm", "lake of Mir": "In Mir"}


class TextChat(SimpleChatModel):
    """A chat model as Claude's is: text goes in, text comes out."""

    _say: Guessing = PrivateAttr(default_factory=lambda: Guessing(**TELLING))

    @property
    def _llm_type(self) -> str:
        return "text"

    def _call(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> str:
        return self._say(str(messages[-1].content))


def chain(**settings: Any) -> LazyRetrievalChain:
    return LazyRetrievalChain(TextChat(), SEARCH, SUMMARY, **{"gate": "disagreement", **settings})


async def test_core_and_chain_agree_sync_async_batched_and_streamed() -> None:
    questions = [KNOWN, UNKNOWN]
    reader = text_reader(**TELLING)
    core = LazyRAG(reader, RunnableRetriever(SEARCH), SUMMARY, gate="disagreement")
    expected = [(one.answer, one.decision) for one in core.run_many(questions)]
    assert [(answer, decision.retrieve) for answer, decision in expected] == [
        ("In Velm", False),
        ("In Mir", True),
    ]
    ways = {
        "invoke": [chain().invoke(question) for question in questions],
        "ainvoke": [await chain().ainvoke(question) for question in questions],
        "batch": await asyncio.to_thread(chain().batch, questions),
        "abatch": await chain().abatch(questions),
        "stream": [added(list(chain().stream(question))) for question in questions],
        "astream": [added([chunk async for chunk in chain().astream(question)]) for question in questions],
    }
    for way, outputs in ways.items():
        for (answer, decision), output in zip(expected, outputs, strict=True):
            told = output["decision"]
            assert output["answer"] == answer, way
            for name in ("retrieve", "reason", "gate", "unit", "calls", "threshold"):
                assert told[name] == getattr(decision, name), (way, name)
            assert told["signal"] == pytest.approx(decision.signal), way


def added(chunks: list[Any]) -> Any:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def test_a_list_of_replies_is_enough_of_a_model() -> None:
    """One request at a time, so that replies come in their order."""
    split = ["Velm", "Orun", "Mir", "Tarn", "Ket", "in the lake of Mir"]
    for replies, answer in ((["Velm"] * 4 + ["Orun"], "Velm"), (split, "in the lake of Mir")):
        reader = reader_from_model(FakeListChatModel(responses=replies), max_concurrency=1)
        found = LazyRetrievalChain(reader, SEARCH, SUMMARY, gate="disagreement").invoke(UNKNOWN)
        assert (found["answer"], found["decision"]["gate"]) == (answer, "disagreement")
        assert found["decision"]["retrieve"] is (replies is split)


async def test_events_name_the_gate_before_the_first_word() -> None:
    events = [event async for event in chain().astream_events(KNOWN, version="v2")]
    names = [event["name"] for event in events if event["event"] == "on_custom_event"]
    assert names == ["lazy_rag.gate", "lazy_rag.answering"]
    [gate] = [event["data"] for event in events if event["name"] == "lazy_rag.gate"]
    assert (gate["gate"], gate["calls"], gate["retrieve"]) == ("disagreement", 5, False)


def test_a_user_of_such_a_model_is_told_of_the_gate_and_the_metric() -> None:
    with pytest.raises(CapabilityError, match='gate="disagreement"'):
        chain(gate="entropy")
    with pytest.raises(CapabilityError, match='metric="disagreement"'):
        UncertaintyRewriter(TextChat(), SEARCH)


def test_gates_with_settings_entailers_and_functions_go_through_a_chain() -> None:
    assert chain(gate=DisagreementGate(n_samples=3)).invoke(KNOWN)["decision"]["calls"] == 3
    judged = chain(same_meaning="entailment", entailer=ExactEntailer())
    assert judged.invoke(UNKNOWN)["decision"]["calls"] == 5 + 5 * 4
    hedging = chain(gate=lambda answer: float("Velm" not in answer.text), threshold=0.5)
    decisions = [hedging.invoke(question)["decision"] for question in (KNOWN, UNKNOWN)]
    assert [decision["retrieve"] for decision in decisions] == [False, True]
    changed = chain(n_samples=3)
    changed.n_samples = 4
    assert changed.invoke(KNOWN)["decision"]["calls"] == 4


@pytest.mark.parametrize(
    "gate", ["disagreement", DisagreementGate(n_samples=3), any_of(EntropyGate(tokens=3), "disagreement")]
)
def test_gates_are_written_down_and_read_again(gate: Any) -> None:
    reader = FakeReader(["Velm"])
    written = dumps(LazyRetrievalChain(reader, SEARCH, SUMMARY, gate=gate))
    again = loads(written, valid_namespaces=["langchain_surerag"], allowed_objects=[LazyRetrievalChain])
    assert again.gate == gate
    assert "gate" not in again.detached
    assert isinstance(again.gate, str | DisagreementGate | CombinedGate)


def test_a_function_as_gate_is_left_out_and_given_back() -> None:
    def length(answer: Any) -> float:
        return float(len(answer.text))

    written = dumps(chain(gate=length, threshold=1.0))
    again = loads(written, valid_namespaces=["langchain_surerag"], allowed_objects=[LazyRetrievalChain])
    assert "gate" in again.detached
    with pytest.raises(MissingServiceError, match="without its"):
        again.invoke(KNOWN)
    back = again.attach(llm=TextChat(), retriever=SEARCH, gate=length)
    assert back.invoke(KNOWN)["decision"]["gate"] == "length"


async def test_a_query_is_rewritten_where_samples_disagree() -> None:
    model = TextChat()
    model._say = Guessing(**{"Rewrite the query": "Where was Ada born, then?", **TELLING})
    settings: dict[str, Any] = {"metric": "disagreement", "n_samples": 5}
    search = RunnableLambda(lambda query: [Document(f"Found for {query}")])
    rewriter = UncertaintyRewriter(model, search, **settings)
    for result in (rewriter.rewrite("Where?"), await rewriter.arewrite("Where?")):
        assert (result.answer, result.query) == ("In Velm", "Where was Ada born, then?")
        assert [step.metric for step in result.steps] == ["disagreement", "", "disagreement"]
        assert (result.costs.samples, result.costs.calls) == (10, 13)
    retriever = UncertaintyRewriteRetriever(model, search, **settings)
    [found] = retriever.invoke(KNOWN)
    assert found.metadata["uncertainty_rewrite"]["steps"][0]["metric"] == "disagreement"
    judged = UncertaintyRewriter(
        model, search, entailer=ExactEntailer(), same_meaning="entailment", **settings
    ).rewrite(KNOWN)
    assert judged.costs.judgements == 2
