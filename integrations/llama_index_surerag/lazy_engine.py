"""L-RAG as a LlamaIndex query engine: answer from a summary, retrieve only when the reader is unsure."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, Self

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.nodes import nodes_of, passages_of
from llama_index_surerag.prompts import PromptSet, template_from_plain
from llama_index_surerag.readers import reader_from_llm
from llama_index_surerag.retrievers import NodeRetriever, retriever_of
from llama_index_surerag.summaries import Summarize, SummarySource, summaries_of
from surerag import LazyRAG, arun, run, run_many
from surerag.calibration import Calibration
from surerag.drivers import AnswerStream, AsyncAnswerStream, astream, stream
from surerag.errors import ConfigurationError
from surerag.methods.gating import Aggregate, Estimate, GateDecision
from surerag.methods.lazy_rag import LazyRAGPlan, LazyRAGResult
from surerag.readers import Reader
from surerag.services import Retriever, Services
from surerag.types import Passage

EngineMode = Literal["lazy", "none", "standard", "strong"]
_ALL = sys.maxsize
"""A number of passages that leaves the choice to the retriever."""
_ANSWER_TOKENS = 256
"""Limit on an answer, for an LLM that has none of its own."""


class LazyRetrievalQueryEngine(BaseQueryEngine):
    """Answers from document summaries, and retrieves only when its reader's entropy says that it must.

    ``response.metadata`` holds the decision (``retrieve``, ``reason``, ``entropy``, ``lower``, ``upper``,
    ``exact``, ``threshold``), ``mode``, ``prompt_tokens``, ``completion_tokens``, ``retrievals`` and
    ``timings``; ``summary_ids`` and ``passage_ids`` tell the two kinds of ``source_nodes`` apart.
    ``source_nodes`` are what the reader was shown for its answer: the summaries where the gate stayed
    shut; the retrieved nodes and then the summaries where it opened. When streaming, the decision is
    there before the first word; tokens and timings come when the stream has been read.

    Build it with :meth:`from_args`.

    Args:
        rag: The method with its settings and services.
        prompts: Its prompts.
        streaming: Whether ``query`` returns a stream.
        callback_manager: Receives LlamaIndex's callbacks.
    """

    def __init__(
        self,
        rag: LazyRAG,
        prompts: PromptSet,
        *,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(callback_manager=callback_manager or Settings.callback_manager)
        self._prompts = prompts
        self._rag = rag.with_settings(prompts=prompts.for_core())
        self._streaming = streaming

    @classmethod
    def from_args(
        cls,
        retriever: BaseRetriever | BaseIndex[Any] | None,
        llm: LLM | Reader | None = None,
        *,
        summaries: SummarySource | None = None,
        summarize: Summarize | LLM = None,
        embed_model: BaseEmbedding | None = None,
        mode: EngineMode = "lazy",
        tau: float | Calibration = 1.0,
        gate_tokens: int = 8,
        aggregate: Aggregate = "mean",
        estimate: Estimate = "middle",
        k: int | None = None,
        m: int = 3,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        streaming: bool = False,
        prompts: Mapping[str, BasePromptTemplate | str] | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> Self:
        """Build an engine from what a pipeline has.

        Args:
            retriever: The pipeline's retriever, or its index; None in mode ``"none"``.
            llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
            summaries: Tier 1, see :func:`llama_index_surerag.summaries.summaries_of`. Left out, the
                documents in the docstore of the index (or of its retriever) are summarized.
            summarize: How to summarize documents: a number of lead sentences, a metadata key, a
                function, or an LLM (or reader) that writes each summary once; default two sentences.
            embed_model: Searches summaries; the index's own or ``Settings.embed_model`` if left out.
            mode: ``"lazy"``, or ``"none"``, ``"standard"``, ``"strong"`` (paper, Table I). Gold passages
                go to :meth:`synthesize`.
            tau: Retrieve iff the entropy exceeds this, in nats; or a calibration.
            gate_tokens: Tokens of the first pass that the gate looks at.
            aggregate: ``"mean"``, ``"max"`` or ``"first"``.
            estimate: Point of an entropy interval to decide on.
            k: Nodes to show at most. Left out: as many as the retriever and postprocessors give.
            m: Summaries to join for the first pass.
            max_tokens: Length of an answer, at most; by default the LLM's own limit, or 256 if it has
                none; for a reader of surerag, 64.
            stop: Texts that end an answer.
            node_postprocessors: Applied to retrieved nodes, in order.
            streaming: Whether ``query`` returns a stream.
            prompts: Replaced prompts, by the names that ``get_prompts`` gives.
            callback_manager: Receives LlamaIndex's callbacks.

        Raises:
            ConfigurationError: If a setting or argument is of the wrong kind or out of range.
            MissingServiceError: If the mode needs a retriever or summaries that are not there.
            CapabilityError: If the gate needs entropies that the LLM cannot give.
            InputError: If there is nothing to summarize.
            PromptError: If a replaced prompt is unknown or lacks slots.
        """
        if mode not in ("lazy", "none", "standard", "strong"):
            raise ConfigurationError(
                f"unknown mode {mode!r}",
                hint="choose lazy, none, standard or strong; gold passages go to synthesize",
            )
        model = Settings.llm if llm is None else llm
        reader = reader_from_llm(model) if isinstance(model, LLM) else model
        manager = callback_manager or Settings.callback_manager
        postprocessors = list(node_postprocessors or ())
        for postprocessor in postprocessors:
            postprocessor.callback_manager = manager
        tier_two = None
        if retriever is not None:
            tier_two = NodeRetriever(retriever_of(retriever, k), postprocessors)
        rag = LazyRAG(
            reader=reader,
            retriever=tier_two,
            summaries=_tier_one(retriever, mode, summaries, summarize, embed_model, m),
            mode=mode,
            tau=tau,
            gate_tokens=gate_tokens,
            aggregate=aggregate,
            estimate=estimate,
            k=_ALL if k is None else k,
            m=m,
            max_tokens=max_tokens or _own_limit(model),
            stop=tuple(stop),
        )
        chosen = PromptSet(model if isinstance(model, LLM) else None).updated(prompts or {})
        return cls(rag, chosen, streaming=streaming, callback_manager=manager)

    def __repr__(self) -> str:
        rag = self._rag
        return (
            f"LazyRetrievalQueryEngine(mode={rag.mode!r}, tau={rag.tau!r}, reader={rag.reader.name!r}, "
            f"streaming={self._streaming!r})"
        )

    @property
    def rag(self) -> LazyRAG:
        """The method with its settings and services; what a calibration is made for."""
        return self._rag

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what tier 2 finds, postprocessed, whatever the gate would say."""
        return self._tier_two().nodes(_bundle(query_bundle))

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``retrieve``."""
        return await self._tier_two().anodes(_bundle(query_bundle))

    def synthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Answer from given nodes alone, without a gate."""
        bundle = _bundle(query_bundle)
        rag, gold = self._rag.with_settings(mode="oracle"), passages_of(nodes)
        if self._streaming:
            program = rag.program(bundle.query_str, oracle=gold)
            return _streaming(stream(program, rag.services, on_event=dispatch), rag, additional_source_nodes)
        return _response(rag.run(bundle.query_str, oracle=gold, on_event=dispatch), additional_source_nodes)

    async def asynthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Like ``synthesize``."""
        bundle = _bundle(query_bundle)
        rag, gold = self._rag.with_settings(mode="oracle"), passages_of(nodes)
        if self._streaming:
            program = rag.program(bundle.query_str, oracle=gold)
            answer = await astream(program, rag.services, on_event=dispatch)
            return _astreaming(answer, rag, additional_source_nodes)
        result = await rag.arun(bundle.query_str, oracle=gold, on_event=dispatch)
        return _response(result, additional_source_nodes)

    def query_many(self, queries: Iterable[QueryType]) -> list[Response]:
        """Answer many queries; a local model reads them in merged batches.

        Raises:
            Exception: The first failure, after all other queries were answered.
        """
        questions = [_bundle(query).query_str for query in queries]
        programs = [self._rag.program(question) for question in questions]
        with self.callback_manager.as_trace("query"):
            results = run_many(programs, self._rag.services, on_event=dispatch)
        return [_response(result) for result in results]

    @dispatcher.span
    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        rag, question = self._rag, query_bundle.query_str
        services = self._services(query_bundle)
        with self.callback_manager.event(
            CBEventType.QUERY, payload={EventPayload.QUERY_STR: question}
        ) as event:
            response: RESPONSE_TYPE
            if self._streaming:
                response = _streaming(stream(rag.program(question), services, on_event=dispatch), rag)
            else:
                response = _response(run(rag.program(question), services, on_event=dispatch))
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    @dispatcher.span
    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        rag, question = self._rag, query_bundle.query_str
        services = self._services(query_bundle)
        with self.callback_manager.event(
            CBEventType.QUERY, payload={EventPayload.QUERY_STR: question}
        ) as event:
            response: RESPONSE_TYPE
            if self._streaming:
                answer = await astream(rag.program(question), services, on_event=dispatch)
                response = _astreaming(answer, rag)
            else:
                response = _response(await arun(rag.program(question), services, on_event=dispatch))
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    def _services(self, bundle: QueryBundle) -> Services:
        """Return the services, asking retrievers of the pipeline for this very query."""
        services = self._rag.services
        return replace(
            services,
            retriever=_bound(services.retriever, bundle),
            summaries=_bound(services.summaries, bundle),
        )

    def _tier_two(self) -> NodeRetriever:
        retriever = self._rag.retriever
        if not isinstance(retriever, NodeRetriever):
            raise ConfigurationError("this engine has no retriever", hint="pass one to from_args")
        return retriever

    def _get_prompts(self) -> PromptDictType:
        return dict(self._prompts.templates)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._prompts = self._prompts.updated(prompts)
        self._rag = self._rag.with_settings(prompts=self._prompts.for_core())

    def to_dict(self) -> dict[str, Any]:
        """Return settings, prompts and the reader's identity as plain values; no key is in it."""
        settings = self._rag.to_dict()
        if settings["k"] == _ALL:
            settings["k"] = None
        return {**settings, "prompts": self._prompts.to_dict(), "streaming": self._streaming}

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        retriever: BaseRetriever | BaseIndex[Any] | None,
        llm: LLM | Reader | None = None,
        **living: Any,
    ) -> Self:
        """Rebuild from :meth:`to_dict`; what is alive is passed in, as to :meth:`from_args`."""
        values = {name: value for name, value in settings.items() if name != "reader"}
        values["prompts"] = {name: template_from_plain(text) for name, text in values["prompts"].items()}
        return cls.from_args(retriever, llm, **values, **living)


