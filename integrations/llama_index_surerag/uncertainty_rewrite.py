"""DynQR in LlamaIndex: a query transform and a query engine that rewrite when the reader is uncertain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import RESPONSE_TYPE, Response
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_surerag._prompting import from_chat_messages
from llama_index_surerag._rewrite_prompts import RewritePromptSet
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.nodes import nodes_of, passages_of
from llama_index_surerag.prompts import template_from_plain
from llama_index_surerag.readers import reader_from_llm
from llama_index_surerag.retrievers import NodeRetriever, retriever_of
from surerag import UncertaintyRewriter, arun, run, run_many
from surerag.methods.uncertainty_types import RewriteResult
from surerag.readers import Reader
from surerag.services import Services
from surerag.types import Message, Passage

_ANSWER_TOKENS = 256
"""Limit on an answer, for an LLM that has none of its own."""


@dataclass
class RewrittenQuery(QueryBundle):
    """A query as a transform leaves it, and how it came about.

    Attributes:
        decision: ``kept``, ``query`` (what to search for), uncertainties, both answers, ``steps`` and costs.
    """

    decision: dict[str, Any] = field(default_factory=dict)


class _Rewriting:
    """What transform and engine share: the method, its prompts in LlamaIndex's form, settings as values."""

    def __init__(self, rewriter: UncertaintyRewriter, prompts: RewritePromptSet) -> None:
        self._prompts = prompts
        self._rewriter = rewriter.with_settings(prompts=prompts.for_core())

    @property
    def rewriter(self) -> UncertaintyRewriter:
        """The method with its settings and services; what a calibration is made with."""
        return self._rewriter

    def _get_prompts(self) -> PromptDictType:
        return dict(self._prompts.templates)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._prompts = self._prompts.updated(prompts)
        self._rewriter = self._rewriter.with_settings(prompts=self._prompts.for_core())

    def _services(self, bundle: QueryBundle) -> Services:
        """Return the services, the pipeline's retriever being asked for this very query."""
        services = self._rewriter.services
        if isinstance(services.retriever, NodeRetriever):
            return replace(services, retriever=services.retriever.bound_to(bundle))
        return services

    def _ask(self, bundle: QueryBundle, history: Sequence[Message] = ()) -> RewriteResult:
        program = self._rewriter.program(bundle.query_str, history=history)
        return run(program, self._services(bundle), on_event=dispatch)

    async def _aask(self, bundle: QueryBundle, history: Sequence[Message] = ()) -> RewriteResult:
        program = self._rewriter.program(bundle.query_str, history=history)
        return await arun(program, self._services(bundle), on_event=dispatch)

    def _plain(self) -> dict[str, Any]:
        return {**self._rewriter.to_dict(), "prompts": self._prompts.to_dict()}


class UncertaintyRewriteTransform(_Rewriting, BaseQueryTransform):
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
        rewrite_text: Whether to put the rewrite into ``query_str`` as well, for retrievers that search by
            words (BM25) and so ignore custom strings; the reader is then shown the rewrite.
        prompts: Replaced prompts, by the names that ``get_prompts`` gives.
        **settings: Of :class:`surerag.UncertaintyRewriter`: ``theta``, ``metric``, ``documents``, ``k`` …

    Raises:
        ConfigurationError: If a setting or argument is of the wrong kind or out of range.
        CapabilityError: If the LLM cannot give what the metric needs.
        PromptError: If a replaced prompt is unknown or lacks slots.
    """

    def __init__(
        self,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        rewriter: LLM | Reader | None = None,
        rewrite_text: bool = False,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        prompts: Mapping[str, BasePromptTemplate | str] | None = None,
        **settings: Any,
    ) -> None:
        core = _core(retriever, llm, rewriter, node_postprocessors, settings)
        super().__init__(core, _prompts(llm, prompts))
        self._rewrite_text = rewrite_text

    def __repr__(self) -> str:
        return f"UncertaintyRewriteTransform({_shown(self._rewriter)})"

    def _run(self, query_bundle: QueryBundle, metadata: dict[str, Any]) -> QueryBundle:
        return self._rewritten(query_bundle, self._ask(query_bundle, _history(metadata.get("chat_history"))))

    async def arun(
        self, query_bundle_or_str: QueryType, metadata: dict[str, Any] | None = None
    ) -> QueryBundle:
        """Like ``run``, without blocking the event loop."""
        bundle, history = _bundle(query_bundle_or_str), _history((metadata or {}).get("chat_history"))
        return self._rewritten(bundle, await self._aask(bundle, history))

    def to_dict(self) -> dict[str, Any]:
        """Return settings, prompts and the models' identities as plain values; no key is in it."""
        return {**self._plain(), "rewrite_text": self._rewrite_text}

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        **living: Any,
    ) -> Self:
        """Rebuild from :meth:`to_dict`; what is alive is passed in, as to the constructor."""
        return cls(retriever, llm, **{**_loaded(settings), **living})

    def _rewritten(self, bundle: QueryBundle, result: RewriteResult) -> RewrittenQuery:
        decision = dict(result.to_dict())
        if result.kept == "original":
            return RewrittenQuery(
                bundle.query_str, bundle.image_path, bundle.custom_embedding_strs, bundle.embedding, decision
            )
        text = result.query if self._rewrite_text else bundle.query_str
        # An embedding that a retriever left on the bundle is that of another text.
        return RewrittenQuery(text, bundle.image_path, [result.query], None, decision)


