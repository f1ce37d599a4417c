"""The base of evaluators: an example as LangSmith hands it over, and one failure that is its own."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from langchain_core.documents import Document
from langchain_core.runnables import ensure_config
from pydantic import Field

from langchain_surerag._driving import arun, run
from langchain_surerag._events import Announcing, announcer
from langchain_surerag.documents import passages_of
from langchain_surerag.parts import AdaptedPart
from surerag import Passage
from surerag.component import Component
from surerag.effects import Program
from surerag.errors import MISCONFIGURED, InputError, SureragError
from surerag.messages import Event

logger = logging.getLogger("surerag")

T = TypeVar("T", bound=Component[Any, Any])
R = TypeVar("R")

Key = str | Callable[[Mapping[str, Any]], Any]
"""A key of a mapping, or a function that takes the value out of it."""

_QUESTIONS = ("question", "input", "query")
_CONTEXTS = ("documents", "contexts", "context", "source_documents", "output")
_GOLDS = ("answers", "answer", "reference", "expected", "output")
_TEXTS = ("page_content", "text", "content")


class Given(NamedTuple):
    """What a system was asked, what it returned, and what it should have returned."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    reference_outputs: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        run: Any,
        example: Any,
        inputs: Mapping[str, Any] | None,
        outputs: Mapping[str, Any] | None,
        reference_outputs: Mapping[str, Any] | None,
    ) -> Self:
        """Take the mappings, and what they leave out from run and example."""
        return cls(
            inputs or getattr(example, "inputs", None) or getattr(run, "inputs", None) or {},
            outputs or getattr(run, "outputs", None) or {},
            reference_outputs or getattr(example, "outputs", None) or {},
        )

    def question(self, key: Key | None) -> str:
        """Return the question, from the inputs.

        Raises:
            InputError: If there is none.
        """
        found = _found(key, _QUESTIONS, self.inputs)
        if not isinstance(found, str):
            raise _missing("question", "question_key", found, self.inputs)
        return found

    def golds(self, key: Key | None) -> list[str]:
        """Return the gold answers, from the reference outputs.

        Raises:
            InputError: If there are none, or not all of them are texts.
        """
        found = _found(key, _GOLDS, self.reference_outputs)
        golds = [found] if isinstance(found, str) else found
        if not isinstance(golds, list | tuple) or not all(isinstance(gold, str) for gold in golds):
            raise _missing("gold answer", "gold_key", found, self.reference_outputs)
        return list(golds)

    def passages(self, key: Key | None) -> list[Passage]:
        """Return the documents that have text, from the outputs, or under a key from the inputs.

        Raises:
            InputError: If there are none, or one cannot be read.
        """
        found = _contexts(key, self.outputs)
        if found is None and not callable(key):
            found = _contexts(key, self.inputs)
        items = [found] if isinstance(found, str | Document) else found
        if not isinstance(items, list | tuple):
            raise _missing("list of documents", "contexts_key", found, {**self.inputs, **self.outputs})
        passages = [passage for passage in map(_passage, items) if passage.text.strip()]
        if not passages:
            raise InputError("there is no document with text", hint="evaluate runs that retrieved something")
        return passages


