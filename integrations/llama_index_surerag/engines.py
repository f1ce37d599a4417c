"""Query engines of methods: L-RAG and DynQR."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from llama_index.core import Response
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.response.schema import RESPONSE_TYPE, AsyncStreamingResponse, StreamingResponse
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_surerag.events import dispatch, dispatcher, warn
from llama_index_surerag.llm import reader_of
from llama_index_surerag.nodes import nodes_of
from llama_index_surerag.pickles import Shareable
from llama_index_surerag.postprocessors import MethodPostprocessor
from llama_index_surerag.prompts import as_templates, changed_prompts, llama_templates
from llama_index_surerag.services import (
    EmptyIndexError,
    NodeRetriever,
    QueryRetriever,
    Window,
    bundle_of,
    checked_postprocessors,
    manager_of,
    retriever_of,
)
from llama_index_surerag.tier_one import SummarySource, tier_one
from surerag import (
    DynQROptions,
    DynQRResult,
    LazyRAG,
    LazyRAGOptions,
    LazyRAGPlan,
    LazyRAGResult,
    Services,
    UncertaintyRewriter,
    Usage,
)
from surerag.calibration import scope_of
from surerag.certainty import NO_WORDS, Certainty
from surerag.component import Component
from surerag.drivers import AsyncAnswerStream, arun, astream, maybe_await, run, run_blocking, stream
from surerag.errors import ConfigurationError, check_kind
from surerag.messages import ANSWER_TOKENS, Generation
from surerag.options import Options
from surerag.readers import Reader
from surerag.signatures import takes_options

NOTHING = "Empty Response"
"""What LlamaIndex's synthesizers answer from no node at all."""
SUMMARY_KEY = "is_summary"
"""Key in the metadata of a summary among an answer's sources."""
C = TypeVar("C", bound=Component[Any])
M = TypeVar("M", bound=Options)


_ELSEWHERE = {
    "output_cls": "the answer is a text; make an object of it with "
    "llm.structured_predict(Answer, PromptTemplate('{text}'), text=str(response))",
    "response_synthesizer": "the engine writes the answer itself; pass prompts={…}",
    "refine_template": "the engine answers in one prompt, and refines nothing; pass prompts={…}",
    "summary_template": "the engine answers in one prompt; pass prompts={…}",
    "simple_template": "for answers without passages pass prompts={'closed_book': …}",
    "use_async": "call await engine.aquery(question)",
}
"""What LlamaIndex's engines take, and what takes its place here."""


