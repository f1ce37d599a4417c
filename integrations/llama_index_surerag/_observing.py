"""What LlamaIndex's instrumentation and callbacks hear of a method's steps.

A user's own LLM, embedding model and retriever report themselves. What surerag runs itself (a model in this
process, its own readers and encoders, the first tier's search) is reported here, from around the method's
program: every step of it runs in its caller's context, so that what is reported nests where it belongs, also
where many questions share one batch. Of a judge in words over a model in this process, only its verdicts are
known here: its calls are counted in the model's ``usage``, and are no LLM events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeVar
from uuid import uuid4

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, MessageRole
from llama_index.core.base.response.schema import RESPONSE_TYPE, Response
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.instrumentation.events.embedding import EmbeddingEndEvent, EmbeddingStartEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMChatStartEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.llms import CustomLLM
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_surerag._deleted import WithoutDeleted
from llama_index_surerag._spans import Span
from llama_index_surerag._summary_tier import BoundSummaryTier, SummaryTier
from llama_index_surerag._text_llm import LLMReader
from llama_index_surerag.events import dispatcher
from llama_index_surerag.nodes import nodes_of
from llama_index_surerag.prompts import to_chat_messages
from llama_index_surerag.services import EmbeddingEncoder, SettingsEncoder
from surerag import Services
from surerag.effects import (
    CancelGeneration,
    ContinueGeneration,
    Effect,
    Embed,
    Generate,
    Program,
    Retrieve,
    ReturnAnswer,
    StartGeneration,
)
from surerag.messages import Generation, PartialGeneration, Passage, Prompt, SamplingParams
from surerag.readers import Reader
from surerag.retrieval import PassageIndex
from surerag.services import Encoder

R = TypeVar("R")


class Watch(NamedTuple):
    """Who is told, and of which query.

    Attributes:
        manager: Receives LlamaIndex's callbacks.
        bundle: What was asked; None where what comes of it is no answer to a query.
    """

    manager: CallbackManager
    bundle: QueryBundle | None = None


def observed(program: Program[R], services: Services, watch: Watch) -> Program[R]:
    """Return a program that reports what is asked for it.

    Args:
        program: A method at work.
        services: Who answers it.
        watch: Who is told.
    """
    with ExitStack() as left:
        calls = _Calls(watch.manager, left)
        step = _sending(program, None)
        while True:
            try:
                effect = step()
            except StopIteration as stop:
                result: R = stop.value
                return result
            try:
                with _reported(effect, services, watch, calls) as report:
                    answer = yield effect
                    report(answer)
            except GeneratorExit:
                program.close()
                raise
            except BaseException as error:
                step = _throwing(program, error)
            else:
                step = _sending(program, answer)


def _sending(program: Program[Any], answer: Any) -> Callable[[], Effect]:
    return lambda: program.send(answer)


def _throwing(program: Program[Any], error: BaseException) -> Callable[[], Effect]:
    return lambda: program.throw(error)


Report = Callable[[Any], None]


@contextmanager
def _reported(effect: Effect, services: Services, watch: Watch, calls: _Calls) -> Iterator[Report]:
    """Report an effect; what is yielded is to be told the answer."""
    with ExitStack() as inner:
        reports: list[Report] = []
        if watch.bundle is not None and (
            isinstance(effect, ReturnAnswer) or getattr(effect, "answer", False)
        ):
            done = inner.enter_context(synthesizing(watch.manager, watch.bundle))
            reports.append(lambda answer: done(Response(_first(answer).text)))
        match effect:
            case Generate(prompts, sampling, role=role):
                reader = services.rewriter if role == "rewriter" and services.rewriter else services.reader
                if reader is not None and not isinstance(reader, LLMReader):
                    reports.append(inner.enter_context(calls.whole(reader, prompts, sampling)))
            case StartGeneration(prompts, sampling=sampling):
                if services.reader is not None and not isinstance(services.reader, LLMReader):
                    reports.append(calls.begin(services.reader, prompts, sampling))
            case ContinueGeneration(begun):
                reports.append(lambda answer: calls.end(begun, answer))
            case CancelGeneration(begun):
                reports.append(lambda _: calls.end(begun, [one.partial for one in begun]))
            case Embed(texts) if services.encoder is not None:
                if not isinstance(services.encoder, EmbeddingEncoder | SettingsEncoder):
                    encoding = embedding(watch.manager, services.encoder, texts)
                    reports.append(inner.enter_context(encoding))
            case Retrieve(query, tier="summaries") if _searches(services.summaries):
                reports.append(inner.enter_context(_finding(watch.manager, query)))

        def report(answer: Any) -> None:
            for tell in reversed(reports):
                tell(answer)

        yield report


def _searches(summaries: object) -> bool:
    """Whether surerag itself searches a tier of summaries: retrievers of LlamaIndex report themselves."""
    while isinstance(summaries, WithoutDeleted):
        summaries = summaries.inner
    return isinstance(summaries, SummaryTier | BoundSummaryTier | PassageIndex)


@contextmanager
def synthesizing(manager: CallbackManager, bundle: QueryBundle) -> Iterator[Callable[[RESPONSE_TYPE], None]]:
    """Report that an answer is made; what is yielded is to be told it."""
    with ExitStack() as inner:
        inner.enter_context(Span("surerag.synthesize", query=bundle.query_str).around())
        dispatcher.event(SynthesizeStartEvent(query=bundle))
        payload: dict[str, Any] = {EventPayload.QUERY_STR: bundle.query_str}
        event = inner.enter_context(manager.event(CBEventType.SYNTHESIZE, payload=payload))

        def done(response: RESPONSE_TYPE) -> None:
            event.on_end(payload={EventPayload.RESPONSE: response})
            dispatcher.event(SynthesizeEndEvent(query=bundle, response=response))

        yield done


class Reranking(NamedTuple):
    """Nodes that are chosen, put in order or rewritten.

    Attributes:
        nodes: As they come in.
        bundle: The query.
        top_n: How many go on, at most.
        model: Who is asked.
    """

    nodes: Sequence[NodeWithScore]
    bundle: QueryBundle
    top_n: int
    model: str


@contextmanager
def reranking(
    manager: CallbackManager, what: Reranking
) -> Iterator[Callable[[Sequence[NodeWithScore]], None]]:
    """Report that nodes are postprocessed, in the span that is open; what is yielded is to be told them."""
    nodes, query = list(what.nodes), what.bundle.query_str
    dispatcher.event(
        ReRankStartEvent(query=what.bundle, nodes=nodes, top_n=what.top_n, model_name=what.model)
    )
    payload: dict[str, Any] = {
        EventPayload.NODES: nodes,
        EventPayload.MODEL_NAME: what.model,
        EventPayload.QUERY_STR: query,
        EventPayload.TOP_K: what.top_n,
    }
    with manager.event(CBEventType.RERANKING, payload=payload) as event:

        def done(found: Sequence[NodeWithScore]) -> None:
            event.on_end(payload={EventPayload.NODES: list(found)})
            dispatcher.event(ReRankEndEvent(nodes=list(found)))

        yield done


@contextmanager
def embedding(manager: CallbackManager, encoder: Encoder, texts: Sequence[str]) -> Iterator[Report]:
    """Report that texts are embedded by an encoder of surerag; what is yielded is to be told the vectors."""
    known = {"model_name": encoder.name, "class_name": type(encoder).__name__}
    with ExitStack() as inner:
        inner.enter_context(Span(f"{type(encoder).__name__}.encode", texts=list(texts)).around())
        dispatcher.event(EmbeddingStartEvent(model_dict=known))
        payload: dict[str, Any] = {EventPayload.SERIALIZED: known}
        event = inner.enter_context(manager.event(CBEventType.EMBEDDING, payload=payload))

        def done(rows: Any) -> None:
            vectors = rows.tolist()
            event.on_end(payload={EventPayload.CHUNKS: list(texts), EventPayload.EMBEDDINGS: vectors})
            dispatcher.event(EmbeddingEndEvent(chunks=list(texts), embeddings=vectors))

        yield done


@contextmanager
def _finding(manager: CallbackManager, query: str) -> Iterator[Report]:
    with ExitStack() as inner:
        inner.enter_context(Span("SummaryTier.retrieve", query=query).around())
        dispatcher.event(RetrievalStartEvent(str_or_query_bundle=query))
        event = inner.enter_context(
            manager.event(CBEventType.RETRIEVE, payload={EventPayload.QUERY_STR: query})
        )

        def done(found: Sequence[Passage]) -> None:
            nodes = nodes_of(found)
            event.on_end(payload={EventPayload.NODES: nodes})
            dispatcher.event(RetrievalEndEvent(str_or_query_bundle=query, nodes=nodes))

        yield done


class OwnModel(CustomLLM):
    """Stands for a model of surerag in traces, which read a model's name off an LLM; it answers nothing.

    Attributes:
        model_name: Identity of the reader.
    """

    model_name: str

    @property
    def metadata(self) -> LLMMetadata:
        """The model's name, and that it is asked in turns."""
        return LLMMetadata(model_name=self.model_name, is_chat_model=True)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> NoReturn:
        """Refuse: nobody asks it."""
        raise NotImplementedError

    stream_complete = complete


