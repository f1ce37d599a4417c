"""The base of evaluators of retrieval: one item at a time, under one limit, and no failure but its own."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    StreamingResponse,
)
from llama_index.core.evaluation import BaseEvaluator, EvaluationResult
from llama_index.core.llms import LLM
from llama_index.core.settings import Settings
from pydantic import Field, PrivateAttr

from llama_index_surerag._fanout import Turns
from llama_index_surerag._fields import Judge, Model
from llama_index_surerag._observing import Watch, observed
from llama_index_surerag.events import dispatch, evaluated
from llama_index_surerag.nodes import passages_of
from llama_index_surerag.prompts import AdaptedPart
from surerag import Passage, arun, run
from surerag.component import Component
from surerag.effects import Program
from surerag.errors import CapabilityError, ConfigurationError, InputError, RefusedError, SureragError
from surerag.messages import Event
from surerag.readers import Reader
from surerag.readers.threads import in_thread
from surerag.services import Entailer

logger = logging.getLogger("surerag")

T = TypeVar("T", bound=Component[Any, Any])
E = TypeVar("E", bound=EvaluationResult)


class Item(NamedTuple):
    """What an evaluator was handed, whatever it is.

    Attributes:
        query: The question.
        response: The pipeline's answer; carried along, not measured.
        contexts: What was retrieved.
        others: Further arguments, by name; some may be meant for other evaluators of the same batch.
    """

    query: Any
    response: Any
    contexts: Any
    others: Mapping[str, Any]

    def question(self) -> str:
        """Return the query.

        Raises:
            InputError: If there is none.
        """
        if not isinstance(self.query, str):
            raise InputError("there is no query", hint="pass query=…")
        return self.query

    def passages(self) -> list[Passage]:
        """Return the contexts that have text.

        Raises:
            InputError: If there are none, or something else than texts is among them.
        """
        found = [Passage(text) for text in texts("contexts", self.contexts) if text.strip()]
        if not found:
            raise InputError(
                "there are no contexts with text",
                hint="pass contexts=…, or a response whose source nodes have text",
            )
        return found

    def told(self) -> dict[str, Any]:
        """Return what a result repeats of it, as far as it is text."""
        return {
            "query": self.query if isinstance(self.query, str) else None,
            "response": self.response if isinstance(self.response, str) else None,
            "contexts": texts_or_none("contexts", self.contexts),
        }


class MethodEvaluator(AdaptedPart[T], BaseEvaluator, Generic[T, E]):
    """An evaluator around a method that measures what was retrieved.

    Attributes:
        llm: The reader: a LlamaIndex LLM, or a reader of surerag; ``Settings.llm`` if left out.
        entailer: Judges whether answers mean the same.
        window: Items that are measured at a time, over all callers. A reader over an LLM has a limit of its
            own on requests; see ``max_concurrency`` of :func:`llama_index_surerag.reader_from_llm`.
    """

    METHOD: ClassVar[str]
    """The method's name in events."""

    llm: Model = Field(default=None, exclude=True, repr=False)
    entailer: Judge = Field(default=None, exclude=True, repr=False)
    window: int = 16

    _turns: Turns = PrivateAttr(default_factory=lambda: Turns(1))

    def __init__(
        self,
        llm: LLM | Reader | None = None,
        entailer: Entailer | LLM | Reader | None = None,
        **options: Any,
    ) -> None:
        services: dict[str, Any] = {"llm": Settings.llm if llm is None else llm, "entailer": entailer}
        super().__init__(**services, **options)

    def evaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> E:
        """Measure a response's source nodes, as they are shown to an LLM. A stream is left unread."""
        found: E = self.evaluate(query, *shown(response), **kwargs)  # type: ignore[assignment]  # the class's own result
        return found

    async def aevaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> E:
        """Like ``evaluate_response``, without blocking the event loop."""
        found: E = await self.aevaluate(query, *shown(response), **kwargs)  # type: ignore[assignment]  # as above
        return found

    @abstractmethod
    def _case(self, item: Item) -> tuple[Any, ...]:
        """Return what the method measures.

        Raises:
            InputError: If something is missing, or cannot be read.
        """

    @abstractmethod
    def _parts(self, found: Any) -> dict[str, Any]:
        """Return what the method found, as fields of a result."""

    @abstractmethod
    def _result(self, item: Item, parts: Mapping[str, Any]) -> E:
        """Return a result for an item."""

    def _evaluated(self, item: Item) -> E:
        try:
            [found] = self._turns.map(self._measured, [self._case(item)])
            parts = self._parts(found)
            evaluated(self.METHOD, item.question(), parts)
            return self._result(item, parts)
        except (CapabilityError, RefusedError):
            # So would every other item be: a column of invalid results would say it too late.
            raise
        except Exception as error:
            return self._invalid(item, error)

    async def _aevaluated(self, item: Item) -> E:
        try:
            [found] = await self._turns.amap(self._ameasured, [self._case(item)])
            parts = self._parts(found)
            evaluated(self.METHOD, item.question(), parts)
            return self._result(item, parts)
        except (CapabilityError, RefusedError):
            # So would every other item be: a column of invalid results would say it too late.
            raise
        except Exception as error:
            return self._invalid(item, error)

    def _invalid(self, item: Item, error: Exception) -> E:
        """Return a result that says why there is none, and say so."""
        # Errors of ours say what to do; of others, the class says more than the message.
        reason = str(error) if isinstance(error, SureragError) else f"{type(error).__name__}: {error}"
        logger.warning("%s.invalid: %s", self.METHOD, reason)
        data = {"question": item.told()["query"] or "", "reason": reason}
        dispatch(Event(f"{self.METHOD}.invalid", data, warning=True))
        return self._result(item, {"invalid_result": True, "invalid_reason": reason})

    def _measured(self, case: tuple[Any, ...]) -> Any:
        return run(self._observed(case), self.core.services, on_event=dispatch)

    async def _ameasured(self, case: tuple[Any, ...]) -> Any:
        return await arun(self._observed(case), self.core.services, on_event=dispatch)

    def _observed(self, case: tuple[Any, ...]) -> Program[Any]:
        watch = Watch(Settings.callback_manager)
        return observed(self._program(*case), self.core.services, watch)

    def _program(self, *case: Any) -> Program[Any]:
        """Return the method at work on what it measures."""
        return self.core.program(*case)

    def _build(self) -> None:
        if self.window < 1:
            raise ConfigurationError(f"window must be at least 1, got {self.window!r}")
        super()._build()
        if self._turns.max_concurrency != self.window:
            self._turns = Turns(self.window)


