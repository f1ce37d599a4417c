"""The base of the query engines: a method of surerag, its prompts as templates, spans, events, callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.settings import Settings

from llama_index_surerag.events import dispatch, dispatcher, warn
from llama_index_surerag.llm import LLMReader
from llama_index_surerag.prompts import as_templates, llama_templates
from llama_index_surerag.services import NodeRetriever, bundle_of
from surerag.component import Component
from surerag.drivers import arun, run
from surerag.effects import Program
from surerag.errors import ConfigurationError, InputError
from surerag.messages import Generation, Passage, Usage
from surerag.services import Services

NOTHING = "Empty Response"
"""What LlamaIndex's synthesizers answer from no node at all."""

_MARGIN = 256
"""Tokens of the window that are kept for the prompt's own words and a chat template."""

C = TypeVar("C", bound=Component[Any])
R = TypeVar("R")


class EmptyIndexError(InputError):
    """There is nothing to answer from; raised and caught inside one query."""

    def __init__(self) -> None:
        super().__init__("nothing was retrieved")


class QueryScope:
    """The retrievers of one query: they search with its bundle, and fit what they return into the window.

    Args:
        services: The engine's services.
        bundle: The query.
        max_tokens: Tokens that are kept for the answer.
    """

    def __init__(self, services: Services, bundle: QueryBundle, max_tokens: int) -> None:
        self._reader = services.reader
        self._left: int | None = None
        self._must_find = services.summaries is None
        if isinstance(services.reader, LLMReader):
            question = services.reader.count_tokens(bundle.query_str)
            self._left = services.reader.window - max_tokens - question - _MARGIN
        changes: dict[str, Any] = {}
        for name in ("retriever", "summaries"):
            if isinstance(retriever := getattr(services, name), NodeRetriever):
                changes[name] = retriever.bound_to(
                    bundle, self._fit_summaries if name == "summaries" else self._fit
                )
        if isinstance(services.summaries, NodeRetriever):
            changes["summaries"] = _TierOne(changes["summaries"], changes["retriever"])
        self.services = replace(services, **changes)

    def _fit(self, passages: list[Passage]) -> list[Passage]:
        """Drop the last passages until all fit, as far as one is left.

        Raises:
            EmptyIndexError: If there is nothing to answer from: no summaries, and nothing was retrieved.
        """
        if self._must_find and not passages:
            raise EmptyIndexError
        self._must_find = False
        if self._left is None or self._reader is None:
            return passages
        total, fitting = 0, list[Passage]()
        for passage in passages:
            total += self._reader.count_tokens(passage.text) + 5
            if fitting and total > self._left:
                break
            fitting.append(passage)
        if len(fitting) < len(passages):
            warn("window.passages_dropped", retrieved=len(passages), shown=len(fitting), tokens=self._left)
        return fitting

    def _fit_summaries(self, passages: list[Passage]) -> list[Passage]:
        fitting = self._fit(passages)
        if self._left is not None and self._reader is not None:
            self._left -= sum(self._reader.count_tokens(passage.text) for passage in fitting)
        return fitting


class _TierOne:
    """Summaries for one query; with neither summaries nor passages there is nothing to answer from."""

    def __init__(self, summaries: NodeRetriever, passages: NodeRetriever) -> None:
        self._summaries = summaries
        self._passages = passages

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        results = self._summaries.retrieve(query, k)
        if not results and not self._passages.retrieve(query, 1):
            raise EmptyIndexError
        return results

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        results = await self._summaries.aretrieve(query, k)
        if not results and not await self._passages.aretrieve(query, 1):
            raise EmptyIndexError
        return results


class MethodEngine(BaseQueryEngine, Generic[C, R]):
    """A query engine around a method that answers questions.

    Args:
        core: The method with its options and services.
        streaming: Whether ``query`` returns a stream.
        callback_manager: Receives LlamaIndex's callbacks; ``Settings.callback_manager`` if None.
    """

    def __init__(
        self, core: C, *, streaming: bool = False, callback_manager: CallbackManager | None = None
    ) -> None:
        self._core: C = core
        self._streaming = streaming
        super().__init__(callback_manager=callback_manager or Settings.callback_manager)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core!r})"

    @property
    def core(self) -> C:
        """The method with its options and services; what a calibration is made with."""
        return self._core

    def to_dict(self) -> dict[str, Any]:
        """Return options, prompts and the models' names as plain values; no key is in it."""
        return {**self._core.to_dict(), "streaming": self._streaming}

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what the retriever finds, postprocessed, whatever the method would decide."""
        return self._retriever.nodes(bundle_of(query_bundle))[: self._top_n]

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``retrieve``."""
        return (await self._retriever.anodes(bundle_of(query_bundle)))[: self._top_n]

    @property
    def _retriever(self) -> NodeRetriever:
        retriever: NodeRetriever = self._core.services.retriever  # type: ignore[assignment]  # engines are built so
        return retriever

    @property
    def _top_n(self) -> int | None:
        top_n: int | None = getattr(self._core, "top_n", None)
        return top_n

    def _get_prompts(self) -> PromptDictType:
        return llama_templates(getattr(self._core, "prompts", {}))

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        replaced = {**getattr(self._core, "prompts", {}), **as_templates(prompts)}
        self._core = self._core.with_options(prompts=replaced)

    def _scope(self, bundle: QueryBundle) -> QueryScope:
        return QueryScope(self._core.services, bundle, self._core.answer_tokens)

    def _program(self, bundle: QueryBundle) -> Program[R]:
        program: Program[R] = self._core.program(bundle.query_str)
        return program

    def _response(self, result: R) -> RESPONSE_TYPE:
        """Return a result as LlamaIndex's response."""
        raise NotImplementedError

    def _answered(self, bundle: QueryBundle) -> RESPONSE_TYPE:
        services = self._scope(bundle).services
        return self._response(run(self._program(bundle), services, on_event=dispatch))

    async def _aanswered(self, bundle: QueryBundle) -> RESPONSE_TYPE:
        services = self._scope(bundle).services
        return self._response(await arun(self._program(bundle), services, on_event=dispatch))

    @dispatcher.span
    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            try:
                response = self._answered(query_bundle)
            except EmptyIndexError:
                response = nothing(self._streaming)
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    @dispatcher.span
    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            try:
                response = await self._aanswered(query_bundle)
            except EmptyIndexError:
                response = nothing(self._streaming, awaited=True)
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response


def nothing(streaming: bool, *, awaited: bool = False) -> RESPONSE_TYPE:
    """Return what LlamaIndex's synthesizers answer from no node at all."""

    async def apieces() -> Any:
        yield NOTHING

    if not streaming:
        return Response(NOTHING, metadata={})
    if awaited:
        return AsyncStreamingResponse(apieces(), metadata={})
    return StreamingResponse((piece for piece in [NOTHING]), metadata={})


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
    results: list[Any] = []
    if postprocessors is not None:
        results = list(postprocessors) if isinstance(postprocessors, list | tuple) else [postprocessors]
    for one in results:
        if not isinstance(one, BaseNodePostprocessor):
            raise ConfigurationError(
                f"node_postprocessors holds a {type(one).__name__}",
                hint="pass a list of LlamaIndex's node postprocessors",
            )
    for postprocessor in results:
        postprocessor.callback_manager = manager or Settings.callback_manager
    return results