@lru_cache(maxsize=64)
def _own_model(name: str) -> OwnModel:
    return OwnModel(model_name=name)


class _Call:
    """One prompt that a reader of surerag answers: an event pair, a callback pair and a span."""

    def __init__(
        self, manager: CallbackManager, reader: Reader, prompt: Prompt, sampling: SamplingParams
    ) -> None:
        self._manager = manager
        self._messages = to_chat_messages(prompt)
        self._id = str(uuid4())
        self._span = Span(
            f"{type(reader).__name__}.generate",
            _own_model(reader.name),
            messages=self._messages,
        )
        self._span.enter()
        asked = {
            "model": reader.name,
            "n": sampling.n,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }
        dispatcher.event(
            LLMChatStartEvent(
                messages=self._messages, additional_kwargs={}, model_dict=asked, span_id=self._span.id
            )
        )
        payload: dict[str, Any] = {
            EventPayload.MESSAGES: self._messages,
            EventPayload.ADDITIONAL_KWARGS: {},
            EventPayload.SERIALIZED: asked,
        }
        manager.on_event_start(CBEventType.LLM, payload=payload, event_id=self._id)

    def end(self, answers: Sequence[Generation]) -> None:
        response = _response(answers)
        payload: dict[str, Any] = {
            EventPayload.MESSAGES: self._messages,
            EventPayload.RESPONSE: response,
        }
        self._manager.on_event_end(CBEventType.LLM, payload=payload, event_id=self._id)
        dispatcher.event(LLMChatEndEvent(messages=self._messages, response=response, span_id=self._span.id))
        self._span.exit(response)

    def drop(self, error: BaseException) -> None:
        payload: dict[str, Any] = {EventPayload.EXCEPTION: error}
        self._manager.on_event_end(CBEventType.LLM, payload=payload, event_id=self._id)
        self._span.drop(error)