def _bundle(query: QueryType) -> QueryBundle:
    return QueryBundle(query) if isinstance(query, str) else query


def _bound(service: Retriever | None, bundle: QueryBundle) -> Retriever | None:
    return service.bound_to(bundle) if isinstance(service, NodeRetriever) else service


def _own_limit(model: LLM | Reader) -> int:
    if not isinstance(model, LLM):
        return LazyRAG.max_tokens
    limit = model.metadata.num_output
    return limit if limit is not None and limit > 0 else _ANSWER_TOKENS


def _tier_one(
    source: BaseRetriever | BaseIndex[Any] | None,
    mode: EngineMode,
    summaries: SummarySource | None,
    summarize: Summarize | LLM,
    embed_model: BaseEmbedding | None,
    m: int,
) -> Any:
    """Return the summary tier, if the mode needs one."""
    if mode not in ("lazy", "strong"):
        return None
    own: Any = getattr(source, "_embed_model", None)
    how = reader_from_llm(summarize) if isinstance(summarize, LLM) else summarize
    if summaries is None:
        kept: Any = getattr(source, "docstore", None) or getattr(source, "_docstore", None)
        nodes = list(kept.docs.values()) if kept is not None else []
        if not nodes:
            raise ConfigurationError(
                f'mode "{mode}" needs document summaries, and there are no documents to make them of',
                hint="pass summaries=documents, or the summary of a single document as text",
            )
        summaries = nodes
    return summaries_of(summaries, summarize=how, embed_model=embed_model or own, m=m)


