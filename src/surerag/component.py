"""Base class of all methods, with ``run``, ``arun``, ``run_many``, ``stream`` and their variants.

A method's class declares its services, such as the model, and makes a program. A program is a generator that
works on one case, such as one question::

    class LazyRAG(LazyRAGOptions, Component[LazyRAGResult]):
        reader: Service[Reader]

        def _connect(self) -> Services:
            return Services(reader=self.reader)

        def program(self, question: str) -> Program[LazyRAGResult]:
            return lazy_rag(question, self)
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sized
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import Field, PrivateAttr, SkipValidation, model_validator

from surerag import drivers
from surerag.drivers.session import Listener
from surerag.drivers.streaming import AnswerStream, AsyncAnswerStream
from surerag.effects import Program
from surerag.errors import InputError
from surerag.options import Options
from surerag.progress import Progress
from surerag.readers.protocol import Capabilities
from surerag.services import Services

R = TypeVar("R")
T = TypeVar("T")
Service = Annotated[T, SkipValidation, Field(exclude=True, repr=False)]
"""Type of a field for a model, retriever or encoder. Copies of a component share the object.
The field is not serialised."""
Function = Annotated[T, Field(exclude=True, repr=False)]
"""Type of a field for a function or None; pydantic checks that the value is callable."""


class Component(Options, Generic[R]):
    """A method with its options and services; ``R`` is the type of the result of one case.

    A case is one input, such as a question. Options and services are checked at construction and at each
    assignment.

    Raises:
        ConfigurationError: If an option is out of bounds, or a service has the wrong type.
        MissingServiceError: If a service is missing.
        CapabilityError: If a service lacks a capability that the method needs.
    """

    TITLE: ClassVar[str] = ""
    """Name of the method as in its paper; only the main class of a method has a title."""

    JUDGES: ClassVar[bool] = False
    """Whether the method needs a judge of entailment, such as an NLI model or a reader."""

    on_event: Function[Listener | None] = None
    """Function that is called with each decision and each warning as soon as they occur. The
    function sees the context variables (``contextvars``) of the caller."""

    _services: Services = PrivateAttr()

    @model_validator(mode="after")
    def _check_services(self) -> Self:
        self._services = self._connect()
        return self

    def _connect(self) -> Services:
        """Check the fields that hold services, and return a ``Services`` object with them."""
        raise NotImplementedError

    @classmethod
    def options_for(cls, capabilities: Capabilities) -> dict[str, Any]:
        """Return values of options that suit a reader with these capabilities, by the options' names."""
        return {}

    @property
    def services(self) -> Services:
        """The models and retrievers of the method; code of your own can run :meth:`program` with them."""
        return self._services

    @property
    def answer_tokens(self) -> int | None:
        """Maximum length of an answer in tokens: ``max_tokens`` or the reader's default; None is no limit."""
        return self._services.answer_tokens(getattr(self, "max_tokens", None))

    def program(self, *case: Any, **more: Any) -> Program[R]:
        """Return the method's generator for one case; it yields requests, and a driver sends the replies."""
        raise NotImplementedError

    def run(self, *case: Any, **more: Any) -> R:
        """Return the result of one case; arguments and errors are those of :meth:`program`."""
        return drivers.run(self.program(*case, **more), self.services, on_event=self.on_event)

    async def arun(self, *case: Any, **more: Any) -> R:
        """Return the result of one case without blocking the event loop."""
        return await drivers.arun(self.program(*case, **more), self.services, on_event=self.on_event)

    def run_many(
        self,
        cases: Iterable[Any],
        *,
        window: int = 64,
        progress: Progress = False,
        return_exceptions: bool = False,
    ) -> list[R]:
        """Return the results of many cases, in order; local models process the cases in batches.

        Args:
            cases: The arguments of :meth:`program` for each case; pass several arguments as a tuple.
            window: Maximum number of cases that are in progress at once.
            progress: True shows a progress bar on a terminal. A function is called with the number of
                finished cases and the total number, which is None if ``cases`` has no length.
            return_exceptions: Whether a failed case yields its exception as its result.

        Raises:
            Exception: The first failure, unless ``return_exceptions`` is true.
        """
        return drivers.run_many(
            self._programs(cases),
            self.services,
            window=window,
            on_event=self.on_event,
            progress=progress,
            return_exceptions=return_exceptions,
        )

    async def arun_many(self, cases: Iterable[Any], **options: Any) -> list[R]:
        """Return the results of many cases without blocking the event loop; see :meth:`run_many`."""
        return await drivers.arun_many(
            self._programs(cases), self.services, on_event=self.on_event, **options
        )

    def iter_many(self, cases: Iterable[Any], *, window: int = 64) -> Iterator[R]:
        """Yield the result of each case, in the order of the cases; results are not stored.

        A result is yielded when it and the results of all earlier cases are ready.

        Raises:
            Exception: The error of the first failed case, in place of its result.
                ``surerag.drivers.iter_many`` can yield exceptions instead.
        """
        return drivers.iter_many(self._each(cases), self.services, window=window, on_event=self.on_event)

    def aiter_many(self, cases: Iterable[Any], *, window: int = 64) -> AsyncIterator[R]:
        """Yield the result of each case without blocking the event loop; see :meth:`iter_many`."""
        return drivers.aiter_many(self._each(cases), self.services, window=window, on_event=self.on_event)

    def to_dict(self) -> dict[str, Any]:
        """Return the options and the names of the services as JSON values; no API key is included."""
        names = {
            name: service.name
            for name in type(self).model_fields
            if isinstance(getattr(service := getattr(self, name), "name", None), str)
            and name not in self.option_names()
        }
        return {**self.model_dump(mode="json", include=set(self.option_names())), **names}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], **services: Any) -> Self:
        """Rebuild a method from the result of :meth:`to_dict`.

        Pass services, and options that are functions, as keyword arguments; JSON cannot hold them.
        """
        options = {
            name: value
            for name, value in settings.items()
            if name not in cls.model_fields or name in cls.option_names()
        }
        return cls(**{**options, **services})

    def _programs(self, cases: Iterable[Any]) -> Iterable[Program[R]]:
        programs = self._each(cases)
        return list(programs) if isinstance(cases, Sized) else programs

    def _each(self, cases: Iterable[Any]) -> Iterator[Program[R]]:
        if isinstance(cases, str) or not isinstance(cases, Iterable):
            raise InputError(
                f"cases must be a list, got {'a text' if isinstance(cases, str) else type(cases).__name__}",
                hint="pass [question] for one question, or call run or arun",
            )
        return (self._program_of(case) for case in cases)

    def _program_of(self, case: Any) -> Program[R]:
        arguments = case if isinstance(case, tuple) else (case,)
        signature = inspect.signature(self.program)
        try:
            signature.bind(*arguments)
        except TypeError:
            names = [
                item.name for item in signature.parameters.values() if item.default is inspect.Parameter.empty
            ]
            raise InputError(
                f"a case of {type(self).__name__} is ({', '.join(names)}), got {len(arguments)} values",
                hint=f"pass a list of tuples ({', '.join(names)})",
            ) from None
        return self.program(*arguments)


class AnsweringComponent(Component[R], Generic[R]):
    """A method that answers questions, and retrieves or rewrites only if its model is uncertain."""

    def stream(self, *case: Any, **more: Any) -> AnswerStream[R]:
        """Return a stream of the answer's text; its ``events`` hold the decisions that the method made."""
        return drivers.stream(self.program(*case, **more), self.services, on_event=self.on_event)

    async def astream(self, *case: Any, **more: Any) -> AsyncAnswerStream[R]:
        """Return an asynchronous stream of the answer's text; see :meth:`stream`."""
        return await drivers.astream(self.program(*case, **more), self.services, on_event=self.on_event)
