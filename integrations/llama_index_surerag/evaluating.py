"""The base of evaluators of retrieval: one item at a time, and no failure that ends a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast

from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    StreamingResponse,
)
from llama_index.core.evaluation import BaseEvaluator, EvaluationResult
from llama_index.core.llms import LLM
from llama_index.core.schema import MetadataMode

from llama_index_surerag.events import dispatch, dispatcher, warn
from llama_index_surerag.llm import reader_of
from llama_index_surerag.prompts import WithPrompts
from surerag.component import Component, Service
from surerag.drivers import arun, run
from surerag.effects import Program
from surerag.errors import InputError
from surerag.messages import Passage
from surerag.readers import Reader
from surerag.services import Entailer

R = TypeVar("R")
E = TypeVar("E", bound=EvaluationResult)
Judge = Entailer | Reader | LLM | None


class MethodEvaluator(WithPrompts, BaseEvaluator, Generic[R, E]):
    """An evaluator around a method that measures what was retrieved.

    An item that cannot be measured (without contexts, or because a model fails) comes back with
    ``invalid_result`` and ``invalid_reason``, with a warning and a ``ProgressEvent``; nothing is raised, as
    that would end a batch.
    """

    METHOD: ClassVar[str]
    """The method's name in events."""

    RESULT: ClassVar[type[EvaluationResult]]
    """Class of the results."""

    llm: Service[LLM | Reader | None] = None
    """The reader: a LlamaIndex LLM, or a reader of surerag; ``Settings.llm`` if None."""

    entailer: Service[Judge] = None
    """Judges whether answers mean the same: an entailer of surerag, or a model that is asked in words."""

    _core: Any

    def __init__(self, llm: LLM | Reader | None = None, entailer: Judge = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "entailer": entailer, **options})

    @property
    def core(self) -> Component[R]:
        """The method with its options and services."""
        core: Component[R] = self._core
        return core

    def judge(self) -> Entailer | Reader | None:
        """Return the entailer, an LLM as a reader."""
        return reader_of(self.entailer) if isinstance(self.entailer, LLM) else self.entailer

    @abstractmethod
    def _program(self, query: str, passages: list[Passage], others: Mapping[str, Any]) -> Program[R]:
        """Return the method at work on one item."""

    @abstractmethod
    def _fields(self, result: R) -> dict[str, Any]:
        """Return the fields of an evaluation result, ``score``, ``passing`` and ``feedback`` among them."""

    @dispatcher.span
    def evaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> E:
        """Measure one item, in the caller's thread.

        Args:
            query: The question.
            response: The pipeline's answer; carried along.
            contexts: What was retrieved; blank ones are left out.
            **kwargs: ``reference``, where the method takes one; arguments of other evaluators are ignored.
        """
        try:
            program = self._program(*_checked(query, contexts), kwargs)
            return self._valid(
                query, response, contexts, run(program, self._core.services, on_event=dispatch)
            )
        except Exception as error:
            return self._invalid(query, response, contexts, error)

    @dispatcher.span
    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> E:
        """Like ``evaluate``, without blocking the event loop."""
        try:
            program = self._program(*_checked(query, contexts), kwargs)
            result = await arun(program, self._core.services, on_event=dispatch)
            return self._valid(query, response, contexts, result)
        except Exception as error:
            return self._invalid(query, response, contexts, error)

    def evaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> E:
        """Measure what a response was given from: its source nodes as an LLM is shown them."""
        if isinstance(response, StreamingResponse):
            response = response.get_response()
        return self.evaluate(query, *_parts(response), **kwargs)

    async def aevaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> E:
        """Like ``evaluate_response``."""
        if isinstance(response, AsyncStreamingResponse):
            response = await response.get_response()
        elif isinstance(response, StreamingResponse):
            response = response.get_response()
        return await self.aevaluate(query, *_parts(response), **kwargs)

    def _valid(self, query: Any, response: Any, contexts: Any, result: R) -> E:
        return self._result(query, response, contexts, **self._fields(result))

    def _invalid(self, query: Any, response: Any, contexts: Any, error: Exception) -> E:
        reason = f"{type(error).__name__}: {error}"
        warn(f"{self.METHOD}.invalid", query=str(query), reason=reason)
        return self._result(query, response, contexts, invalid_result=True, invalid_reason=reason)

    def _result(self, query: Any, response: Any, contexts: Any, **fields: Any) -> E:
        listed = None if contexts is None or isinstance(contexts, str) else [str(one) for one in contexts]
        response = response if isinstance(response, str) else None
        query = query if isinstance(query, str) else None
        return cast("E", self.RESULT(query=query, response=response, contexts=listed, **fields))


def _checked(query: Any, contexts: Any) -> tuple[str, list[Passage]]:
    """Return a question and its contexts with text.

    Raises:
        InputError: If one of them is missing, or something else.
    """
    if not isinstance(query, str):
        raise InputError("there is no query", hint="pass query=…")
    if isinstance(contexts, str) or not all(isinstance(text, str) for text in contexts or ()):
        raise InputError("contexts must be a list of texts", hint="pass contexts=[…]")
    passages = [Passage(text) for text in contexts or () if text.strip()]
    if not passages:
        raise InputError(
            "there are no contexts with text",
            hint="pass contexts=…, or a response whose source nodes have text",
        )
    return query, passages


def _parts(response: Any) -> tuple[str | None, list[str] | None]:
    if response is None:
        return None, None
    nodes = response.source_nodes
    return str(response), [node.node.get_content(metadata_mode=MetadataMode.LLM) for node in nodes]
