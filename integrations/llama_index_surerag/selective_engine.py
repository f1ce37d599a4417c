"""A query engine that answers where its risk was certified, and says otherwise that it does not know."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import QueryBundle
from llama_index.core.settings import Settings

from surerag import AnswerPolicy, SelectiveAnswer
from surerag.errors import InputError

SIGNALS = ("signal", "uncertainty")
"""Where the engines of this package write their signal: L-RAG's gate, DynQR's answer."""


class SelectiveQueryEngine(BaseQueryEngine):
    """Asks another engine, and shows its answer only where the policy answers.

    ``response.metadata`` gains ``abstained``, ``probability`` (that the answer is right) and, where it
    abstains, ``withheld`` (the answer that is not shown). Source nodes stay. A stream whose signal is known
    before its first word is passed on, or refused unread.

    Args:
        engine: A ``LazyRetrievalQueryEngine``, an ``UncertaintyRewriteQueryEngine``, or any engine that
            writes its signal into its responses' metadata.
        policy: From :func:`surerag.calibrate_answers`, on that signal.
        refusal: Shown in place of an answer.
        signal: The key of the signal; None for those that the engines of this package write.
        callback_manager: Receives LlamaIndex's callbacks.

    Raises:
        ConfigurationError: If the refusal is empty.
    """

    def __init__(
        self,
        engine: BaseQueryEngine,
        policy: AnswerPolicy,
        *,
        refusal: str = "I do not know.",
        signal: str | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(callback_manager=callback_manager or Settings.callback_manager)
        self._engine = engine
        self._selective = SelectiveAnswer(policy, refusal)
        self._names = SIGNALS if signal is None else (signal,)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"engine": self._engine}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return self._selected(self._engine.query(query_bundle))

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return self._selected(await self._engine.aquery(query_bundle))

    def _selected(self, response: RESPONSE_TYPE) -> RESPONSE_TYPE:
        metadata: dict[str, Any] = dict(response.metadata or {})
        name = next((one for one in self._names if one in metadata), None)
        if name is None:
            raise InputError(
                f"the response has no {' or '.join(self._names)} in its metadata",
                hint="name the key with signal=…, or wrap an engine of llama_index_surerag",
            )
        streaming = isinstance(response, StreamingResponse | AsyncStreamingResponse)
        said = "(a stream)" if streaming else str(getattr(response, "response", None) or "")
        found = self._selective.select(said, metadata[name])
        metadata |= {"abstained": found.abstained, "probability": found.probability}
        if not found.abstained:
            response.metadata = metadata
            return response
        if not streaming:
            metadata["withheld"] = said
        return Response(found.text, source_nodes=response.source_nodes, metadata=metadata)
