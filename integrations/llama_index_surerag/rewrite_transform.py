"""DynQR as a LlamaIndex query transform: rewrites what is searched for when the reader is uncertain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_surerag._observing import Watch, observed
from llama_index_surerag.engines import WithPrompts, loaded
from llama_index_surerag.events import dispatch
from llama_index_surerag.prompts import TemplateLike, from_chat_messages
from llama_index_surerag.rewrite_engine import rewriter_over
from llama_index_surerag.services import bundle_of
from surerag import DynQROptions, DynQRResult, Services, UncertaintyRewriter, arun, run
from surerag.effects import Program
from surerag.options import takes
from surerag.readers import Reader
from surerag.services import Entailer


@dataclass
class RewrittenQuery(QueryBundle):
    """A query as a transform leaves it, and how it came about.

    Attributes:
        decision: ``kept``, ``query`` (what to search for), uncertainties, both answers, ``steps`` and costs.
    """

    decision: dict[str, Any] = field(default_factory=dict)


class UncertaintyRewriteTransform(WithPrompts[UncertaintyRewriter], BaseQueryTransform):
    """Rewrites what is searched for, if the reader is uncertain, and keeps the question for the reader.

    The bundle that it returns has the question as ``query_str`` and the query to search for in
    ``custom_embedding_strs``; it is a :class:`RewrittenQuery` and tells its ``decision``. Where the original
    query stands, custom strings of the pipeline's own stay. A conversation may be passed to ``run`` as
    ``metadata={"chat_history": [...]}``.

    To know whether to rewrite, it retrieves and answers itself; the engine behind it does so again. Where
    that is too much, use :class:`UncertaintyRewriteQueryEngine`, which also awaits instead of blocking.

    Args:
        retriever: The pipeline's retriever, or its index.
        llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
        rewriter: An LLM or reader that rewrites; the same one if left out.
        entailer: Says which sampled answers mean the same, for the metric ``"disagreement"`` with
            ``same_meaning="entailment"``: an entailer of surerag, such as ``NLIEntailer``.
        rewrite_text: Whether to put the rewrite into ``query_str`` as well, for retrievers that search by
            words (BM25) and so ignore custom strings; the reader is then shown the rewrite.
        node_postprocessors: Applied to retrieved nodes, in order.
        prompts: Replaced prompts, by the names that ``get_prompts`` gives.
        **options: Listed by ``help(UncertaintyRewriteTransform.__init__)``.

    Raises:
        ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds.
        CapabilityError: If the LLM cannot give what the metric needs.
        PromptError: If a replaced prompt is unknown or lacks slots.
    """

    @takes(DynQROptions)
    def __init__(
        self,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        rewriter: LLM | Reader | None = None,
        entailer: Entailer | None = None,
        rewrite_text: bool = False,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        prompts: Mapping[str, TemplateLike] | None = None,
        **options: Any,
    ) -> None:
        """Build a transform from what a pipeline has; see the class."""
        model = Settings.llm if llm is None else llm
        core = rewriter_over(retriever, model, rewriter, entailer, node_postprocessors or (), options)
        super().__init__(core, prompts, model)
        self._rewrite_text = rewrite_text

    def _run(self, query_bundle: QueryBundle, metadata: dict[str, Any]) -> QueryBundle:
        services = self._services(query_bundle)
        program = self._program(query_bundle, metadata, services)
        return self._rewritten(query_bundle, run(program, services, on_event=dispatch))

    async def arun(
        self, query_bundle_or_str: QueryType, metadata: dict[str, Any] | None = None
    ) -> QueryBundle:
        """Like ``run``, without blocking the event loop."""
        bundle = bundle_of(query_bundle_or_str)
        services = self._services(bundle)
        program = self._program(bundle, metadata or {}, services)
        return self._rewritten(bundle, await arun(program, services, on_event=dispatch))

    def to_dict(self) -> dict[str, Any]:
        """Return options, prompts and the models' identities as plain values; no key is in it."""
        return {**super().to_dict(), "rewrite_text": self._rewrite_text}

    @classmethod
    def from_defaults(
        cls, retriever: BaseRetriever | BaseIndex[Any], llm: LLM | Reader | None = None, **settings: Any
    ) -> Self:
        """Build a transform as LlamaIndex's own parts are built; the same arguments as the constructor's."""
        return cls(retriever, llm, **settings)

    @classmethod
    def from_dict(
        cls, settings: Mapping[str, Any], *, retriever: Any, llm: LLM | Reader | None = None, **living: Any
    ) -> Self:
        """Rebuild from :meth:`to_dict`; what is alive is passed in, as to the constructor."""
        return cls(retriever, llm, **{**loaded(settings), **living})

    def _program(
        self, bundle: QueryBundle, metadata: Mapping[str, Any], services: Services
    ) -> Program[DynQRResult]:
        history = from_chat_messages(list(metadata.get("chat_history") or ()))
        program = self._core.program(bundle.query_str, history)
        return observed(program, services, Watch(Settings.callback_manager))

    def _rewritten(self, bundle: QueryBundle, result: DynQRResult) -> RewrittenQuery:
        decision = dict(result.to_dict())
        if result.kept == "original":
            return RewrittenQuery(
                bundle.query_str, bundle.image_path, bundle.custom_embedding_strs, bundle.embedding, decision
            )
        text = result.query if self._rewrite_text else bundle.query_str
        # An embedding that a retriever left on the bundle is that of another text.
        return RewrittenQuery(text, bundle.image_path, [result.query], None, decision)