class ExampleEvaluator(AdaptedPart[T], Generic[T, R]):
    """An evaluator for ``langsmith.evaluate`` around a method; ``R`` is the method's result.

    Attributes:
        llm: The reader: a chat model or LLM, with bindings, retries and fallbacks around it if any; or a
            reader of surerag.
        entailer: Judges whether answers mean the same.
        question_key: Where the question is, in the inputs: a key, or a function of the mapping. By default
            under ``question``, ``input`` or ``query``.
        contexts_key: Where the documents are, in the outputs (or, under a key, in the inputs): a list of
            documents, texts or their JSON. By default under ``documents``, ``contexts``, ``context``,
            ``source_documents`` or ``output``.
        key: Name of the feedback, or its beginning.
    """

    METHOD: ClassVar[str]
    """The method's name in events."""

    llm: Any = Field(default=None, exclude=True, repr=False, kw_only=False)
    entailer: Any = Field(default=None, exclude=True, repr=False, kw_only=False)
    question_key: Key | None = None
    contexts_key: Key | None = None
    key: str

    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __init__(self, llm: Any = None, entailer: Any = None, **options: Any) -> None:
            services: dict[str, Any] = {"llm": llm, "entailer": entailer}
            super().__init__(**services, **options)

    @property
    def __name__(self) -> str:
        """What LangSmith calls the evaluator's own traces."""
        return self.key

    def __call__(
        self,
        run: Any = None,
        example: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        reference_outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Measure one example; the mappings win over what run and example hold.

        Args:
            run: LangSmith's run, with inputs and outputs.
            example: LangSmith's example, with inputs and reference outputs.
            inputs: What the system was asked.
            outputs: What it returned, documents among it.
            reference_outputs: Gold answers, for evaluators that need them.

        Returns:
            ``{"results": [...]}``, as LangSmith takes it.
        """
        return self._feedback(self._found(Given.of(run, example, inputs, outputs, reference_outputs)))

    async def acall(
        self,
        run: Any = None,
        example: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        reference_outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Measure one example without blocking the event loop; see :meth:`__call__`."""
        given = Given.of(run, example, inputs, outputs, reference_outputs)
        return self._feedback(await self._afound(given))

    @abstractmethod
    def _program(self, given: Given) -> Program[R]:
        """Return the method at work on an example.

        Raises:
            InputError: If something is missing, or cannot be read.
        """

    @abstractmethod
    def _results(self, found: R) -> list[dict[str, Any]]:
        """Return feedback on a measurement."""

    def _checked(self, found: R) -> R:
        """Return a measurement that tells something.

        Raises:
            InputError: If it does not.
        """
        return found

    @property
    def _main_key(self) -> str:
        """The feedback that a failure stands under."""
        return self.key

    def _found(self, given: Given) -> R | str:
        """Return the measurement, or why there is none."""
        on_event = announcer(ensure_config())
        try:
            return self._checked(run(self._program(given), self.core.services, on_event=on_event))
        except MISCONFIGURED:
            raise
        except Exception as error:
            return self._reason(given, error, on_event)

    async def _afound(self, given: Given) -> R | str:
        async with Announcing(ensure_config()) as on_event:
            try:
                found = await arun(self._program(given), self.core.services, on_event=on_event)
                return self._checked(found)
            except MISCONFIGURED:
                raise
            except Exception as error:
                return self._reason(given, error, on_event)

    def _reason(self, given: Given, error: Exception, on_event: Callable[[Event], None]) -> str:
        """Say why there is no measurement."""
        # Errors of ours say what to do; of others, the class says more than the message.
        reason = str(error) if isinstance(error, SureragError) else f"{type(error).__name__}: {error}"
        logger.warning("%s.invalid: %s", self.METHOD, reason)
        data = {"inputs": sorted(map(str, given.inputs)), "reason": reason}
        on_event(Event(f"{self.METHOD}.invalid", data, warning=True))
        return reason

    def _feedback(self, found: R | str) -> dict[str, Any]:
        """Return a measurement as LangSmith takes it; what failed is marked as LangSmith marks it."""
        if isinstance(found, str):
            failed = {"key": self._main_key, "score": None, "comment": found, "extra": {"error": True}}
            return {"results": [failed]}
        return {"results": self._results(found)}


def _contexts(key: Key | None, given: Mapping[str, Any]) -> Any:
    if key is not None:
        return _found(key, (), given)
    # A text under "output" is an answer.
    lists = {name for name in _CONTEXTS if isinstance(given.get(name), list | tuple)}
    return _found(None, [name for name in _CONTEXTS if name in lists | {"contexts", "context"}], given)


def _found(key: Key | None, usual: Iterable[str], given: Mapping[str, Any]) -> Any:
    if callable(key):
        return key(given)
    names = usual if key is None else (key,)
    return next((given[name] for name in names if given.get(name) is not None), None)


def _missing(what: str, setting: str, found: Any, given: Mapping[str, Any]) -> InputError:
    where = f"among {sorted(map(str, given))}" if found is None else f"but a {type(found).__name__}"
    return InputError(f"there is no {what} {where}", hint=f"say where it is with {setting}=…")


def _passage(item: Any) -> Passage:
    """Read a document, its text, or what JSON has made of it."""
    if isinstance(item, str):
        return Passage(item)
    if isinstance(item, Document):
        return passages_of([item])[0]
    fields = item.get("kwargs", item) if isinstance(item, Mapping) else {}
    text = _found(None, _TEXTS, fields)
    if not isinstance(text, str):
        raise InputError(
            f"a {type(item).__name__} among the documents has no text",
            hint=f"give documents, texts, or mappings with one of {list(_TEXTS)}",
        )
    return Passage(text, id=str(fields.get("id") or ""))