def _without_conventions(kind: type[Options], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options without those by which LlamaIndex's engines say what these engines do anyway.

    Raises:
        ConfigurationError: If one asks for something else; its text names what takes its place.
    """
    ours = dict(options)
    for name in _ELSEWHERE.keys() & ours.keys():
        raise ConfigurationError(f"{name} is not for an engine of surerag", hint=_ELSEWHERE[name])
    if kind is DynQROptions and ours.pop("streaming", False):
        raise ConfigurationError(
            "this engine cannot stream: which answer it returns is decided when both are there",
            hint="take a LazyRetrievalQueryEngine, or an UncertaintyRewriteRetriever in an engine of yours",
        )
    mode = ours.pop("response_mode", ResponseMode.COMPACT)
    if mode not in (ResponseMode.COMPACT, ResponseMode.SIMPLE_SUMMARIZE):
        raise ConfigurationError(
            f"response_mode={mode!r} asks an LLM several times, or never",
            hint="leave it out: the engine answers in one prompt with what fits, as 'simple_summarize' does",
        )
    if "text_qa_template" in ours:
        if kind is not DynQROptions:
            raise ConfigurationError(
                "text_qa_template is one prompt, and there are two",
                hint="pass prompts={'from_context': …, 'from_context_and_details': …}; the first may be the "
                "text_qa_template, the second has the slot {details} for what was retrieved",
            )
        ours["prompts"] = {"answer": ours.pop("text_qa_template"), **(ours.get("prompts") or {})}
    return ours


def checked(kind: type[M], options: Mapping[str, Any], llm: object) -> M:
    """Return a method's options, checked; prompts may be LlamaIndex templates."""
    options = _without_conventions(kind, options)
    if isinstance(options.get("prompts"), Mapping):
        options = {**options, "prompts": as_templates(options["prompts"], llm)}
    return kind(**options)


def connected(
    kind: Callable[..., C],
    options: Options,
    retriever: BaseRetriever | BaseIndex[Any],
    llm: LLM | Reader | None,
    postprocessors: Sequence[BaseNodePostprocessor] | None,
    manager: CallbackManager | None,
    **services: Any,
) -> C:
    """Return a method over what a pipeline has; postprocessors report to the engine's callback manager."""
    reader, settings = reader_of(llm), options.options()
    applied = reporting_to(manager, "node_postprocessors", postprocessors)
    nodes = NodeRetriever(retriever_of(retriever, settings["top_n"]), applied)
    return kind(reader=reader, retriever=nodes, **services, **settings)


def reporting_to(manager: CallbackManager | None, name: str, value: Any) -> list[BaseNodePostprocessor]:
    """Return an argument's postprocessors, checked; they report to the engine's callback manager."""
    applied = checked_postprocessors(value, name)
    for postprocessor in applied:
        postprocessor.callback_manager = manager_of(manager)
    return applied


def rewriter_over(
    retriever: BaseRetriever | BaseIndex[Any],
    llm: LLM | Reader | None,
    rewriter: LLM | Reader | None,
    options: Mapping[str, Any],
    postprocessors: Sequence[BaseNodePostprocessor] | None = None,
    manager: CallbackManager | None = None,
) -> UncertaintyRewriter:
    """Return DynQR over what a pipeline has."""
    other = None if rewriter is None else reader_of(rewriter)
    settings = checked(DynQROptions, options, llm)
    return connected(UncertaintyRewriter, settings, retriever, llm, postprocessors, manager, rewriter=other)


class MethodPart(Shareable, Generic[C]):
    """What parts over a method share: its settings, its prompts as templates, the services of one query."""

    _core: Any

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core!r})"

    @property
    def core(self) -> C:
        """The method with its options and services; what a calibration is made with."""
        core: C = self._core
        return core

    def to_dict(self) -> dict[str, Any]:
        """Return options, prompts and the models' names as plain values; no key is in it."""
        return self.core.to_dict()

    @property
    def _retriever(self) -> NodeRetriever:
        retriever: NodeRetriever = self._core.services.retriever
        return retriever

    def _get_prompts(self) -> PromptDictType:
        return llama_templates(self._core.prompts)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        if changed := changed_prompts(prompts, self._get_prompts()):
            self._core = self._core.with_options(prompts={**self._core.prompts, **as_templates(changed)})