class _Calls:
    """The calls of one program; one that was begun ends when it is finished or cancelled, or with it."""

    def __init__(self, manager: CallbackManager, left: ExitStack) -> None:
        self._manager = manager
        self._begun: dict[int, _Call] = {}
        left.push(self._ended)

    @contextmanager
    def whole(self, reader: Reader, prompts: Sequence[Prompt], sampling: SamplingParams) -> Iterator[Report]:
        """Report answers that are asked for and come."""
        made = [_Call(self._manager, reader, prompt, sampling) for prompt in prompts]

        def done(answers: Sequence[Sequence[Generation]]) -> None:
            while made:
                made.pop().end(answers[len(made)])

        try:
            yield done
        except BaseException as error:
            while made:
                made.pop().drop(error)
            raise

    def begin(self, reader: Reader, prompts: Sequence[Prompt], sampling: SamplingParams) -> Report:
        """Report answers that are begun; what is returned is to be told the beginnings."""
        made = [_Call(self._manager, reader, prompt, sampling) for prompt in prompts]
        self._begun.update((id(call), call) for call in made)

        def done(begun: Sequence[PartialGeneration]) -> None:
            for call, one in zip(made, begun, strict=True):
                del self._begun[id(call)]
                self._begun[id(one)] = call

        return done

    def end(self, begun: Sequence[PartialGeneration], answers: Sequence[Generation]) -> None:
        """Report that beginnings were finished or cancelled."""
        for one, answer in reversed(list(zip(begun, answers, strict=True))):
            call = self._begun.pop(id(one), None)
            if call is not None:
                call.end([answer])

    def _ended(self, _: object, error: BaseException | None, __: object) -> None:
        while self._begun:
            _key, call = self._begun.popitem()
            call.drop(error or RuntimeError("the answer was not read on"))


def _response(answers: Sequence[Generation]) -> ChatResponse:
    """Return answers to one prompt as LlamaIndex has them: the first, and what they cost together."""
    completed = sum(answer.completion_tokens + answer.thinking_tokens for answer in answers)
    read = answers[0].prompt_tokens
    usage = {"prompt_tokens": read, "completion_tokens": completed, "total_tokens": read + completed}
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, content=answers[0].text),
        raw={"usage": usage, "answers": [answer.text for answer in answers]},
    )


def _first(answer: Any) -> Generation:
    """Return the answer among what an effect was answered with."""
    while not isinstance(answer, Generation):
        answer = answer[0]
    return answer
