"""LlamaIndex query engines for two methods: L-RAG and DynQR."""

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
from surerag.errors import ConfigurationError, check_kind, kind_of, with_article
from surerag.messages import ANSWER_TOKENS, Generation
from surerag.options import Options
from surerag.readers import Reader
from surerag.signatures import takes_options

NOTHING = "Empty Response"
"""The text that LlamaIndex's synthesizers return if there are no nodes."""
SUMMARY_KEY = "is_summary"
"""Metadata key that marks a source node of an answer as a summary."""
C = TypeVar("C", bound=Component[Any])
M = TypeVar("M", bound=Options)

_ALTERNATIVES = {
    "output_cls": "the answer is a text; convert it to an object with "
    "llm.structured_predict(Answer, PromptTemplate('{text}'), text=str(response))",
    "response_synthesizer": "the engine writes the answer itself; to change its prompts, pass prompts={…}",
    "refine_template": "the engine puts all passages into one prompt and never refines an answer; to change "
    "this prompt, pass prompts={…}",
    "summary_template": "the engine puts all passages into one prompt and never summarizes them; to change "
    "this prompt, pass prompts={…}",
    "simple_template": "to change the prompt for answers without passages, pass prompts={'closed_book': …}",
    "use_async": "call await engine.aquery(question)",
}
"""Arguments of LlamaIndex's engines that surerag's engines reject, each with the hint for the error."""