class MethodEngine(MethodPart[C], BaseQueryEngine, Generic[C]):
    """A query engine around a method that answers questions."""

    SIGNAL: ClassVar[str]
    """Metadata key of the uncertainty."""
    COMPONENT: ClassVar[type[Component[Any]]]

    def __init__(
        self, core: C, *, streaming: bool = False, callback_manager: CallbackManager | None = None
    ) -> None:
        if not isinstance(core, self.COMPONENT) or not isinstance(core.services.retriever, NodeRetriever):
            name = type(self).__name__
            raise ConfigurationError(
                f"a {name} is built around a {self.COMPONENT.__name__} over a NodeRetriever, "
                f"got {type(core).__name__}",
                hint=f"call {name}.from_args(index, llm)",
            )
        check_kind(bool, "True or False", streaming=streaming)
        self._core = core
        self._streaming = streaming
        super().__init__(callback_manager=manager_of(callback_manager))

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what the retriever finds, postprocessed, whatever the method would decide."""
        return self._retriever.nodes(bundle_of(query_bundle))[: self._core.top_n]

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``retrieve``."""
        return (await self._retriever.anodes(bundle_of(query_bundle)))[: self._core.top_n]

    def _services(self, bundle: QueryBundle) -> Services:
        """Return the services of one query: its retrievers search with its bundle."""
        services: Services = self._core.services
        reader: Any = services.reader
        tokens, window = getattr(reader, "window", None), None
        if tokens is not None:
            window = Window(
                reader, tokens, bundle.query_str, max_tokens=self._core.answer_tokens or ANSWER_TOKENS
            )
        passages, summaries = self._retriever.bound_to(bundle), services.summaries
        if isinstance(summaries, NodeRetriever):
            summaries = QueryRetriever(summaries.bound_to(bundle), window, passages, required=True)
        retriever = QueryRetriever(passages, window, required=summaries is None)
        return replace(services, retriever=retriever, summaries=summaries)

    def _nodes(self, result: Any) -> list[NodeWithScore]:
        """Return what the reader was shown."""
        return nodes_of(result.passages)

    def _decided(self, result: Any) -> dict[str, Any]:
        """Return what is decided before the answer begins, as plain values."""
        return dict(result.to_dict())

    def _ended(self, result: Any) -> dict[str, Any]:
        """Return how the answer ended and what it cost, as plain values."""
        raise NotImplementedError

    def _end(self, result: Any) -> dict[str, Any]:
        """Return how the answer ended, and how sure the reader was of it, as plain values."""
        certainty = replace(result.certainty, scope=scope_of(self._core))
        return {**self._ended(result), "certainty": certainty.to_dict()}

    @dispatcher.span
    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return run_blocking(self._answered(query_bundle, run, stream))

    @dispatcher.span
    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return await self._answered(query_bundle, arun, astream)

    async def _answered(
        self, bundle: QueryBundle, run: Callable[..., Any], stream: Callable[..., Any]
    ) -> RESPONSE_TYPE:
        """Answer by a pair of drivers, blocking or awaited."""
        response: RESPONSE_TYPE
        payload: dict[str, Any] = {EventPayload.QUERY_STR: bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            program, services = self._core.program(bundle.query_str), self._services(bundle)
            try:
                if self._streaming:
                    response = self._streamed(await maybe_await(stream(program, services, on_event=dispatch)))
                else:
                    result = await maybe_await(run(program, services, on_event=dispatch))
                    metadata = {**self._decided(result), **self._end(result)}
                    response = Response(result.answer, source_nodes=self._nodes(result), metadata=metadata)
            except EmptyIndexError:
                nothing = Certainty(reason=NO_WORDS).to_dict()
                metadata = {self.SIGNAL: None, "certainty": nothing, "finish": "empty"}
                response = Response(NOTHING, metadata=metadata)
                if self._streaming and stream is astream:
                    response = AsyncStreamingResponse(_nothing(), metadata=response.metadata)
                elif self._streaming:
                    response = StreamingResponse(iter([NOTHING]), metadata=response.metadata)  # type: ignore[arg-type]  # or any iterator
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    def _streamed(self, answer: Any) -> RESPONSE_TYPE:
        metadata, nodes = self._decided(answer.announced), self._nodes(answer.announced)

        def end(result: Any) -> None:
            # An answer that was to stand may have turned out to be empty, so that another one came.
            metadata.update({**self._decided(result), **self._end(result)})
            nodes[:] = self._nodes(result)

        def pieces() -> Generator[str]:
            with answer:
                yield from answer
            end(answer.result)

        async def apieces() -> AsyncGenerator[str]:
            async with answer:
                async for piece in answer:
                    yield piece
            end(answer.result)

        if isinstance(answer, AsyncAnswerStream):
            return ClosingResponse(apieces(), source_nodes=nodes, metadata=metadata)
        return StreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)


class ClosingResponse(AsyncStreamingResponse):
    """A response whose stream, and the server's behind it, is closed with the generator that reads it."""

    async def async_response_gen(self) -> AsyncGenerator[str]:
        """Yield the answer in pieces."""
        try:
            async for piece in super().async_response_gen():
                yield piece
        finally:
            await self.response_gen.aclose()


