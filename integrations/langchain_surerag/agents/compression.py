"""What an agent's tools return, compressed before its model reads it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ToolCallRequest
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.messages import HumanMessage, ToolMessage

from surerag.errors import ConfigurationError


class ContextCompressionMiddleware(AgentMiddleware[Any, Any, Any]):
    """Passes what tools return through a compressor, before the agent's model reads it.

    Of a tool that returns documents as its artifact (``create_retriever_tool(…,
    response_format="content_and_artifact")``) they are compressed, and the message shows what is left; the
    artifact holds the compressed documents. Of any other tool the text itself is compressed. Failed calls and
    commands pass as they are.

    Args:
        compressor: A :class:`~langchain_surerag.ClusterCompressor`, a
            :class:`~langchain_surerag.DenseRefiner`, or any document compressor of LangChain.
        tools: Names of the tools whose results are compressed; None for all.
        query: What to compress for, from a tool call's request; by default the user's last message.
        separator: What stands between documents in the message.

    Raises:
        ConfigurationError: If the compressor is none.
    """

    def __init__(
        self,
        compressor: BaseDocumentCompressor,
        *,
        tools: Iterable[str] | None = None,
        query: Callable[[ToolCallRequest], str] | None = None,
        separator: str = "\n\n",
    ) -> None:
        super().__init__()
        if not isinstance(compressor, BaseDocumentCompressor):
            raise ConfigurationError(
                f"expected a document compressor, got {type(compressor).__name__}",
                hint="pass a ClusterCompressor or a DenseRefiner",
            )
        if isinstance(tools, str):
            raise ConfigurationError("tools is one text", hint=f"pass tools=[{tools!r}]")
        self.compressor = compressor
        self._names = None if tools is None else frozenset(tools)
        self._query = query or _last_question
        self._separator = separator

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Call the tool, and compress what it returns."""
        result = handler(request)
        found = self._found(request, result)
        if not found:
            return result
        return self._shown(result, self.compressor.compress_documents(found, self._query(request)))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """Like ``wrap_tool_call``, without blocking the event loop."""
        result = await handler(request)
        found = self._found(request, result)
        if not found:
            return result
        return self._shown(result, await self.compressor.acompress_documents(found, self._query(request)))

    def _found(self, request: ToolCallRequest, result: Any) -> list[Document]:
        if not isinstance(result, ToolMessage) or result.status == "error":
            return []
        if self._names is not None and request.tool_call["name"] not in self._names:
            return []
        artifact = result.artifact
        if _are_documents(artifact):
            return list(artifact)
        text = str(result.text)
        return [Document(text)] if text.strip() else []

    def _shown(self, result: ToolMessage, kept: Sequence[Document]) -> ToolMessage:
        content = self._separator.join(document.page_content for document in kept)
        changes: dict[str, Any] = {"content": content}
        if _are_documents(result.artifact):
            changes["artifact"] = list(kept)
        return result.model_copy(update=changes)


def _last_question(request: ToolCallRequest) -> str:
    messages = request.state["messages"] if isinstance(request.state, Mapping) else request.state
    asked = next((one for one in reversed(messages) if isinstance(one, HumanMessage)), None)
    return "" if asked is None else str(asked.text)


def _are_documents(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all(isinstance(one, Document) for one in found)
