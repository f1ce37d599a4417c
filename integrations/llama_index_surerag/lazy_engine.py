"""L-RAG as a LlamaIndex query engine: answer from a summary, retrieve only when the reader is unsure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.response.schema import RESPONSE_TYPE, Response
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_surerag._engine_parts import ALL, EngineMode, bound_to, bundle_of, own_limit, tier_one
from llama_index_surerag._engine_responses import astreaming_response, response_of, streaming_response
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.nodes import passages_of
from llama_index_surerag.prompts import PromptSet, template_from_plain
from llama_index_surerag.readers import reader_from_llm
from llama_index_surerag.retrievers import NodeRetriever, retriever_of
from llama_index_surerag.summaries import Summarize, SummarySource
from surerag import LazyRAG, arun, run, run_many
from surerag.calibration import Calibration
from surerag.drivers import astream, stream
from surerag.errors import ConfigurationError
from surerag.methods.gating import Aggregate, Estimate
from surerag.readers import Reader
from surerag.services import Services


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
            summaries=tier_one(retriever, mode, summaries, summarize, embed_model, m),
            mode=mode,
            tau=tau,
            gate_tokens=gate_tokens,
            aggregate=aggregate,
            estimate=estimate,
            k=ALL if k is None else k,
            m=m,
            max_tokens=max_tokens or own_limit(model),
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
        return self._tier_two().nodes(bundle_of(query_bundle))

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``retrieve``."""
        return await self._tier_two().anodes(bundle_of(query_bundle))

    def synthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Answer from given nodes alone, without a gate."""
        bundle = bundle_of(query_bundle)
        rag, gold = self._rag.with_settings(mode="oracle"), passages_of(nodes)
        if self._streaming:
            program = rag.program(bundle.query_str, oracle=gold)
            return streaming_response(
                stream(program, rag.services, on_event=dispatch), rag, additional_source_nodes
            )
        return response_of(rag.run(bundle.query_str, oracle=gold, on_event=dispatch), additional_source_nodes)

    async def asynthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Like ``synthesize``."""
        bundle = bundle_of(query_bundle)
        rag, gold = self._rag.with_settings(mode="oracle"), passages_of(nodes)
        if self._streaming:
            program = rag.program(bundle.query_str, oracle=gold)
            answer = await astream(program, rag.services, on_event=dispatch)
            return astreaming_response(answer, rag, additional_source_nodes)
        result = await rag.arun(bundle.query_str, oracle=gold, on_event=dispatch)
        return response_of(result, additional_source_nodes)

    def query_many(self, queries: Iterable[QueryType]) -> list[Response]:
        """Answer many queries; a local model reads them in merged batches.

        Raises:
            Exception: The first failure, after all other queries were answered.
        """
        questions = [bundle_of(query).query_str for query in queries]
        programs = [self._rag.program(question) for question in questions]
        with self.callback_manager.as_trace("query"):
            results = run_many(programs, self._rag.services, on_event=dispatch)
        return [response_of(result) for result in results]

    @dispatcher.span
    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        rag, question = self._rag, query_bundle.query_str
        services = self._services(query_bundle)
        with self.callback_manager.event(
            CBEventType.QUERY, payload={EventPayload.QUERY_STR: question}
        ) as event:
            response: RESPONSE_TYPE
            if self._streaming:
                response = streaming_response(stream(rag.program(question), services, on_event=dispatch), rag)
            else:
                response = response_of(run(rag.program(question), services, on_event=dispatch))
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
                response = astreaming_response(answer, rag)
            else:
                response = response_of(await arun(rag.program(question), services, on_event=dispatch))
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    def _services(self, bundle: QueryBundle) -> Services:
        """Return the services, asking retrievers of the pipeline for this very query."""
        services = self._rag.services
        return replace(
            services,
            retriever=bound_to(services.retriever, bundle),
            summaries=bound_to(services.summaries, bundle),
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
        if settings["k"] == ALL:
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
