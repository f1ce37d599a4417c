"""L-RAG as a LangChain chain and as a tool: a model answers from summaries; if it is unsure, we retrieve."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self, cast

from langchain_core.callbacks import Callbacks
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import ensure_config
from langchain_core.runnables.utils import AddableDict
from pydantic import BaseModel

from langchain_surerag.base import SerializablePart, service_field
from langchain_surerag.documents import documents_of
from langchain_surerag.inputs import (
    ChainInput,
    ConversationInput,
    QuestionInput,
    query_of,
    standalone_question,
    with_conversation,
)
from langchain_surerag.models import reader_of
from langchain_surerag.runs import (
    AsyncListener,
    collect_message_ids,
    end_of_program,
    errors_of_client_class,
    listener_of,
    run_program,
    stream_whole,
    with_purposes,
)
from langchain_surerag.stores import metadata_to_show
from langchain_surerag.summaries import summaries_of, tiers_of
from surerag import LazyRAG, LazyRAGOptions, LazyRAGPlan, LazyRAGResult, Passage, Services
from surerag.calibration import scope_of
from surerag.drivers import astream, run_blocking, stream
from surerag.effects import Program
from surerag.errors import ConfigurationError, check_kind
from surerag.messages import Message
from surerag.prompts import REWRITE_IN_CONVERSATION, PromptSet
from surerag.readers import AWAITING, BLOCKING, Blocking
from surerag.signatures import takes_options

if TYPE_CHECKING:
    from langchain_core.tools import StructuredTool

logger = logging.getLogger("surerag")

ChainOutput = dict[str, Any]
SUMMARY_KEY = "is_summary"
"""Metadata key that marks a summary in the output; passages do not have this key."""
_PROMPTS: dict[str, Any] = {**LazyRAGOptions.PROMPTS, "rewrite_in_conversation": REWRITE_IN_CONVERSATION}


class LazyRetrievalChain(SerializablePart, LazyRAGOptions, RunnableSerializable[Any, ChainOutput]):
    """Answers from summaries of documents, and retrieves only if a gate finds the reader (the model) unsure.

    The input is a question, messages or a prompt value; or a mapping that holds one of these under
    ``question``, ``input``, ``query`` or ``messages``. The mapping may also hold a conversation under
    ``chat_history``, ``history``, or any other key whose value is a list of messages. In a conversation, a
    model first rewrites the question so that it can be understood alone (one more call; see
    ``rewrite_follow_ups``, ``rewriter`` and ``show_conversation``). The output is a dictionary:

    - ``answer``: the answer's text;
    - ``context``: the documents that the reader saw: first the summaries, which have ``is_summary`` in their
      metadata, then the retrieved documents, if any;
    - ``decision``: a dictionary of ``retrieve``, ``reason``, ``gate``, ``score``, ``interval`` and
      ``threshold``;
    - ``certainty``: how sure the reader was of the answer, in the form of :meth:`surerag.Certainty.to_dict`;
    - ``finish``: why the answer ended: ``"stop"``, ``"length"`` or ``"content_filter"``; ``"empty"`` if
      there is no answer;
    - ``message``: the answer as a message, to add to a graph's ``messages``; it has the id of the streamed
      message, so that LangGraph's ``stream_mode="messages"`` shows the answer once;
    - ``usage``: a dictionary of the fields of :class:`surerag.Usage`, the cost of all calls of models;
    - with ``return_details``: ``question`` (the query of the search), ``summaries``, ``passages`` and
      ``abstained``.

    ``stream`` yields context and decision first, then the answer in pieces. The events ``lazy_rag.gate`` and
    ``lazy_rag.answering`` reach callback handlers and ``astream_events``; a draft (a first answer that may be
    dropped) is not streamed to them. Each run of a model has a tag: ``surerag:answer`` for the text that is
    returned, ``surerag:draft`` for a draft, ``surerag:step`` for a rewritten question. ``dumps`` leaves out
    models and retrievers that cannot be serialised; :meth:`attach` adds them after loading.

    If the model's client fails, the error has two classes, surerag's and the client's, so that
    ``with_fallbacks(…, exceptions_to_handle=(RateLimitError,))`` catches it.

    Raises:
        ConfigurationError: If an option is out of bounds, or if we cannot know which summaries the
            retriever's filter admits (this is checked at every question, because filters may change).
        MissingServiceError: If the model, the retriever or the summaries are missing.
        CapabilityError: If the gate needs log-probabilities that the model does not return.
    """

    SERVICES = ("llm", "retriever", "summaries", "rewriter")
    PROMPTS = PromptSet(**_PROMPTS)

    llm: Any = service_field("A chat model, an LLM or a reader of surerag.")
    retriever: Any = service_field("A retriever of passages, or a runnable from a question to documents.")
    summaries: Any = service_field(
        "The result of summaries_of, a vector store or retriever of summaries, or one summary as text."
    )
    rewriter: Any = service_field("A model that rewrites follow-up questions; by default llm.")

    rewrite_follow_ups: bool = True
    """Whether a model first rewrites a follow-up question, with the prompt ``rewrite_in_conversation`` (slot
    ``query``), so that the question can be understood alone. If False, the search uses the original
    question."""

    show_conversation: bool = False
    """Whether the answer's prompts contain the conversation. The reader then answers the original question;
    only the search uses the rewritten question."""

    summaries_are_public: bool = False
    """Whether every user may see every summary, also of documents that the retriever's filter excludes."""

    return_details: bool = False
    """Whether the output also has ``question``, ``summaries``, ``passages`` and ``abstained``."""

    def __init__(self, llm: Any = None, retriever: Any = None, summaries: Any = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "retriever": retriever, "summaries": summaries, **options})

    @classmethod
    @takes_options(LazyRAGOptions)
    def from_documents(
        cls,
        documents: Iterable[Document],
        llm: Any,
        retriever: Any,
        embeddings: Any = None,
        *,
        summarize: Any = 2,
        store: Any = None,
        **options: Any,
    ) -> Self:
        """Build a chain from whole documents, which :func:`summaries_of` summarizes.

        Args:
            documents: Whole documents, not cut into passages.
            llm: A chat model, an LLM or a reader of surerag.
            retriever: A retriever of passages, or a runnable from a question to documents.
            embeddings: The embedding model for the summaries.
            summarize: The number of first sentences to take, the metadata key of a ready summary, a function
                from a document to a summary, a model, or ``"model"`` for ``llm``.
            store: A vector store for the summaries; None keeps them in memory.
            **options: Options of the class.
        """
        summarize = llm if summarize == "model" else summarize
        summaries = summaries_of(documents, summarize=summarize, embeddings=embeddings, store=store)
        return cls(llm, retriever, summaries, **options)

    # LangChain's protocol.

    def invoke(self, input: ChainInput, config: RunnableConfig | None = None, **kwargs: Any) -> ChainOutput:
        """Answer one question."""
        _check_no_options(kwargs)
        return self._call_with_config(lambda value: run_blocking(self._run(value, BLOCKING)), input, config)

    async def ainvoke(
        self, input: ChainInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> ChainOutput:
        """Answer one question without blocking the event loop."""
        _check_no_options(kwargs)
        return await self._acall_with_config(lambda value: self._run(value, AWAITING), input, config)

    def stream(
        self, input: ChainInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[ChainOutput]:
        """Yield context and decision, then the answer in pieces."""
        _check_no_options(kwargs)
        yield from self._transform_stream_with_config(iter([input]), self._pieces, config)

    async def astream(
        self, input: ChainInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[ChainOutput]:
        """Like :meth:`stream`, without blocking the event loop."""
        _check_no_options(kwargs)

        async def inputs() -> AsyncIterator[ChainInput]:
            yield input

        chunks = self._atransform_stream_with_config(inputs(), self._apieces, config)
        async with aclosing(cast("AsyncGenerator[ChainOutput]", chunks)):
            async for chunk in chunks:
                yield chunk

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """Return a pydantic model of the input of :meth:`invoke`."""
        return ConversationInput

    # The method.

    def _make_core(self) -> LazyRAG:
        summaries, retriever = tiers_of(self.summaries, self.retriever, public=self.summaries_are_public)
        options, names = self.options(), LazyRAGOptions.PROMPTS
        options["prompts"] = {name: prompt for name, prompt in self.prompts.items() if name in names}
        if self.rewriter is not None:
            reader_of(self.rewriter)  # raises if it is not a model
        return LazyRAG(reader_of(self.llm), retriever, summaries, **options)

    async def _run(self, value: Any, calls: Blocking) -> ChainOutput:
        ids = collect_message_ids()
        result = await run_program(self._program(value), self._services, ensure_config(), calls)
        await stream_whole(result.answer, ids, calls)
        return {**_opening(result), "answer": result.answer, **self._details(result, ids)}

    def _pieces(self, inputs: Iterator[Any]) -> Iterator[ChainOutput]:
        ids = collect_message_ids()
        program = with_purposes(self._program(next(inputs)))
        listener = listener_of(ensure_config())
        with errors_of_client_class(), stream(program, self._services, on_event=listener) as answer:
            plan = answer.announced
            yield _opening(plan)
            for piece in answer:
                yield AddableDict(answer=piece)
            run_blocking(stream_whole(answer.result.answer, ids, BLOCKING))
            yield self._closing(answer.result, plan, ids)

    async def _apieces(self, inputs: AsyncIterator[Any]) -> AsyncIterator[ChainOutput]:
        ids = collect_message_ids()
        program = with_purposes(self._program(await anext(inputs)))
        async with AsyncListener(ensure_config()) as listener:
            with errors_of_client_class():
                answer = await astream(program, self._services, on_event=listener)
                async with answer:
                    # All handlers receive the decision before the first word of the answer.
                    await listener.wait_for_delivery()
                    plan = answer.announced
                    yield _opening(plan)
                    async for piece in answer:
                        yield AddableDict(answer=piece)
                    await stream_whole(answer.result.answer, ids, AWAITING)
                    yield self._closing(answer.result, plan, ids)

    @property
    def _services(self) -> Services:
        services: Services = self.core.services
        return services if self.rewriter is None else replace(services, rewriter=reader_of(self.rewriter))

    def _program(self, value: Any) -> Program[LazyRAGResult]:
        core: LazyRAG = self.core
        question, history = query_of(value)
        return self._in_conversation(question, history) if history else core.program(question)

    def _in_conversation(self, question: str, history: Sequence[Message]) -> Program[LazyRAGResult]:
        alone = question
        if self.rewrite_follow_ups:
            alone = yield from standalone_question(question, history, self.prompts["rewrite_in_conversation"])
        program = self.core.program(question if self.show_conversation else alone)
        if self.show_conversation:
            program = with_conversation(program, history, alone, end_of_program)
        result: LazyRAGResult = yield from program
        return replace(result, question=alone)

    def _closing(self, result: LazyRAGResult, plan: LazyRAGPlan, ids: Sequence[str]) -> ChainOutput:
        # The key ``answer`` is present even if no text was streamed.
        chunk = AddableDict(answer="", **self._details(result, ids))
        if result.decision != plan.decision:  # the first answer was empty, so passages were retrieved
            chunk["context"] = documents_of(result.passages[len(plan.passages) :])
            chunk["decision"] = result.decision.to_dict()
        return chunk

    def _details(self, result: LazyRAGResult, ids: Sequence[str]) -> ChainOutput:
        finish = result.generation.finish
        certainty = replace(result.certainty, scope=scope_of(self.core)).to_dict()
        note = {"surerag": {"retrieval": result.decision.to_dict()}, "certainty": certainty}
        message = AIMessage(result.answer, id=ids[-1] if ids else None, response_metadata=note)
        details: ChainOutput = {
            "finish": finish,
            "message": message,
            "certainty": certainty,
            "usage": asdict(result.usage),
        }
        if finish in ("empty", "content_filter"):
            logger.warning("lazy_rag.no_answer: %s", {"question": result.question, "finish": finish})
        if self.return_details:
            details |= {
                "question": result.question,
                "summaries": _marked(result.summaries),
                "passages": documents_of(result.passages),
                "abstained": result.abstained,
            }
        return details


def _opening(plan: LazyRAGPlan | LazyRAGResult) -> ChainOutput:
    # A summary that was also retrieved appears only once.
    retrieved = {passage.text.strip() for passage in plan.passages}
    summaries = [one for one in plan.summaries if one.text.strip() not in retrieved]
    context = [*_marked(summaries), *documents_of(plan.passages)]
    return AddableDict(context=context, decision=plan.decision.to_dict())


def _marked(summaries: Iterable[Passage]) -> list[Document]:
    return documents_of(
        [replace(one, metadata={**metadata_to_show(one.metadata), SUMMARY_KEY: True}) for one in summaries]
    )


def _check_no_options(options: Mapping[str, Any]) -> None:
    if options:
        raise ConfigurationError(
            f"a LazyRetrievalChain takes no {' and no '.join(options)} in a call",
            hint="bind the model's arguments to the model: llm.bind(stop=…); set the chain's options with "
            "chain.with_options(…)",
        )


def create_lazy_retrieval_tool(
    chain: Runnable[Any, dict[str, Any]], name: str, description: str
) -> StructuredTool:
    """Make a tool with which an agent calls a chain.

    The tool has one argument, ``question``, and returns the answer. The chain's whole output (context,
    decision) is the artifact of the tool's message.

    Args:
        chain: A :class:`LazyRetrievalChain`, which may be configured or wrapped.
        name: Name under which the agent calls the tool.
        description: Text that tells the agent when to call the tool.

    Raises:
        ConfigurationError: If ``chain`` is not a runnable, or ``name`` or ``description`` is not a text.
    """
    check_kind(Runnable, "a chain", hint="pass a LazyRetrievalChain", chain=chain)
    check_kind(str, "a text", name=name, description=description)
    from langchain_core.tools import StructuredTool

    def ask(question: str, callbacks: Callbacks = None) -> Any:
        output = chain.invoke({"question": question}, {"callbacks": callbacks})
        return output["answer"], dict(output)

    async def aask(question: str, callbacks: Callbacks = None) -> Any:
        output = await chain.ainvoke({"question": question}, {"callbacks": callbacks})
        return output["answer"], dict(output)

    return StructuredTool(
        name=name,
        description=description,
        func=ask,
        coroutine=aask,
        args_schema=QuestionInput,
        response_format="content_and_artifact",
    )
