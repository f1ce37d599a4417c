"""EDC²-RAG's answering as a LangChain runnable: clusters answer with evidence, one answer is selected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.utils import AddableDict
from pydantic import Field

from langchain_surerag._events import Announcing, announce
from langchain_surerag._local_runs import Watch
from langchain_surerag.cluster_compressor import compressor_over
from langchain_surerag.documents import documents_of, passages_of
from langchain_surerag.inputs import asked, joined
from langchain_surerag.parts import MethodRunnable
from surerag import ClusterCompressor, Consensus, EDC2Options, SelectedPieces, astream, stream
from surerag.effects import Program
from surerag.errors import InputError

_DOCUMENTS = ("context", "documents")


class ConsensusAnswer(  # type: ignore[misc]  # a frozen base; fields that are set are in force
    MethodRunnable[ClusterCompressor, Any], EDC2Options
):
    """Lets clusters of documents answer with evidence, and selects among the answers (EDC²-RAG, C.2).

    The paper's pipeline for answering questions. It stands where ``create_stuff_documents_chain`` does: it
    takes a mapping with documents under ``context`` or ``documents`` and a question under ``input``,
    ``question`` or ``query``, and returns the answer's text::

        create_retrieval_chain(retriever, ConsensusAnswer(model, embeddings))

    With ``return_details`` it returns a dictionary: ``answer``, ``reasoning``, ``candidates`` (the clusters'
    answers with their evidence), ``clusters`` (the ids of each one's documents), ``context`` (the candidates
    as documents that list their sources), ``fell_back`` and ``usage``. ``stream`` yields the selected answer
    in pieces, and nothing else of the model's reply; with ``return_details`` the chunks add up to that
    dictionary. ``batch`` and ``abatch`` read a local model's questions in merged batches.

    Its options can be made configurable. It serialises with LangChain's ``dumps``; services that cannot be
    written down are left out and given back with :meth:`attach`.

    Attributes:
        llm: A chat model or LLM, with bindings, retries and fallbacks around it if any; or a reader of
            surerag.
        embeddings: An embedding model, or an encoder of surerag; not needed for ``clustering="single"`` or
            ``"random"``.
        count_tokens: Counts the tokens of a text; see :class:`ClusterCompressor`.
        return_details: Whether to return the dictionary.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the model is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from langchain_core.documents import Document
        >>> from surerag import FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = FakeReader(["Velm: Ada was born there.", "Selected_Answer: Velm"])
        >>> chain = ConsensusAnswer(reader, HashingEncoder())
        >>> chain.invoke({"input": "Where was Ada born?", "context": [Document("Ada was born in Velm.")]})
        'Velm'
    """

    SERVICES = ("llm", "embeddings", "count_tokens")

    llm: Any = Field(default=None, kw_only=False)
    embeddings: Any = Field(default=None, kw_only=False)
    count_tokens: Callable[[str], int] | None = None
    return_details: bool = False

    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __init__(self, llm: Any = None, embeddings: Any = None, **options: Any) -> None:
            super().__init__(llm=llm, embeddings=embeddings, **options)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Yield the answer in pieces."""
        yield from self.transform(iter([input]), config, **kwargs)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Like :meth:`stream`, without blocking the event loop."""

        async def inputs() -> AsyncIterator[Any]:
            yield input

        async for chunk in self.atransform(inputs(), config, **kwargs):
            yield chunk

    def transform(
        self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """Like :meth:`stream`, for an input that comes in chunks itself."""
        yield from self._transform_stream_with_config(input, self._pieces, config, **kwargs)

    async def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Like :meth:`transform`, without blocking the event loop."""
        async for chunk in self._atransform_stream_with_config(input, self._apieces, config, **kwargs):
            yield chunk

    def _pieces(
        self, chunks: Iterator[Any], run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> Iterator[Any]:
        services, selected = self._services(), SelectedPieces()
        watch = Watch(services, announce)
        program = watch.over(self._program(joined(list(chunks))))
        with stream(program, services, on_event=announce) as answer:
            for piece in answer:
                if shown := selected.feed(piece):
                    watch.token(shown)
                    yield self._chunk(shown)
            yield from self._last(selected.rest(), answer.result)

    async def _apieces(
        self, chunks: AsyncIterator[Any], run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> AsyncIterator[Any]:
        given = joined([chunk async for chunk in chunks])
        services, selected = self._services(), SelectedPieces()
        async with Announcing(config) as announce:
            watch = Watch(services, announce)
            answer = await astream(watch.over(self._program(given)), services, on_event=announce)
            async with answer:
                async for piece in answer:
                    if shown := selected.feed(piece):
                        watch.token(shown)
                        yield self._chunk(shown)
                for chunk in self._last(selected.rest(), answer.result):
                    yield chunk

    def _chunk(self, text: str) -> Any:
        return AddableDict(answer=text) if self.return_details else text

    def _last(self, rest: str, result: Consensus) -> list[Any]:
        if not self.return_details:
            return [rest]
        return [AddableDict({**self._details(result), "answer": rest})]

    def _core(self) -> ClusterCompressor:
        return compressor_over(self.llm, self.embeddings, None, self.count_tokens, self.chosen())

    def _program(self, given: Any) -> Program[Consensus]:
        if not isinstance(given, Mapping):
            raise InputError("there are no documents", hint='pass {"input": …, "context": [documents]}')
        documents = next((given[name] for name in _DOCUMENTS if given.get(name) is not None), None)
        if not isinstance(documents, list | tuple):
            raise InputError(
                f"there are no documents among {sorted(map(str, given))}",
                hint='pass them under "context" or "documents"',
            )
        question = asked({name: value for name, value in given.items() if name not in _DOCUMENTS}).question
        return self.core.answer_program(question, passages_of(documents))

    def _output(self, result: Consensus) -> Any:
        return self._details(result) if self.return_details else result.answer

    def _details(self, result: Consensus) -> dict[str, Any]:
        compression, last = result.compression, result.generation
        return {
            "answer": result.answer,
            "reasoning": result.reasoning,
            "candidates": list(result.candidates),
            "clusters": [list(report.sources) for report in compression.clusters],
            "fell_back": compression.fell_back,
            "context": documents_of(compression.passages),
            "usage": {
                "calls": result.calls,
                "prompt_tokens": compression.prompt_tokens + last.prompt_tokens,
                "completion_tokens": compression.completion_tokens + last.completion_tokens,
            },
            **result.spent_dict(),
        }