def _metadata(
    decision: GateDecision, mode: str, passages: Sequence[Passage], summaries: Sequence[Passage]
) -> dict[str, Any]:
    return {
        **asdict(decision),
        "mode": mode,
        "passage_ids": [passage.id for passage in passages],
        "summary_ids": [summary.id for summary in summaries],
    }


def _costs(result: LazyRAGResult) -> dict[str, Any]:
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "retrievals": result.retrievals,
        "timings": dict(result.timings),
    }


def _response(result: LazyRAGResult, more: Sequence[NodeWithScore] | None = None) -> Response:
    metadata = _metadata(result.decision, result.mode, result.passages, result.summaries) | _costs(result)
    nodes = nodes_of([*result.passages, *result.summaries])
    return Response(result.answer, source_nodes=[*nodes, *(more or ())], metadata=metadata)


def _announced(
    answer: AnswerStream[LazyRAGResult] | AsyncAnswerStream[LazyRAGResult],
    rag: LazyRAG,
    more: Sequence[NodeWithScore] | None,
) -> tuple[list[NodeWithScore], dict[str, Any]]:
    plan: LazyRAGPlan = answer.announced
    nodes = nodes_of([*plan.passages, *plan.summaries])
    return [*nodes, *(more or ())], _metadata(plan.decision, rag.mode, plan.passages, plan.summaries)


def _streaming(
    answer: AnswerStream[LazyRAGResult], rag: LazyRAG, more: Sequence[NodeWithScore] | None = None
) -> StreamingResponse:
    nodes, metadata = _announced(answer, rag, more)

    def pieces() -> Generator[str]:
        with answer:
            yield from answer
        metadata.update(_costs(answer.result))

    return StreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)


def _astreaming(
    answer: AsyncAnswerStream[LazyRAGResult], rag: LazyRAG, more: Sequence[NodeWithScore] | None = None
) -> AsyncStreamingResponse:
    nodes, metadata = _announced(answer, rag, more)

    async def pieces() -> AsyncGenerator[str]:
        async with answer:
            async for piece in answer:
                yield piece
        metadata.update(_costs(answer.result))

    return AsyncStreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)
