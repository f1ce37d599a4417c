"""The base of the query engines: a method, its prompts as templates, spans, events and callbacks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar, cast

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
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_surerag._observing import Watch, observed, synthesizing
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.prompts import TemplateLike, for_core, plain_template, shown
from llama_index_surerag.services import Asked, bound_to, bundle_of
from surerag import Services, arun, run, run_many
from surerag.component import Component
from surerag.effects import Program
from surerag.errors import ConfigurationError

NOTHING = "Empty Response"
"""What LlamaIndex's synthesizers answer from no node at all."""

T = TypeVar("T", bound=Component[Any, Any])
R = TypeVar("R")


class WithPrompts(Generic[T]):
    """A method whose prompts are LlamaIndex templates.

    Args:
        core: The method with its options and services.
        prompts: Prompts in place of its own, by name.
        llm: What selector templates choose by.

    Raises:
        ConfigurationError: If the core is something else.
        PromptError: If a name is unknown, or a template's slots do not fit.
    """

    def __init__(self, core: T, prompts: Mapping[str, TemplateLike] | None, llm: object) -> None:
        if not isinstance(core, Component):
            raise ConfigurationError(
                f"{type(self).__name__} is built around a method, and got a {type(core).__name__}",
                hint="build it with from_args(…), which takes what a pipeline has",
            )
        self._llm = llm
        self._given: dict[str, TemplateLike] = dict(prompts or {})
        self._core: T = core.with_options(prompts=for_core(self._given, llm))

    def __repr__(self) -> str:
        core = self._core
        told = {
            name: value
            for name, value in core.chosen().items()
            if name != "prompts" and value != core.OPTIONS[name].default
        }
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in told.items())})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy on the same services: a model is never copied by the way."""
        return copy(self)

    @property
    def core(self) -> T:
        """The method with its options and services; what a calibration is made with."""
        return self._core

    def _get_prompts(self) -> PromptDictType:
        return shown(type(self._core).PROMPTS, self._given)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        given = {**self._given, **prompts}
        self._core = self._core.with_options(prompts=for_core(given, self._llm))
        self._given = given

    def _services(self, bundle: QueryBundle) -> Services:
        """Return the services, asking retrievers of the pipeline for this very query."""
        services = self._core.services
        asked = Asked(bundle, getattr(services.retriever, "embed_model", None))
        return replace(
            services,
            retriever=bound_to(services.retriever, asked),
            summaries=bound_to(services.summaries, asked),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return options, prompts and the models' identities as plain values; no key is in it."""
        prompts = {name: plain_template(one, self._llm) for name, one in self._get_prompts().items()}
        return {**self._core.to_dict(), "prompts": prompts}


