"""Lazy retrieval as a tool for agents."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.callbacks import Callbacks
from langchain_core.runnables import Runnable
from langchain_core.tools import StructuredTool

from langchain_surerag._inputs import QuestionInput


def create_lazy_retrieval_tool(
    chain: Runnable[Any, dict[str, Any]],
    name: str,
    description: str,
    *,
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact",
) -> StructuredTool:
    """Make a tool of a chain, as ``create_retriever_tool`` does of a retriever.

    Args:
        chain: A :class:`~langchain_surerag.LazyRetrievalChain`, configured or wrapped as you like.
        name: Name that the agent's model sees.
        description: What the model is told the tool is for.
        response_format: ``"content"`` returns the answer; ``"content_and_artifact"`` adds the chain's
            whole output (documents, decision) as the tool message's artifact.

    Returns:
        A tool with one argument, ``question``.
    """

    def shown(output: dict[str, Any]) -> str | tuple[str, dict[str, Any]]:
        answer: str = output["answer"]
        return (answer, dict(output)) if response_format == "content_and_artifact" else answer

    def ask(question: str, callbacks: Callbacks = None) -> str | tuple[str, dict[str, Any]]:
        return shown(chain.invoke({"question": question}, config={"callbacks": callbacks}))

    async def aask(question: str, callbacks: Callbacks = None) -> str | tuple[str, dict[str, Any]]:
        return shown(await chain.ainvoke({"question": question}, config={"callbacks": callbacks}))

    return StructuredTool(
        name=name,
        description=description,
        func=ask,
        coroutine=aask,
        args_schema=QuestionInput,
        response_format=response_format,
    )