class Shown(NamedTuple):
    """What a pipeline answered, and what it showed to its LLM."""

    response: str | None
    contexts: list[str] | None


def shown(response: RESPONSE_TYPE | None) -> Shown:
    """Return a response's text, as far as there is one, and its source nodes; a stream is left unread."""
    if response is None:
        return Shown(None, None)
    text: str | None
    if isinstance(response, StreamingResponse | AsyncStreamingResponse):
        text = response.response_txt
    else:
        text = None if response.response is None else str(response)
    return Shown(text, [passage.text for passage in passages_of(response.source_nodes)])


def read(response: RESPONSE_TYPE) -> RESPONSE_TYPE:
    """Read a stream to its end: an engine's connection stays open otherwise."""
    return response.get_response() if isinstance(response, StreamingResponse) else response


async def aread(response: RESPONSE_TYPE) -> RESPONSE_TYPE:
    """Like :func:`read`, without blocking the event loop."""
    if isinstance(response, AsyncStreamingResponse):
        return await response.get_response()
    return await in_thread(read, response) if isinstance(response, StreamingResponse) else response


def texts(name: str, given: Any) -> list[str]:
    """Return nothing, one text or several as a list.

    Args:
        name: What to call it in an error.
        given: Whatever was passed in.

    Raises:
        InputError: If something else than texts is among them.
    """
    if given is None:
        return []
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    found = list(given) if several else [given]
    strange = [type(item).__name__ for item in found if not isinstance(item, str)]
    if strange:
        raise InputError(f"{name} holds a {strange[0]}", hint=f"pass {name} as a text or a list of texts")
    return found


def texts_or_none(name: str, given: Any) -> list[str] | None:
    """Return texts, or None where there are none, or something else is among them."""
    try:
        return texts(name, given) or None
    except InputError:
        return None