class MethodEngine(WithPrompts[T], BaseQueryEngine, Generic[T, R]):
    """A query engine around a method that answers questions.

    Args:
        core: The method with its options and services.
        prompts: Prompts in place of its own, by name.
        llm: What selector templates choose by.
        callback_manager: Receives LlamaIndex's callbacks.
    """

    def __init__(
        self,
        core: T,
        prompts: Mapping[str, TemplateLike] | None,
        llm: object,
        callback_manager: CallbackManager | None,
    ) -> None:
        WithPrompts.__init__(self, core, prompts, llm)
        self._streaming = False
        BaseQueryEngine.__init__(self, callback_manager=callback_manager or Settings.callback_manager)

    def _response(self, result: R) -> RESPONSE_TYPE:
        """Return a result as LlamaIndex's response."""
        raise NotImplementedError

    def _answered(self, bundle: QueryBundle, *case: Any) -> RESPONSE_TYPE:
        program = self._observed(self._core.program(bundle.query_str, *case), bundle)
        return self._response(run(program, self._services(bundle), on_event=dispatch))

    async def _aanswered(self, bundle: QueryBundle, *case: Any) -> RESPONSE_TYPE:
        program = self._observed(self._core.program(bundle.query_str, *case), bundle)
        return self._response(await arun(program, self._services(bundle), on_event=dispatch))

    @dispatcher.span
    def synthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Answer from given nodes alone, without deciding anything; from none, as LlamaIndex's own do."""
        bundle = bundle_of(query_bundle)
        if not nodes:
            return self._nothing(bundle)
        response = self._from_nodes(bundle, nodes)
        response.source_nodes.extend(additional_source_nodes or ())
        return response

    @dispatcher.span
    async def asynthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Like ``synthesize``."""
        bundle = bundle_of(query_bundle)
        if not nodes:
            return self._nothing(bundle, awaited=True)
        response = await self._afrom_nodes(bundle, nodes)
        response.source_nodes.extend(additional_source_nodes or ())
        return response

    def _from_nodes(self, bundle: QueryBundle, nodes: Sequence[NodeWithScore]) -> RESPONSE_TYPE:
        """Return the answer from given nodes."""
        raise NotImplementedError

    async def _afrom_nodes(self, bundle: QueryBundle, nodes: Sequence[NodeWithScore]) -> RESPONSE_TYPE:
        """Like ``_from_nodes``."""
        raise NotImplementedError

    def _nothing(self, bundle: QueryBundle, *, awaited: bool = False) -> RESPONSE_TYPE:
        """Return what LlamaIndex's synthesizers answer from no node at all."""

        def pieces() -> Generator[str]:
            yield NOTHING

        async def apieces() -> AsyncGenerator[str]:
            yield NOTHING

        response: RESPONSE_TYPE = Response(NOTHING)
        if self._streaming:
            response = AsyncStreamingResponse(apieces()) if awaited else StreamingResponse(pieces())
        with synthesizing(self.callback_manager, bundle) as done:
            done(response)
        return response

    def _observed(self, program: Program[R], bundle: QueryBundle) -> Program[R]:
        """Return a program whose steps LlamaIndex's instrumentation hears of."""
        return observed(program, self._services(bundle), Watch(self.callback_manager, bundle))

    def query_many(self, queries: Iterable[QueryType]) -> list[Response]:
        """Answer many queries; a local model reads them in merged batches.

        Raises:
            Exception: The first failure, after all other queries were answered.
        """
        bundles = [bundle_of(query) for query in queries]
        programs = [self._observed(self._core.program(one.query_str), one) for one in bundles]
        with self.callback_manager.as_trace("query"):
            results: list[Any] = run_many(programs, self._core.services, on_event=dispatch)
        return [cast("Response", self._response(result)) for result in results]

    @dispatcher.span
    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            response = self._answered(query_bundle)
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    @dispatcher.span
    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            response = await self._aanswered(query_bundle)
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    @classmethod
    def from_defaults(cls, retriever: Any, llm: Any = None, **settings: Any) -> Self:
        """Build an engine as LlamaIndex's own are built; the same arguments as those of ``from_args``."""
        return cast("Self", cast("Any", cls).from_args(retriever, llm, **settings))

    @classmethod
    def from_dict(
        cls, settings: Mapping[str, Any], *, retriever: Any, llm: Any = None, **living: Any
    ) -> Self:
        """Rebuild from :meth:`to_dict`; what is alive is passed in, as to ``from_args``."""
        values = {**loaded(settings), **living}
        return cast("Self", cast("Any", cls).from_args(retriever, llm, **values))


def loaded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``to_dict`` wrote as arguments again; models are only named there, and have to be given."""
    return {name: value for name, value in settings.items() if name not in ("reader", "rewriter")}


def with_manager(
    postprocessors: Sequence[BaseNodePostprocessor] | None, manager: CallbackManager | None
) -> list[BaseNodePostprocessor]:
    """Let postprocessors report to an engine's callback manager, as LlamaIndex's own engines do."""
    found = list(postprocessors or ())
    for postprocessor in found:
        postprocessor.callback_manager = manager or Settings.callback_manager
    return found
