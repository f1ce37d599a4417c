"""surerag's parts as nodes of a LangGraph graph, with a state that is typed.

``pip install "surerag[agents]"``. Each function here makes a node of a part: a runnable from the state to an
update of it, sync and async, to be given to ``StateGraph.add_node``. ::

    graph = StateGraph(RAGState)
    graph.add_node("answer", lazy_retrieval_node(chain))
    graph.add_edge(START, "answer")
    app = graph.compile(checkpointer=InMemorySaver())
    app.invoke({"messages": [("user", "Where was Ada born?")]}, {"configurable": {"thread_id": "1"}})

The question is the state's ``question``, or else the user's last message; what was said before belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import merge_configs

from langchain_surerag._passes import ANSWER, GATE
from langchain_surerag.inputs import asked
from surerag.extras import extra

with extra("agents"):
    from langgraph.graph.message import add_messages


class RAGState(TypedDict, total=False):
    """State of a graph that answers questions; take it as it is, or derive your own from it.

    Attributes:
        messages: The conversation; updates are added to it.
        question: The question, where it is not the last message.
        query: What to search with, where it is not the question.
        context: Documents that were found, or that the reader was shown.
        answer: The answer's text.
        decision: How a gate came to it, as a mapping: ``retrieve``, ``signal``, ``threshold``, ``reason`` …
    """

    messages: Annotated[list[AnyMessage], add_messages]
    question: str
    query: str
    context: list[Document]
    answer: str
    decision: dict[str, Any]


Node = Runnable[Any, dict[str, Any]]


def lazy_retrieval_node(chain: Runnable[Any, dict[str, Any]]) -> Node:
    """Make a node that answers, and retrieves only when unsure.

    It fills ``answer``, ``context`` and ``decision``, and adds the answer to ``messages``; the message tells
    the decision in ``response_metadata["surerag"]["retrieval"]``. In ``stream_mode="messages"`` it is that
    very message which streams.

    Args:
        chain: A :class:`~langchain_surerag.LazyRetrievalChain`, configured or wrapped as you like.
    """

    def answer(state: RAGState, config: RunnableConfig) -> dict[str, Any]:
        seen = _AnswerId()
        return _answered(chain.invoke(_given(state), _with(config, seen)), seen)

    async def aanswer(state: RAGState, config: RunnableConfig) -> dict[str, Any]:
        seen = _AnswerId()
        return _answered(await chain.ainvoke(_given(state), _with(config, seen)), seen)

    return RunnableLambda(answer, aanswer, name="lazy_retrieval")


def rewriting_node(rewriter: Runnable[Any, str]) -> Node:
    """Make a node that writes what to search with: ``query``.

    Args:
        rewriter: An :class:`~langchain_surerag.UncertaintyRewriter`, or any runnable from a conversation to a
            query.
    """

    def rewrite(state: RAGState, config: RunnableConfig) -> dict[str, Any]:
        return {"query": rewriter.invoke(_given(state), config)}

    async def arewrite(state: RAGState, config: RunnableConfig) -> dict[str, Any]:
        return {"query": await rewriter.ainvoke(_given(state), config)}

    return RunnableLambda(rewrite, arewrite, name="rewriting")


def retrieval_node(retriever: RetrieverLike) -> Node:
    """Make a node that retrieves for ``query``, or else for the question: ``context``.

    Args:
        retriever: A retriever, or a runnable from a question to documents.
    """

    def retrieve(state: RAGState, config: RunnableConfig) -> dict[str, Any]:
        return {"context": retriever.invoke(_query(state), config)}

    async def aretrieve(state: RAGState, config: RunnableConfig) -> dict[str, Any]:
        return {"context": await retriever.ainvoke(_query(state), config)}

    return RunnableLambda(retrieve, aretrieve, name="retrieval")


def compression_node(compressor: BaseDocumentCompressor) -> Node:
    """Make a node that compresses ``context`` for the question.

    Args:
        compressor: A :class:`~langchain_surerag.ClusterCompressor`, a
            :class:`~langchain_surerag.DenseRefiner`, or any document compressor of LangChain.
    """

    def compress(state: RAGState, config: RunnableConfig) -> dict[str, Any]:
        found, question = state.get("context", []), asked(_given(state)).question
        return {"context": list(compressor.compress_documents(found, question, config.get("callbacks")))}

    async def acompress(state: RAGState, config: RunnableConfig) -> dict[str, Any]:
        found, question = state.get("context", []), asked(_given(state)).question
        kept = await compressor.acompress_documents(found, question, config.get("callbacks"))
        return {"context": list(kept)}

    return RunnableLambda(compress, acompress, name="compression")


def _given(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a chain is asked: the question with what was said before it, or the messages."""
    if question := state.get("question"):
        return {"question": question, "chat_history": state.get("messages", [])}
    return {"messages": state.get("messages", [])}


def _query(state: Mapping[str, Any]) -> str:
    return state.get("query") or asked(_given(state)).question


def _answered(output: Mapping[str, Any], seen: _AnswerId) -> dict[str, Any]:
    said = AIMessage(
        output["answer"],
        id=seen.id or f"surerag-{uuid4()}",
        response_metadata={"surerag": {"retrieval": dict(output["decision"])}},
    )
    found = {name: output[name] for name in ("answer", "context", "decision")}
    return {**found, "messages": [said]}


class _AnswerId(BaseCallbackHandler):
    """Learns under which id the answer was streamed, so that the message bears the same."""

    def __init__(self) -> None:
        self.id: str | None = None

    def on_llm_end(self, response: LLMResult, *, tags: list[str] | None = None, **_: Any) -> None:
        """Note the id of a message that counts, or may come to count."""
        generations = response.generations[0] if response.generations else []
        if generations and isinstance(generations[0], ChatGeneration) and {ANSWER, GATE} & {*(tags or ())}:
            self.id = generations[0].message.id


def _with(config: RunnableConfig, seen: _AnswerId) -> RunnableConfig:
    return merge_configs(config, {"callbacks": [seen]})