def _without_llama_arguments(kind: type[Options], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return only a method's own options, without arguments that LlamaIndex's query engines take.

    ``text_qa_template`` becomes the prompt ``answer``.

    Raises:
        ConfigurationError: If an argument asks for something that the engine cannot do.
    """
    ours = dict(options)
    for name in _ALTERNATIVES.keys() & ours.keys():
        raise ConfigurationError(f"an engine of surerag takes no {name}", hint=_ALTERNATIVES[name])
    if kind is DynQROptions and ours.pop("streaming", False):
        raise ConfigurationError(
            "this engine cannot stream: it chooses between two answers when both are complete",
            hint="use a LazyRetrievalQueryEngine, or an UncertaintyRewriteRetriever in your own engine",
        )
    mode = ours.pop("response_mode", ResponseMode.COMPACT)
    if mode not in (ResponseMode.COMPACT, ResponseMode.SIMPLE_SUMMARIZE):
        raise ConfigurationError(
            f"this engine puts all passages into one prompt, but response_mode={mode!r} needs several "
            "prompts or none",
            hint="omit response_mode: as with 'simple_summarize', the prompt has all passages that fit",
        )
    if "text_qa_template" in ours:
        if kind is not DynQROptions:
            raise ConfigurationError(
                "text_qa_template is one prompt, but this engine has two",
                hint="pass prompts={'from_context': …, 'from_context_and_details': …}; the first may be the "
                "text_qa_template, the second has the slot {details} for the retrieved passages",
            )
        ours["prompts"] = {"answer": ours.pop("text_qa_template"), **(ours.get("prompts") or {})}
    return ours


def check_options(kind: type[M], options: Mapping[str, Any], llm: object) -> M:
    """Check a method's options and return them; ``prompts`` may hold LlamaIndex templates."""
    options = _without_llama_arguments(kind, options)
    if isinstance(options.get("prompts"), Mapping):
        options = {**options, "prompts": as_templates(options["prompts"], llm)}
    return kind(**options)


def connect(
    kind: Callable[..., C],
    options: Options,
    retriever: BaseRetriever | BaseIndex[Any],
    llm: LLM | Reader | None,
    postprocessors: Sequence[BaseNodePostprocessor] | None,
    manager: CallbackManager | None,
    **services: Any,
) -> C:
    """Build a method that uses a pipeline's retriever, LLM and postprocessors."""
    reader, settings = reader_of(llm), options.options()
    applied = with_callbacks(manager, "node_postprocessors", postprocessors)
    nodes = NodeRetriever(retriever_of(retriever, settings["top_n"]), applied)
    return kind(reader=reader, retriever=nodes, **services, **settings)


def with_callbacks(manager: CallbackManager | None, name: str, value: Any) -> list[BaseNodePostprocessor]:
    """Check postprocessors, give them the engine's callback manager, and return them as a list.

    Args:
        manager: The engine's callback manager; ``Settings.callback_manager`` if None.
        name: Name of the argument that holds the postprocessors, for errors.
        value: The postprocessors.
    """
    applied = checked_postprocessors(value, name)
    for postprocessor in applied:
        postprocessor.callback_manager = manager_of(manager)
    return applied


def make_rewriter(
    retriever: BaseRetriever | BaseIndex[Any],
    llm: LLM | Reader | None,
    rewriter: LLM | Reader | None,
    options: Mapping[str, Any],
    postprocessors: Sequence[BaseNodePostprocessor] | None = None,
    manager: CallbackManager | None = None,
) -> UncertaintyRewriter:
    """Build DynQR, the method that rewrites queries, with a pipeline's retriever and LLMs."""
    rewriter = None if rewriter is None else reader_of(rewriter)
    settings = check_options(DynQROptions, options, llm)
    return connect(UncertaintyRewriter, settings, retriever, llm, postprocessors, manager, rewriter=rewriter)


class MethodPart(Shareable, Generic[C]):
    """Base class of LlamaIndex components that wrap a surerag method."""

    _core: Any

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core!r})"

    @property
    def core(self) -> C:
        """The wrapped method, with its options and services (LLM, retriever, encoder …)."""
        core: C = self._core
        return core

    def to_dict(self) -> dict[str, Any]:
        """Return the method's options, prompts and model names as plain values, without API keys."""
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
    """Base class of query engines that answer questions with a method of surerag."""

    SIGNAL: ClassVar[str]
    """Key of the uncertainty in ``response.metadata``."""
    COMPONENT: ClassVar[type[Component[Any]]]
    """Class of the wrapped method."""

    def __init__(
        self, core: C, *, streaming: bool = False, callback_manager: CallbackManager | None = None
    ) -> None:
        if not isinstance(core, self.COMPONENT) or not isinstance(core.services.retriever, NodeRetriever):
            is_kind = isinstance(core, self.COMPONENT)
            found = f" with {kind_of(core.services.retriever)}" if is_kind else ""
            raise ConfigurationError(
                f"expected {with_article(self.COMPONENT.__name__)} whose retriever is a NodeRetriever, "
                f"got {kind_of(core)}{found}",
                hint=f"call {type(self).__name__}.from_args(index, llm)",
            )
        check_kind(bool, "True or False", streaming=streaming)
        self._core = core
        self._streaming = streaming
        super().__init__(callback_manager=manager_of(callback_manager))

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Retrieve and postprocess the nodes for a query, and return at most ``top_n`` of them.

        The RAG method of the engine does not run: nothing is decided or answered.
        """
        return self._retriever.nodes(bundle_of(query_bundle))[: self._core.top_n]

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Retrieve as ``retrieve`` does, without blocking the event loop."""
        return (await self._retriever.anodes(bundle_of(query_bundle)))[: self._core.top_n]

    def _services(self, bundle: QueryBundle) -> Services:
        """Return the services for one query, with retrievers that search with the query's ``QueryBundle``."""
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
        return nodes_of(result.passages)

    def _decision_metadata(self, result: Any) -> dict[str, Any]:
        """Return the metadata that are known before the answer begins, as plain values."""
        return dict(result.to_dict())

    def _answer_metadata(self, result: Any) -> dict[str, Any]:
        """Return the finish reason and the cost of the answer as plain values."""
        raise NotImplementedError

    def _final_metadata(self, result: Any) -> dict[str, Any]:
        certainty = replace(result.certainty, scope=scope_of(self._core))
        return {**self._answer_metadata(result), "certainty": certainty.to_dict()}

    @dispatcher.span
    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return run_blocking(self._respond(query_bundle, run, stream))

    @dispatcher.span
    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return await self._respond(query_bundle, arun, astream)

    async def _respond(
        self, bundle: QueryBundle, run: Callable[..., Any], stream: Callable[..., Any]
    ) -> RESPONSE_TYPE:
        response: RESPONSE_TYPE
        payload: dict[str, Any] = {EventPayload.QUERY_STR: bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            program, services = self._core.program(bundle.query_str), self._services(bundle)
            try:
                if self._streaming:
                    response = self._stream_response(
                        await maybe_await(stream(program, services, on_event=dispatch))
                    )
                else:
                    result = await maybe_await(run(program, services, on_event=dispatch))
                    metadata = {**self._decision_metadata(result), **self._final_metadata(result)}
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

    def _stream_response(self, answer: Any) -> RESPONSE_TYPE:
        metadata, nodes = self._decision_metadata(answer.announced), self._nodes(answer.announced)

        def end(result: Any) -> None:
            # If the first answer was empty, the engine has searched and answered again. So the decision and
            # the nodes may have changed.
            metadata.update({**self._decision_metadata(result), **self._final_metadata(result)})
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
    """A streaming response that closes the LLM's stream when the caller stops iterating."""

    async def async_response_gen(self) -> AsyncGenerator[str]:
        """Yield the answer in pieces of text."""
        try:
            async for piece in super().async_response_gen():
                yield piece
        finally:
            await self.response_gen.aclose()


async def _nothing() -> AsyncGenerator[str]:
    yield NOTHING


def read_to_end(response: Any) -> Any:
    """Read a streaming response to its end, and return the complete response.

    Any other response is returned unchanged.
    """
    return response.get_response() if isinstance(response, StreamingResponse) else response


async def aread_to_end(response: Any) -> Any:
    """Read a streaming response, blocking or async, to its end, and return the complete response.

    Any other response is returned unchanged.
    """
    if isinstance(response, AsyncStreamingResponse):
        return await response.get_response()
    return read_to_end(response)


def answer_metadata(answer: Generation, usage: Usage) -> dict[str, Any]:
    """Return an answer's finish reason and cost as plain values; warn if the answer is cut off or empty."""
    if answer.finish != "stop":
        warn("answer.incomplete", finish=answer.finish)
    costs = asdict(usage)
    return {"finish": answer.finish, "calls": costs.pop("requests"), **costs}


class LazyRetrievalQueryEngine(MethodEngine[LazyRAG]):
    """Answers from document summaries, and retrieves only if a gate decides that the LLM is unsure.

    ``response.metadata`` holds the gate's decision (``retrieve``, ``reason``, ``gate``, ``score``,
    ``interval``, ``threshold``), ``passage_ids`` and ``summary_ids``, the finish reason (``finish``:
    ``"stop"``, ``"length"``, ``"content_filter"`` or ``"empty"``), ``certainty``, and the cost in calls,
    tokens and seconds. ``source_nodes`` are the nodes in the prompt: the retrieved nodes, if there was a
    search, and the summaries, which have ``is_summary`` in their metadata. If a retrieved node repeats a
    summary, the prompt has the text once. If the answer is streamed, the metadata hold the decision before
    the first word; ``finish``, ``certainty`` and the cost follow after the last word.

    Build the engine with :meth:`from_args`.

    Args:
        core: The method, whose retriever is a :class:`NodeRetriever`.
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
        """Build an engine from a pipeline's retriever and LLM.

        Args:
            retriever: The pipeline's index, or a retriever that searches the index.
            llm: The LLM, or a reader of surerag; by default ``Settings.llm``.
            summaries: An index of summaries (:func:`llama_index_surerag.summary_index`), your own retriever
                of summaries, or, if there is only one document, its summary as text. A summary from an index
                is put into the prompt only if ``retriever``, with its filters, may return every chunk that
                the summary was made from, and if none of these chunks has changed. By default, each
                document's first sentences are its summary; this default needs an index as ``retriever``.
            embed_model: Embeds the default summaries; if None, the index's own model embeds them.
            node_postprocessors: Applied to retrieved nodes, in order. LlamaIndex's postprocessors that mask
                personal data or drop low scores are also applied to summaries; rerankers are not. If you use
                other postprocessors, such as an access list, pass ``summary_postprocessors``, too.
            summary_postprocessors: Applied to summaries in place of ``node_postprocessors``; usually
                postprocessors that mask personal data or check access rights.
            summaries_are_public: Whether everybody may see every summary. If False, construction fails if
                surerag cannot find out which nodes ``retriever`` or a postprocessor hides.
            streaming: Whether ``query`` returns a stream.
            callback_manager: Receives LlamaIndex's callbacks.
            **options: Options of :class:`surerag.LazyRAGOptions`; prompts may be LlamaIndex templates.

        Raises:
            ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds. Also
                if surerag cannot find out whether ``retriever`` may return the chunks that a summary was made
                from.
            CapabilityError: If the gate needs log-probabilities that the LLM does not return.
            PromptError: If an option names a prompt that does not exist, or a new prompt lacks slots.
        """
        settings = check_options(LazyRAGOptions, options, llm)
        if summary_postprocessors is None:
            applied = with_callbacks(callback_manager, "node_postprocessors", node_postprocessors)
            # surerag's own postprocessors are left out: they would call the LLM for summaries at each query.
            applied = [item for item in applied if not isinstance(item, MethodPostprocessor)]
        else:
            applied = with_callbacks(callback_manager, "summary_postprocessors", summary_postprocessors)
        tier = tier_one(
            retriever,
            summaries,
            settings.n_summaries,
            embed_model,
            postprocessors=applied,
            for_chunks=summary_postprocessors is None,
            are_public=summaries_are_public,
        )
        core = connect(
            LazyRAG, settings, retriever, llm, node_postprocessors, callback_manager, summaries=tier
        )
        return cls(core, streaming=streaming, callback_manager=callback_manager)

    def _nodes(self, result: LazyRAGPlan | LazyRAGResult) -> list[NodeWithScore]:
        return [*nodes_of(result.passages), *map(_as_summary, nodes_of(result.summaries))]

    def _decision_metadata(self, result: LazyRAGPlan | LazyRAGResult) -> dict[str, Any]:
        return {
            **result.decision.to_dict(),
            "passage_ids": [passage.id for passage in result.passages],
            "summary_ids": [summary.id for summary in result.summaries],
        }

    def _answer_metadata(self, result: LazyRAGResult) -> dict[str, Any]:
        return {**answer_metadata(result.generation, result.usage), "abstained": result.abstained}


def _as_summary(node: NodeWithScore) -> NodeWithScore:
    """Mark a node as a summary by a metadata entry that no model sees, and return the node."""
    for hidden in (node.node.excluded_llm_metadata_keys, node.node.excluded_embed_metadata_keys):
        hidden.append(SUMMARY_KEY)
    node.node.metadata[SUMMARY_KEY] = True
    return node


class UncertaintyRewriteQueryEngine(MethodEngine[UncertaintyRewriter]):
    """Answers a query, rewrites it if the answer is uncertain, and returns the less uncertain answer.

    ``response.metadata`` holds the ``query`` of the returned answer and the ``uncertainty`` of the answer. It
    also holds ``original_answer``, ``original_uncertainty``, ``threshold``, ``acted`` (whether the first
    answer was uncertain), ``candidates`` (the number of rewritten queries), ``rewritten`` (whether the
    returned answer comes from a rewritten query), ``abstained``, the ``reason`` for the decision, ``finish``,
    ``certainty``, and the cost in calls, tokens and seconds. ``source_nodes`` are the nodes in the prompt of
    the returned answer.

    There is no streaming, because the engine chooses an answer when all answers are complete. To stream,
    use your own engine with an ``UncertaintyRewriteRetriever``.

    Build the engine with :meth:`from_args`.

    Args:
        core: The method, whose retriever is a :class:`NodeRetriever`.
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
        """Build an engine from a pipeline's retriever and LLM.

        Args:
            retriever: The pipeline's index, or a retriever that searches the index.
            llm: The LLM, or a reader of surerag; by default ``Settings.llm``.
            rewriter: An LLM or reader that rewrites the query; by default ``llm`` rewrites it.
            node_postprocessors: Applied to retrieved nodes, in order.
            callback_manager: Receives LlamaIndex's callbacks.
            **options: Options of :class:`surerag.DynQROptions`; prompts may be LlamaIndex templates.

        Raises:
            ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds.
            CapabilityError: If the metric needs log-probabilities that the LLM does not return.
            PromptError: If an option names a prompt that does not exist, or a new prompt lacks slots.
        """
        core = make_rewriter(retriever, llm, rewriter, options, node_postprocessors, callback_manager)
        return cls(core, callback_manager=callback_manager)

    def _answer_metadata(self, result: DynQRResult) -> dict[str, Any]:
        return answer_metadata(result.chosen.generation, result.usage)
