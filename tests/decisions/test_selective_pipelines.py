"""Selective answers through the frameworks' own classes, with policies made of the same pipeline's rows."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from llama_index.core.base.response.schema import Response, StreamingResponse
from llama_index.core.query_engine import CustomQueryEngine

from langchain_surerag import LazyRetrievalChain, SelectiveAnswer
from llama_index_surerag import LazyRetrievalQueryEngine, SelectiveQueryEngine
from surerag import AnswerPolicy, FakeReader, LazyRAG, Passage, calibrate_answers
from surerag.errors import InputError
from surerag.readers.fake import reply


class Corpus:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage("Nothing to the point.", id="p")]


def say(prompt: str) -> Any:
    return reply("Velm", entropy=0.1) if "easy" in prompt else reply("Orun", entropy=2.0)


def reader() -> FakeReader:
    return FakeReader(say, name="one")


@pytest.fixture(scope="module")
def policy() -> AnswerPolicy:
    """Easy questions are answered rightly, hard ones wrongly, whatever is retrieved."""
    rag = LazyRAG(reader(), Corpus(), "Summary.")
    rows = rag.rows([f"{kind} {at}" for at in range(100) for kind in ("easy", "hard")], [["Velm"]] * 200)
    return calibrate_answers(rag.signal, rows, max_risk=0.1, identity=rag.identity)


def engine(policy: AnswerPolicy, **settings: Any) -> SelectiveQueryEngine:
    inner = LazyRetrievalQueryEngine(LazyRAG(reader(), Corpus(), "Summary."), **settings)
    return SelectiveQueryEngine(inner, policy, refusal="Nobody knows.")


async def test_a_llama_index_engine_answers_or_says_that_it_does_not_know(policy: AnswerPolicy) -> None:
    asked = engine(policy)
    easy, hard = asked.query("easy?"), await asked.aquery("hard?")
    assert isinstance(easy, Response)
    assert (str(easy), easy.metadata["abstained"]) == ("Velm", False)
    assert easy.metadata["probability"] > 0.9
    assert (str(hard), hard.metadata["abstained"], hard.metadata["withheld"]) == (
        "Nobody knows.",
        True,
        "Orun",
    )
    assert hard.metadata["probability"] < 0.1
    assert hard.metadata["retrieve"] is True
    assert [found.node.node_id for found in hard.source_nodes] != []


def test_a_stream_is_passed_on_or_refused_unread(policy: AnswerPolicy) -> None:
    asked = engine(policy, streaming=True)
    easy, hard = asked.query("easy?"), asked.query("hard?")
    assert isinstance(easy, StreamingResponse)
    assert "".join(easy.response_gen) == "Velm"
    assert (str(hard), hard.metadata["abstained"]) == ("Nobody knows.", True)


async def test_a_langchain_chain_answers_or_says_that_it_does_not_know(policy: AnswerPolicy) -> None:
    chain = SelectiveAnswer(
        LazyRetrievalChain(reader(), Corpus(), "Summary."), policy, refusal="Nobody knows."
    )
    easy, hard = chain.batch(["easy?", "hard?"])
    assert (easy["answer"], easy["abstained"]) == ("Velm", False)
    assert (hard["answer"], hard["abstained"], hard["withheld"]) == ("Nobody knows.", True, "Orun")
    assert hard["decision"]["retrieve"] is True
    assert chain.invoke("hard?") == hard == await chain.ainvoke("hard?")
    assert await chain.abatch(["easy?", "hard?"]) == [easy, hard]
    assert list(chain.stream("hard?")) == [hard]
    assert (chain | RunnableLambda(lambda found: found["answer"])).invoke("easy?") == "Velm"


class Plain(CustomQueryEngine):
    def custom_query(self, query_str: str) -> str:
        return "An answer"


def test_a_pipeline_without_a_signal_is_told_so(policy: AnswerPolicy) -> None:
    with pytest.raises(InputError, match="no signal or uncertainty in its metadata"):
        SelectiveQueryEngine(Plain(), policy).query("easy?")
    with pytest.raises(InputError, match=r"no decision\.signal"):
        SelectiveAnswer(RunnableLambda(lambda _: {"answer": "An answer"}), policy).invoke("easy?")
