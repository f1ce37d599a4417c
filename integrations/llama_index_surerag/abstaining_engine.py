"""A query engine that answers where a calibrated policy lets it, and abstains elsewhere."""

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

from llama_index_surerag.engines import MethodEngine
from surerag.calibration import AbstentionPolicy
from surerag.errors import InputError
from surerag.text import ABSTENTION, check_abstention

SIGNALS = ("score", "uncertainty")
"""Metadata keys of the uncertainty: L-RAG's gate, DynQR's answer."""


class AbstainingQueryEngine(BaseQueryEngine):
    """Returns another engine's answer only where its uncertainty is within the policy.

    ``response.metadata`` gains ``abstained``, and ``probability`` (that the answer is right). A withheld
    answer is nowhere in the response; source nodes stay. A streamed answer is read to its end first, since an
    empty or cut answer is withheld too.

    Args:
        engine: A ``LazyRetrievalQueryEngine`` or an ``UncertaintyRewriteQueryEngine``.
        policy: From :func:`surerag.calibrate_abstention`, on that engine's ``core``.
        abstention: Text in the place of an answer.
        callback_manager: Receives LlamaIndex's callbacks.

    Raises:
        ConfigurationError: If the abstention is empty, or the policy was calibrated for another reader, gate,
            retriever or prompt.
    """

    def __init__(
        self,
        engine: BaseQueryEngine,
        policy: AbstentionPolicy,
        *,
        abstention: str = ABSTENTION,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        check_abstention(abstention)
        if isinstance(engine, MethodEngine):
            policy.check(engine.core)
        super().__init__(callback_manager=callback_manager or Settings.callback_manager)
        self._engine = engine
        self._policy = policy
        self._abstention = abstention

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"engine": self._engine}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        response = self._engine.query(query_bundle)
        if isinstance(response, StreamingResponse):
            response = response.get_response()
        return self._selected(response)

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        response = await self._engine.aquery(query_bundle)
        if isinstance(response, AsyncStreamingResponse):
            response = await response.get_response()
        return self._selected(response)

    def _selected(self, response: Any) -> Response:
        metadata: dict[str, Any] = dict(response.metadata or {})
        name = next((key for key in SIGNALS if key in metadata), None)
        if name is None:
            raise InputError(
                f"the response has no {' or '.join(SIGNALS)} in its metadata",
                hint="wrap a LazyRetrievalQueryEngine or an UncertaintyRewriteQueryEngine",
            )
        whole = metadata.get("finish", "stop") == "stop"
        uncertainty = metadata[name] if whole else None
        selected = self._policy.select(str(response), uncertainty, self._abstention)
        metadata |= {"abstained": selected.abstained, "probability": selected.probability}
        metadata.pop("original_answer", None)
        return Response(selected.text, source_nodes=response.source_nodes, metadata=metadata)