class UncertaintyRewriteQueryEngine(_Rewriting, BaseQueryEngine):
    """Answers; rewrites the query only when the answer is uncertain; returns the less uncertain answer.

    ``response.metadata`` tells how it came about: ``kept``, ``query``, ``uncertainty``, both answers with
    their uncertainties, ``rewritten_query``, ``steps`` (each decision and why), ``retrievals``, ``calls``,
    ``prompt_tokens``, ``completion_tokens``. ``source_nodes`` are what the reader was shown for the answer
    that was kept.

    There is no streaming: before both answers are complete nobody knows which one is kept.

    Build it with :meth:`from_args`.

    Args:
        rewriter: The method with its settings and services.
        prompts: Its prompts.
        callback_manager: Receives LlamaIndex's callbacks.
    """

    def __init__(
        self,
        rewriter: UncertaintyRewriter,
        prompts: RewritePromptSet,
        *,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        _Rewriting.__init__(self, rewriter, prompts)
        BaseQueryEngine.__init__(self, callback_manager=callback_manager or Settings.callback_manager)

    @classmethod
    def from_args(
        cls,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        rewriter: LLM | Reader | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        prompts: Mapping[str, BasePromptTemplate | str] | None = None,
        callback_manager: CallbackManager | None = None,
        **settings: Any,
    ) -> Self:
        """Build an engine from what a pipeline has.

        Args:
            retriever: The pipeline's retriever, or its index.
            llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
            rewriter: An LLM or reader that rewrites; the same one if left out.
            node_postprocessors: Applied to retrieved nodes, in order.
            prompts: Replaced prompts, by the names that ``get_prompts`` gives.
            callback_manager: Receives LlamaIndex's callbacks.
            **settings: Of :class:`surerag.UncertaintyRewriter`: ``theta``, ``metric``, ``documents``,
                ``candidates`` … ``k`` is by default what the retriever gives, ``max_tokens`` the LLM's own
                limit, or 256 if it has none.

        Raises:
            ConfigurationError: If a setting or argument is of the wrong kind or out of range.
            CapabilityError: If the LLM cannot give what the metric needs.
            PromptError: If a replaced prompt is unknown or lacks slots.
        """
        manager = callback_manager or Settings.callback_manager
        for postprocessor in node_postprocessors:
            postprocessor.callback_manager = manager
        core = _core(retriever, llm, rewriter, node_postprocessors, settings)
        return cls(core, _prompts(llm, prompts), callback_manager=manager)

    def __repr__(self) -> str:
        return f"UncertaintyRewriteQueryEngine({_shown(self._rewriter)})"

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what the answer that is kept is given from; the whole method is run for it."""
        return nodes_of(self._ask(_bundle(query_bundle)).passages)

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``retrieve``."""
        return nodes_of((await self._aask(_bundle(query_bundle))).passages)

    def synthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Answer from given nodes alone, without rewriting."""
        given = self._given(nodes)
        return _response(
            given.run(_bundle(query_bundle).query_str, on_event=dispatch), additional_source_nodes
        )

    async def asynthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Like ``synthesize``."""
        result = await self._given(nodes).arun(_bundle(query_bundle).query_str, on_event=dispatch)
        return _response(result, additional_source_nodes)

    def query_many(self, queries: Iterable[QueryType]) -> list[Response]:
        """Answer many queries; a local model reads them in merged batches.

        Raises:
            Exception: The first failure, after all other queries were answered.
        """
        programs = [self._rewriter.program(_bundle(query).query_str) for query in queries]
        with self.callback_manager.as_trace("query"):
            results = run_many(programs, self._rewriter.services, on_event=dispatch)
        return [_response(result) for result in results]

    @dispatcher.span
    def query_in_conversation(self, query: QueryType, chat_history: Sequence[ChatMessage]) -> Response:
        """Answer a query that leans on a conversation; its rewrite stands alone."""
        with self.callback_manager.as_trace("query"):
            return _response(self._ask(_bundle(query), _history(chat_history)))

    @dispatcher.span
    async def aquery_in_conversation(self, query: QueryType, chat_history: Sequence[ChatMessage]) -> Response:
        """Like ``query_in_conversation``, without blocking the event loop."""
        with self.callback_manager.as_trace("query"):
            return _response(await self._aask(_bundle(query), _history(chat_history)))

    @dispatcher.span
    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            response = _response(self._ask(query_bundle))
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    @dispatcher.span
    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            response = _response(await self._aask(query_bundle))
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    def to_dict(self) -> dict[str, Any]:
        """Return settings, prompts and the models' identities as plain values; no key is in it."""
        return self._plain()

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        **living: Any,
    ) -> Self:
        """Rebuild from :meth:`to_dict`; what is alive is passed in, as to :meth:`from_args`."""
        return cls.from_args(retriever, llm, **{**_loaded(settings), **living})

    def _given(self, nodes: Sequence[NodeWithScore]) -> UncertaintyRewriter:
        """Return the method over given nodes, never to rewrite."""
        return self._rewriter.with_settings(retriever=_Given(passages_of(nodes)), k=None, theta=float("inf"))