async def _nothing() -> AsyncGenerator[str]:
    yield NOTHING


def read_to_end(response: Any) -> Any:
    """Return a response that is read to its end, where it is a stream."""
    return response.get_response() if isinstance(response, StreamingResponse) else response


async def aread_to_end(response: Any) -> Any:
    """Like ``read_to_end``, of an async stream too."""
    if isinstance(response, AsyncStreamingResponse):
        return await response.get_response()
    return read_to_end(response)


def answer_metadata(answer: Generation, usage: Usage) -> dict[str, Any]:
    """Return how an answer ended and what it cost, as plain values; one that is cut or empty is warned of."""
    if answer.finish != "stop":
        warn("answer.incomplete", finish=answer.finish)
    costs = asdict(usage)
    return {"finish": answer.finish, "calls": costs.pop("requests"), **costs}


class LazyRetrievalQueryEngine(MethodEngine[LazyRAG]):
    """Answers from document summaries, and retrieves only when a gate says that its reader is unsure.

    ``response.metadata`` holds the decision (``retrieve``, ``reason``, ``gate``, ``score``, ``interval``,
    ``threshold``), ``passage_ids`` and ``summary_ids``, how the answer ended (``finish``: ``"stop"``,
    ``"length"``, ``"content_filter"`` or ``"empty"``), and what it cost. ``source_nodes`` are what the reader
    was shown for its answer: the retrieved nodes, if the gate opened, and the summaries, whose metadata have
    ``is_summary``. A summary that a retrieved node repeats stands in the prompt once. When streaming, the
    decision is there before the first word; ``finish`` and costs come when the stream has been read.

    Build it with :meth:`from_args`.

    Args:
        core: The method over a :class:`NodeRetriever`.
        streaming: Whether ``query`` returns a stream.
        callback_manager: Receives LlamaIndex's callbacks.
    """

    SIGNAL = "score"
    COMPONENT = LazyRAG

    def __init__(
        self, core: LazyRAG, *, streaming: bool = False, callback_manager: CallbackManager | None = None
    ) -> None:
        super().__init__(core, streaming=streaming, callback_manager=callback_manager)

    @classmethod
    @takes_options(LazyRAGOptions)
    def from_args(
        cls,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        summaries: SummarySource | None = None,
        embed_model: BaseEmbedding | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        summary_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        summaries_are_public: bool = False,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> Self:
        """Build an engine from what a pipeline has.

        Args:
            retriever: The pipeline's index, or a retriever of it.
            llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
            summaries: Tier 1: an index of summaries (:func:`llama_index_surerag.summary_index`), a retriever
                of summaries of your own, or the summary of the only document as text. A summary of an index
                is shown where the ``retriever`` may return every chunk that it was made of, as they are now;
                the filters of the ``retriever`` apply. Left out, the first sentences of the documents in the
                index are taken; where ``retriever`` is a retriever it cannot be left out.
            embed_model: Embeds summaries where they are left out; the index's own if None.
            node_postprocessors: Applied to retrieved nodes, in order. LlamaIndex's masks of personal data and
                cut-offs by score apply to summaries, too; rerankers do not. Where others are among them, such
                as an access list, say what summaries pass through.
            summary_postprocessors: What summaries pass through, instead: masks and access lists, as a rule.
            summaries_are_public: Whether everybody may see every summary. A ``retriever`` or postprocessor
                whose every setting is not understood is refused without it.
            streaming: Whether ``query`` returns a stream.
            callback_manager: Receives LlamaIndex's callbacks.
            **options: Those of :class:`surerag.LazyRAGOptions`; prompts may be LlamaIndex templates.

        Raises:
            ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds, or
                it is not known whether the retriever would show what a summary was made of.
            CapabilityError: If the gate needs log-probabilities that the LLM does not return.
            PromptError: If a replaced prompt is unknown or lacks slots.
        """
        settings = checked(LazyRAGOptions, options, llm)
        if summary_postprocessors is None:
            applied = reporting_to(callback_manager, "node_postprocessors", node_postprocessors)
            # Those of methods would ask the LLM before its first answer.
            applied = [one for one in applied if not isinstance(one, MethodPostprocessor)]
        else:
            applied = reporting_to(callback_manager, "summary_postprocessors", summary_postprocessors)
        tier = tier_one(
            retriever,
            summaries,
            settings.n_summaries,
            embed_model,
            postprocessors=applied,
            unexamined=summary_postprocessors is None,
            are_public=summaries_are_public,
        )
        core = connected(
            LazyRAG, settings, retriever, llm, node_postprocessors, callback_manager, summaries=tier
        )
        return cls(core, streaming=streaming, callback_manager=callback_manager)

    def _nodes(self, result: LazyRAGPlan | LazyRAGResult) -> list[NodeWithScore]:
        return [*nodes_of(result.passages), *map(_as_summary, nodes_of(result.summaries))]

    def _decided(self, result: LazyRAGPlan | LazyRAGResult) -> dict[str, Any]:
        return {
            **result.decision.to_dict(),
            "passage_ids": [passage.id for passage in result.passages],
            "summary_ids": [summary.id for summary in result.summaries],
        }

    def _ended(self, result: LazyRAGResult) -> dict[str, Any]:
        return {**answer_metadata(result.generation, result.usage), "abstained": result.abstained}


def _as_summary(node: NodeWithScore) -> NodeWithScore:
    """Return a node that says that it is a summary, to people and not to models."""
    for hidden in (node.node.excluded_llm_metadata_keys, node.node.excluded_embed_metadata_keys):
        hidden.append(SUMMARY_KEY)
    node.node.metadata[SUMMARY_KEY] = True
    return node


class UncertaintyRewriteQueryEngine(MethodEngine[UncertaintyRewriter]):
    """Answers; rewrites the query only when the answer is uncertain; returns the less uncertain answer.

    ``response.metadata`` holds how it came about: ``query``, ``uncertainty``, ``original_answer`` and
    ``original_uncertainty``, ``acted``, ``rewritten``, ``candidates``, ``reason``, ``finish``, and what it
    cost. ``source_nodes`` are what the reader was shown for the answer that is returned.

    There is no streaming: before both answers are complete it is not decided which one is returned. Before
    an engine of your own, take an ``UncertaintyRewriteRetriever``.

    Build it with :meth:`from_args`.

    Args:
        core: The method over a :class:`NodeRetriever`.
        callback_manager: Receives LlamaIndex's callbacks.
    """

    SIGNAL = "uncertainty"
    COMPONENT = UncertaintyRewriter

    def __init__(self, core: UncertaintyRewriter, *, callback_manager: CallbackManager | None = None) -> None:
        super().__init__(core, callback_manager=callback_manager)

    @classmethod
    @takes_options(DynQROptions)
    def from_args(
        cls,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        rewriter: LLM | Reader | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> Self:
        """Build an engine from what a pipeline has.

        Args:
            retriever: The pipeline's index, or a retriever of it.
            llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
            rewriter: An LLM or reader that rewrites in the place of ``llm``.
            node_postprocessors: Applied to retrieved nodes, in order.
            callback_manager: Receives LlamaIndex's callbacks.
            **options: Those of :class:`surerag.DynQROptions`; prompts may be LlamaIndex templates.

        Raises:
            ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds.
            CapabilityError: If the metric needs log-probabilities that the LLM does not return.
            PromptError: If a replaced prompt is unknown or lacks slots.
        """
        core = rewriter_over(retriever, llm, rewriter, options, node_postprocessors, callback_manager)
        return cls(core, callback_manager=callback_manager)

    def _ended(self, result: DynQRResult) -> dict[str, Any]:
        return answer_metadata(result.chosen.generation, result.usage)
