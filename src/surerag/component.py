"""The verbs that the public classes of all methods share.

A method's class names its services and makes a program for one case::

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
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import Field, PrivateAttr, SkipValidation, model_validator

from surerag import drivers
from surerag.drivers.session import Listener
from surerag.drivers.streaming import AnswerStream, AsyncAnswerStream
from surerag.effects import Program
from surerag.errors import InputError
from surerag.options import Options
from surerag.progress import Progress
from surerag.services import Services

R = TypeVar("R")
T = TypeVar("T")
Service = Annotated[T, SkipValidation, Field(exclude=True, repr=False)]
"""Type of a field for a model, retriever or encoder. Copies share the value, and it is never serialised."""
Function = Annotated[T, Field(exclude=True, repr=False)]
"""Type of a field for a function or None; pydantic checks that the value is callable."""


class Component(Options, Generic[R]):
    """A method with its options and services; ``R`` is the result of one case.

    Options and services are checked at construction and at each assignment.

    Raises:
        ConfigurationError: If an option is out of bounds, or a service of the wrong kind.
        MissingServiceError: If a service is missing.
        CapabilityError: If a service cannot do what the method needs.
    """

    on_event: Function[Listener | None] = None
    """Called with decisions and warnings as they happen, in the context of the caller."""

    _services: Services = PrivateAttr()

    @model_validator(mode="after")
    def _check_services(self) -> Self:
        self._services = self._connect()
        return self

    def _connect(self) -> Services:
        """Check the services, and return them."""
        raise NotImplementedError

    @property
    def services(self) -> Services:
        """The services; your own driver needs them together with :meth:`program`."""
        return self._services

    @property
    def answer_tokens(self) -> int | None:
        """Longest answer in tokens: the option ``max_tokens``, or the reader's limit; None for no limit."""
        return self._services.answer_tokens(getattr(self, "max_tokens", None))

    def program(self, *case: Any, **more: Any) -> Program[R]:
        """Return the method's generator for one case; a driver answers the effects that it yields."""
        raise NotImplementedError

    def run(self, *case: Any, **more: Any) -> R:
        """Work on one case in this thread. Arguments and errors are those of :meth:`program`."""
        return drivers.run(self.program(*case, **more), self.services, on_event=self.on_event)

    async def arun(self, *case: Any, **more: Any) -> R:
        """Work on one case without blocking the event loop."""
        return await drivers.arun(self.program(*case, **more), self.services, on_event=self.on_event)

    def run_many(
        self,
        cases: Iterable[Any],
        *,
        window: int = 64,
        progress: Progress = False,
        return_exceptions: bool = False,
    ) -> list[R]:
        """Work on many cases at once; local models read them in merged batches.

        Args:
            cases: The cases; a case with several arguments is a tuple.
            window: Number of cases to work on at a time.
            progress: True shows a bar on a terminal; a callable gets (done, total or None).
            return_exceptions: Return the exception of a failed case in its place, and keep the other results.

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
        """Work on many cases at once without blocking the event loop; options as for :meth:`run_many`."""
        return await drivers.arun_many(
            self._programs(cases), self.services, on_event=self.on_event, **options
        )

    def iter_many(self, cases: Iterable[Any], *, window: int = 64) -> Iterator[R]:
        """Yield the result of each case in order as soon as it is ready; cases and results are not stored.

        Raises:
            Exception: The failure of a case, when its result is due. ``surerag.drivers.iter_many`` can yield
                exceptions instead.
        """
        return drivers.iter_many(self._each(cases), self.services, window=window, on_event=self.on_event)

    def aiter_many(self, cases: Iterable[Any], *, window: int = 64) -> AsyncIterator[R]:
        """Yield results as :meth:`iter_many` does, without blocking the event loop."""
        return drivers.aiter_many(self._each(cases), self.services, window=window, on_event=self.on_event)

    def to_dict(self) -> dict[str, Any]:
        """Return the options and the names of the models as JSON values, without clients and keys."""
        names = {
            name: service.name
            for name in type(self).model_fields
            if isinstance(getattr(service := getattr(self, name), "name", None), str)
            and name not in self.option_names()
        }
        return {**self.model_dump(mode="json", include=set(self.option_names())), **names}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], **services: Any) -> Self:
        """Rebuild a method from :meth:`to_dict`; pass its services, and options that are functions, again."""
        options = {
            name: value
            for name, value in settings.items()
            if name not in cls.model_fields or name in cls.option_names()
        }
        return cls(**{**options, **services})

    def _programs(self, cases: Iterable[Any]) -> Iterable[Program[R]]:
        """Return the programs; as a list if the number of cases is known, so that a progress bar shows it."""
        programs = self._each(cases)
        return list(programs) if isinstance(cases, Sized) else programs

    def _each(self, cases: Iterable[Any]) -> Iterator[Program[R]]:
        if isinstance(cases, str) or not isinstance(cases, Iterable):
            raise InputError(
                f"cases must be a list, got {'a text' if isinstance(cases, str) else type(cases).__name__}",
                hint="pass [question], or call run or arun",
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
                hint="pass a list of such tuples",
            ) from None
        return self.program(*arguments)


class AnsweringComponent(Component[R], Generic[R]):
    """A method that answers questions, and acts if its uncertainty exceeds a threshold.

    Answers can be streamed.
    """

    def stream(self, *case: Any, **more: Any) -> AnswerStream[R]:
        """Stream the answer; the stream's ``events`` hold the decisions that precede the first word."""
        return drivers.stream(self.program(*case, **more), self.services, on_event=self.on_event)

    async def astream(self, *case: Any, **more: Any) -> AsyncAnswerStream[R]:
        """Stream the answer without blocking the event loop."""
        return await drivers.astream(self.program(*case, **more), self.services, on_event=self.on_event)