class _Given:
    """Finds what it was given, whatever it is asked."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    def retrieve(self, query: str, k: int) -> Sequence[Passage]:  # the protocol's signature
        return self._passages[:k]


def _core(
    retriever: BaseRetriever | BaseIndex[Any],
    llm: LLM | Reader | None,
    rewriter: LLM | Reader | None,
    postprocessors: Sequence[BaseNodePostprocessor],
    settings: Mapping[str, Any],
) -> UncertaintyRewriter:
    """Return the method over a pipeline's retriever and LLMs."""
    model = Settings.llm if llm is None else llm
    chosen: dict[str, Any] = {"k": None, "max_tokens": _own_limit(model), **settings}
    return UncertaintyRewriter(
        _reader(model),
        NodeRetriever(retriever_of(retriever, chosen["k"]), tuple(postprocessors)),
        None if rewriter is None or rewriter is model else _reader(rewriter),
        **chosen,
    )


def _reader(model: LLM | Reader) -> Reader:
    return reader_from_llm(model) if isinstance(model, LLM) else model


def _own_limit(model: LLM | Reader) -> int:
    if not isinstance(model, LLM):
        return UncertaintyRewriter.max_tokens
    limit = model.metadata.num_output
    return limit if limit is not None and limit > 0 else _ANSWER_TOKENS


def _prompts(
    llm: LLM | Reader | None, changes: Mapping[str, BasePromptTemplate | str] | None
) -> RewritePromptSet:
    model = Settings.llm if llm is None else llm
    return RewritePromptSet(model if isinstance(model, LLM) else None).updated(changes or {})


def _loaded(settings: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in settings.items() if name not in ("reader", "rewriter")}
    values["prompts"] = {name: template_from_plain(text) for name, text in values["prompts"].items()}
    values["stop"] = tuple(values["stop"])
    return values


def _shown(rewriter: UncertaintyRewriter) -> str:
    return (
        f"theta={rewriter.theta!r}, metric={rewriter.metric!r}, documents={rewriter.documents!r}, "
        f"reader={rewriter.reader.name!r}"
    )


def _bundle(query: QueryType) -> QueryBundle:
    return QueryBundle(query) if isinstance(query, str) else query


def _history(messages: Sequence[ChatMessage] | None) -> tuple[Message, ...]:
    return from_chat_messages(list(messages or ()))


def _response(result: RewriteResult, more: Sequence[NodeWithScore] | None = None) -> Response:
    return Response(
        result.answer,
        source_nodes=[*nodes_of(result.passages), *(more or ())],
        metadata=dict(result.to_dict()),
    )
