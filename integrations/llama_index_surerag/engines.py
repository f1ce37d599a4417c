"""The base of the query engines: a method of surerag, its prompts as templates, spans, events, callbacks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from llama_index_surerag.events import dispatch, dispatcher, warn
from llama_index_surerag.nodes import copy_of
from llama_index_surerag.pickles import Shareable
from llama_index_surerag.prompts import as_templates, llama_templates
from llama_index_surerag.services import NodeRetriever, bundle_of
from surerag.component import Component
from surerag.drivers import arun, run
from surerag.effects import Program
from surerag.errors import ConfigurationError, InputError
from surerag.messages import Generation, Passage, Usage
from surerag.readers.protocol import BaseReader
from surerag.services import Services

NOTHING = "Empty Response"
"""What LlamaIndex's synthesizers answer from no node at all."""

_MARGIN, _LEAST = 256, 32
"""Tokens of the window for the prompt's own words and a chat template; and for a passage, in any case."""

C = TypeVar("C", bound=Component[Any])
R = TypeVar("R")


class EmptyIndexError(InputError):
    """There is nothing to answer from; raised and caught inside one query."""


class Window:
    """What is left of a reader's window for the passages of one query, in tokens."""

    def __init__(self, reader: BaseReader, window: int, *others: str, max_tokens: int) -> None:
        self._count = reader.count_tokens
        self._left = window - max_tokens - sum(map(self._count, others)) - _MARGIN

    def fit(self, passages: list[Passage], *, stay: bool) -> list[Passage]:
        """Leave out the last passages until all fit, and cut one that fits in no way.

        Args:
            passages: Best first.
            stay: Whether they take up room beside what is retrieved later.
        """
        total, fitting = 0, list[Passage]()
        for passage in passages:
            tokens = self._count(passage.text) + 5
            if total + tokens > self._left:
                if not fitting:
                    fitting.append(self._cut(passage, max(self._left - 5, _LEAST)))
                    total = self._left
                if len(passages) > len(fitting):
                    shown = len(fitting)
                    warn("window.passages_dropped", retrieved=len(passages), shown=shown, tokens=self._left)
                break
            total += tokens
            fitting.append(passage)
        self._left -= total if stay else 0
        return fitting

    def _cut(self, passage: Passage, room: int) -> Passage:
        """Return the beginning of a passage, and of the node that it was made from."""
        text, tokens = passage.text, self._count(passage.text)
        before = tokens
        while tokens > room:
            text = text[: min(len(text) - 1, len(text) * room // tokens)].rstrip()
            tokens = self._count(text)
        warn("window.passage_cut", id=passage.id, tokens=before, shown=tokens)
        origin = passage.origin
        if isinstance(origin, NodeWithScore):
            origin = copy_of(origin)
            content = origin.node.get_content(metadata_mode=MetadataMode.NONE)
            # Metadata stand before the text, unless a template of the user's puts them elsewhere.
            origin.node.set_content(content[: max(len(content) - len(passage.text) + len(text), 0)])
            text = origin.node.get_content(metadata_mode=MetadataMode.LLM)
        return replace(passage, text=text, origin=origin)


class QueryRetriever:
    """Retrieves for one query: searches with its bundle, and fits what it returns into the LLM's window.

    Args:
        retriever: The retriever, bound to the query.
        window: What to fit passages into; None where the reader does not say.
        required: Whether there is nothing to answer from, where neither this nor the others return anything.
        others: Retrievers of a later tier.
    """

    def __init__(
        self, retriever: NodeRetriever, window: Window | None, *others: NodeRetriever, required: bool
    ) -> None:
        self._retriever = retriever
        self._window = window
        self._others = others
        self._required = required

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return passages, best first, ``k`` at most.

        Raises:
            EmptyIndexError: If there is nothing to answer from.
        """
        passages = self._retriever.retrieve(query, k)
        return self._fitting(passages, passages or [one.retrieve(query, 1) for one in self._others])

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        passages = await self._retriever.aretrieve(query, k)
        return self._fitting(passages, passages or [await one.aretrieve(query, 1) for one in self._others])

    def _fitting(self, passages: list[Passage], found: Sequence[Any]) -> list[Passage]:
        if self._required and not any(found):
            raise EmptyIndexError("nothing was retrieved")
        self._required = False
        return passages if self._window is None else self._window.fit(passages, stay=bool(self._others))


class MethodPart(Shareable, Generic[C]):
    """What parts over a method share: its settings, its prompts as templates, the services of one query."""

    _core: Any
    """The method with its options and services."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core!r})"

    @property
    def core(self) -> C:
        """The method with its options and services; what a calibration is made with."""
        core: C = self._core
        return core

    def to_dict(self) -> dict[str, Any]:
        """Return options, prompts and the models' names as plain values; no key is in it."""
        settings: dict[str, Any] = self._core.to_dict()
        return settings

    @property
    def _retriever(self) -> NodeRetriever:
        retriever: NodeRetriever = self._core.services.retriever
        return retriever

    def _get_prompts(self) -> PromptDictType:
        return llama_templates(self._core.prompts)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._core = self._core.with_options(prompts={**self._core.prompts, **as_templates(prompts)})

    def _services(self, bundle: QueryBundle) -> Services:
        """Return the services of one query: its retriever searches with its bundle."""
        services: Services = self._core.services
        return replace(services, retriever=self._retriever.bound_to(bundle))


class MethodEngine(MethodPart[C], BaseQueryEngine, Generic[C, R]):
    """A query engine around a method that answers questions.

    Args:
        core: The method with its options and services.
        streaming: Whether ``query`` returns a stream.
        callback_manager: Receives LlamaIndex's callbacks; ``Settings.callback_manager`` if None.
    """

    SIGNAL: ClassVar[str]
    """Metadata key of the uncertainty."""

    def __init__(
        self, core: C, *, streaming: bool = False, callback_manager: CallbackManager | None = None
    ) -> None:
        self._core = core
        self._streaming = streaming
        super().__init__(callback_manager=callback_manager or Settings.callback_manager)

    def to_dict(self) -> dict[str, Any]:
        """Return options, prompts and the models' names as plain values; no key is in it."""
        return {**super().to_dict(), "streaming": self._streaming}

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
            said = (turn.content for turn in getattr(bundle, "history", ()))
            window = Window(reader, tokens, bundle.query_str, *said, max_tokens=self._core.answer_tokens)
        passages, summaries = self._retriever.bound_to(bundle), services.summaries
        if isinstance(summaries, NodeRetriever):
            summaries = QueryRetriever(summaries.bound_to(bundle), window, passages, required=True)
        retriever = QueryRetriever(passages, window, required=summaries is None)
        return replace(services, retriever=retriever, summaries=summaries)

    def _program(self, bundle: QueryBundle) -> Program[R]:
        """Return the method at work on one query."""
        program: Program[R] = self._core.program(bundle.query_str)
        return program

    def _nothing(self) -> Response:
        """Return the response where there is nothing to answer from."""
        return Response(NOTHING, metadata={self.SIGNAL: None, "finish": "empty"})

    def _response(self, result: R) -> Response:
        """Return a result as LlamaIndex's response."""
        raise NotImplementedError

    def _answered(self, bundle: QueryBundle, program: Program[R]) -> RESPONSE_TYPE:
        return self._response(run(program, self._services(bundle), on_event=dispatch))

    async def _aanswered(self, bundle: QueryBundle, program: Program[R]) -> RESPONSE_TYPE:
        return self._response(await arun(program, self._services(bundle), on_event=dispatch))

    @dispatcher.span
    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            try:
                response = self._answered(query_bundle, self._program(query_bundle))
            except EmptyIndexError:
                response = self._nothing()
                if self._streaming:
                    response = StreamingResponse(iter([NOTHING]), metadata=response.metadata)  # type: ignore[arg-type]  # or any iterator
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    @dispatcher.span
    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            try:
                response = await self._aanswered(query_bundle, self._program(query_bundle))
            except EmptyIndexError:
                response = self._nothing()
                if self._streaming:
                    response = AsyncStreamingResponse(_nothing(), metadata=response.metadata)
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response


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
    finish = answer.finish if answer.text.strip() or answer.finish != "stop" else "empty"
    if finish != "stop":
        warn("answer.incomplete", finish=finish)
    return {
        "finish": finish,
        "calls": usage.requests,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "thinking_tokens": usage.thinking_tokens,
        "cached_tokens": usage.cached_tokens,
        "seconds": usage.seconds,
    }


def with_manager(
    postprocessors: Sequence[BaseNodePostprocessor] | None, manager: CallbackManager | None
) -> list[BaseNodePostprocessor]:
    """Let postprocessors report to an engine's callback manager, as LlamaIndex's own engines do.

    Raises:
        ConfigurationError: If they are no list of postprocessors.
    """
    results = list(postprocessors or ())
    for postprocessor in results:
        if not isinstance(postprocessor, BaseNodePostprocessor):
            raise ConfigurationError(
                f"node_postprocessors holds a {type(postprocessor).__name__}",
                hint="pass a list of LlamaIndex's node postprocessors",
            )
        postprocessor.callback_manager = manager or Settings.callback_manager
    return results
