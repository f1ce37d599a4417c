"""EDC²-RAG as a LlamaIndex response synthesizer: clusters answer with evidence, one answer is selected."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.llms import LLM
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryType, TextNode
from llama_index.core.settings import Settings

from llama_index_surerag._observing import Watch, observed, synthesizing
from llama_index_surerag.cluster_postprocessor import compressor_over, passages_with_vectors, vector_of
from llama_index_surerag.engines import NOTHING, WithPrompts
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.prompts import TemplateLike
from llama_index_surerag.services import bundle_of
from surerag import (
    ClusterCompressor,
    Consensus,
    EDC2Options,
    EDC2Result,
    SelectedPieces,
    arun,
    astream,
    run,
    stream,
)
from surerag.drivers import AnswerStream, AsyncAnswerStream
from surerag.effects import Program
from surerag.options import takes
from surerag.readers import Reader


class ConsensusSynthesizer(WithPrompts[ClusterCompressor], BaseSynthesizer):  # type: ignore[misc]  # a reader may stand for its LLM
    """Lets each cluster of similar nodes answer with evidence, and selects among the answers (EDC²-RAG, C.2).

    The paper's pipeline for answering questions, as the response synthesizer of any query engine::

        index.as_query_engine(response_synthesizer=ConsensusSynthesizer.from_args(llm), similarity_top_k=20)

    ``response.metadata`` tells how the answer came about: ``reasoning``, ``candidates`` (the clusters'
    answers with their evidence), ``clusters`` (the ids of each cluster's nodes), ``fell_back``, ``calls``,
    ``prompt_tokens`` and ``completion_tokens``. ``source_nodes`` are the nodes as they were retrieved. A
    stream is of the selected answer alone; ``reasoning`` and tokens are told once it has been read.

    Build it with :meth:`from_args`.

    Args:
        core: The method with its options and services.
        prompts: Prompts in place of its own, by name: texts or LlamaIndex templates.
        llm: What selector templates choose by.
        streaming: Whether ``synthesize`` returns a stream.
        callback_manager: Receives LlamaIndex's callbacks.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = FakeReader(["Velm: Ada was born there.", "Selected_Answer: Velm"])
        >>> synthesizer = ConsensusSynthesizer.from_args(reader, HashingEncoder())
        >>> nodes = [NodeWithScore(node=TextNode(text="Ada was born in Velm."))]
        >>> str(synthesizer.synthesize("Where was Ada born?", nodes))
        'Velm'
    """

    def __init__(
        self,
        core: ClusterCompressor,
        prompts: Mapping[str, TemplateLike] | None = None,
        llm: object = None,
        *,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        # LlamaIndex's own constructor asks for an LLM of its own, and for helpers that cut texts to fit.
        WithPrompts.__init__(self, core, prompts, llm)
        self._streaming = streaming
        self._callback_manager = callback_manager or Settings.callback_manager

    @classmethod
    @takes(EDC2Options)
    def from_args(
        cls,
        llm: LLM | Reader | None = None,
        embed_model: BaseEmbedding | Any = None,
        *,
        tokenizer: Callable[[str], Sequence[Any]] | None = None,
        streaming: bool = False,
        prompts: Mapping[str, TemplateLike] | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> ConsensusSynthesizer:
        """Build a synthesizer from what a pipeline has.

        Args:
            llm: The LLM (its log-probabilities are not needed), or a reader of surerag; ``Settings.llm`` if
                left out.
            embed_model: An embedding model, or an encoder of surerag, for nodes that carry no embeddings and
                for the query; ``Settings.embed_model`` if left out.
            tokenizer: Counts tokens; by default that of the model, else ``Settings.tokenizer``.
            streaming: Whether ``synthesize`` returns a stream.
            prompts: Replaced prompts, by the names that ``get_prompts`` gives.
            callback_manager: Receives LlamaIndex's callbacks.
            **options: Listed below; ``mode`` is ``"answer_with_evidence"`` in any case.

        Raises:
            ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM none.
            PromptError: If a prompt is unknown or its slots do not fit.
        """
        model = Settings.llm if llm is None else llm
        core = compressor_over(model, embed_model, None, tokenizer, options)
        return cls(core, prompts, model, streaming=streaming, callback_manager=callback_manager)

    @property
    def callback_manager(self) -> CallbackManager:
        """Receives LlamaIndex's callbacks; engines set their own."""
        return self._callback_manager

    @callback_manager.setter
    def callback_manager(self, callback_manager: CallbackManager) -> None:
        self._callback_manager = callback_manager

    @dispatcher.span
    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Answer from nodes; from none, as LlamaIndex's own synthesizers do."""
        bundle = bundle_of(query)
        with synthesizing(self._callback_manager, bundle) as done:
            if not nodes:
                response: RESPONSE_TYPE = (
                    StreamingResponse(_nothing()) if self._streaming else Response(NOTHING)
                )
            elif self._streaming:
                response = self._flowing(self._opened(query, nodes), nodes)
            else:
                result = run(self._observed(query, nodes), self._core.services, on_event=dispatch)
                response = Response(result.answer, list(nodes), told(result))
            response.source_nodes.extend(additional_source_nodes or ())
            done(response)
        return response

    @dispatcher.span
    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        """Like ``synthesize``, without blocking the event loop."""
        bundle = bundle_of(query)
        with synthesizing(self._callback_manager, bundle) as done:
            if not nodes:
                response: RESPONSE_TYPE = (
                    AsyncStreamingResponse(_anothing()) if self._streaming else Response(NOTHING)
                )
            elif self._streaming:
                response = self._aflowing(await self._aopened(query, nodes), nodes)
            else:
                result = await arun(self._observed(query, nodes), self._core.services, on_event=dispatch)
                response = Response(result.answer, list(nodes), told(result))
            response.source_nodes.extend(additional_source_nodes or ())
            done(response)
        return response

    def get_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> str:
        """Answer from texts; what LlamaIndex calls where it has no nodes."""
        program = self._observed(query_str, _as_nodes(text_chunks))
        return run(program, self._core.services, on_event=dispatch).answer

    async def aget_response(self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any) -> str:
        """Like ``get_response``, without blocking the event loop."""
        program = self._observed(query_str, _as_nodes(text_chunks))
        return (await arun(program, self._core.services, on_event=dispatch)).answer

    def _observed(self, query: QueryType, nodes: Sequence[NodeWithScore]) -> Program[Consensus]:
        bundle, passages = bundle_of(query), passages_with_vectors(nodes)
        program = self._core.answer_program(bundle.query_str, passages, vector_of(bundle, passages))
        return observed(program, self._core.services, Watch(self._callback_manager))

    def _opened(self, query: QueryType, nodes: Sequence[NodeWithScore]) -> AnswerStream[Consensus]:
        return stream(self._observed(query, nodes), self._core.services, on_event=dispatch)

    async def _aopened(
        self, query: QueryType, nodes: Sequence[NodeWithScore]
    ) -> AsyncAnswerStream[Consensus]:
        return await astream(self._observed(query, nodes), self._core.services, on_event=dispatch)

    def _flowing(self, answer: AnswerStream[Consensus], nodes: Sequence[NodeWithScore]) -> StreamingResponse:
        metadata = _compressed(answer.announced)

        def pieces() -> Generator[str]:
            selected = SelectedPieces()
            with answer:
                yield from filter(None, map(selected.feed, answer))
                if rest := selected.rest():
                    yield rest
            metadata.update(told(answer.result))

        return StreamingResponse(pieces(), source_nodes=list(nodes), metadata=metadata)

    def _aflowing(
        self, answer: AsyncAnswerStream[Consensus], nodes: Sequence[NodeWithScore]
    ) -> AsyncStreamingResponse:
        metadata = _compressed(answer.announced)

        async def pieces() -> AsyncGenerator[str]:
            selected = SelectedPieces()
            async with answer:
                async for piece in answer:
                    if shown := selected.feed(piece):
                        yield shown
                if rest := selected.rest():
                    yield rest
            metadata.update(told(answer.result))

        return AsyncStreamingResponse(pieces(), source_nodes=list(nodes), metadata=metadata)


def told(result: Consensus) -> dict[str, Any]:
    """Return how an answer came about, as the metadata of a response."""
    compression, last = result.compression, result.generation
    return {
        **_compressed(compression),
        "calls": result.calls,
        "reasoning": result.reasoning,
        "candidates": list(result.candidates),
        "prompt_tokens": compression.prompt_tokens + last.prompt_tokens,
        "completion_tokens": compression.completion_tokens + last.completion_tokens,
        **result.spent_dict(),
    }


def _compressed(result: EDC2Result) -> dict[str, Any]:
    """Return what is known before the answer is selected."""
    return {
        "clusters": [list(report.sources) for report in result.clusters],
        "fell_back": result.fell_back,
        "out_of_calls": result.out_of_calls,
    }


def _as_nodes(texts: Sequence[str]) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=text)) for text in texts]


def _nothing() -> Generator[str]:
    yield NOTHING


async def _anothing() -> AsyncGenerator[str]:
    yield NOTHING
