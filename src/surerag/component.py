"""The verbs that every public class of a method has, written once.

A method's class says which services answer it and how a program for one case is made; everything else comes
from here::

    @dataclass(frozen=True)
    class LazyRAG(Component[str, LazyRAGResult], LazyRAGOptions):
        reader: Reader = field(repr=False)

        def program(self, question: str) -> Program[LazyRAGResult]:
            return lazy_rag(question, self)

        run, arun = sync(program), asynchronous(program)
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from surerag import drivers
from surerag.drivers.progress import Progress
from surerag.drivers.session import Listener
from surerag.drivers.streaming import AnswerStream, AsyncAnswerStream
from surerag.effects import Program
from surerag.errors import ConfigurationError, InputError
from surerag.options import Options, from_plain, plain
from surerag.services import Services

C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="Component[Any, Any]")


@dataclass(frozen=True)
class Component(Options, Generic[C, R]):
    """A method with its options and services; ``C`` is one case to work on, ``R`` its result.

    Where a case has several parts it is a tuple of them, as :meth:`program` takes them.

    Attributes:
        on_event: Called with decisions and warnings, as they happen, in the context of the caller.
    """

    on_event: Listener | None = field(default=None, kw_only=True, repr=False, compare=False)
    _services: Services = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check options and services.

        Raises:
            ConfigurationError: If an option is out of bounds, or a service of the wrong kind.
            MissingServiceError: If a service is not there.
            CapabilityError: If a service cannot do what the method needs.
        """
        super().__post_init__()
        object.__setattr__(self, "_services", self._connected())

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Let verbs show the names that they were given."""
        super().__init_subclass__(**arguments)
        for name, verb in vars(cls).items():
            if getattr(verb, "of_program", None) is not None:
                verb.__name__, verb.__qualname__ = name, f"{cls.__qualname__}.{name}"

    def _connected(self) -> Services:
        """Return the services, having checked that they do."""
        raise NotImplementedError

    @property
    def services(self) -> Services:
        """Who answers: what a driver of your own needs beside :meth:`program`."""
        return self._services

    @property
    def answer_tokens(self) -> int:
        """Length of an answer, at most: the option ``max_tokens``, or the model's own limit."""
        return self._services.answer_tokens(getattr(self, "max_tokens", None))

    def program(self, *case: Any, **more: Any) -> Program[R]:
        """Return the method at work on one case, for a driver of your own."""
        raise NotImplementedError

    def worst_case_calls(self, passages: int) -> int:
        """Calls that one question can cost: answers asked of models, and pairs asked of an entailer.

        A bound, known before anything is asked; ``max_calls`` lowers it. Retrieving and embedding, and what a
        reader tries again on its own, are no calls.

        Args:
            passages: How many the question comes with, for methods that are given passages.
        """
        raise NotImplementedError

    def run_many(
        self,
        cases: Iterable[C],
        *,
        window: int = 64,
        progress: Progress = False,
    ) -> list[R]:
        """Work on many cases; local models read them in merged batches.

        Args:
            cases: One each; a case of several parts is a tuple.
            window: Cases at work at a time.
            progress: True for a bar on a terminal, or a function of what is done and the total.

        Returns:
            Results in order.

        Raises:
            Exception: The first failure, after all other cases were worked on.
        """
        return drivers.run_many(
            self._all_of(cases), self._services, window=window, on_event=self.on_event, progress=progress
        )

    async def arun_many(self, cases: Iterable[C], *, window: int = 64, progress: Progress = False) -> list[R]:
        """Like :meth:`run_many`, without blocking the event loop."""
        return await drivers.arun_many(
            self._all_of(cases), self._services, window=window, on_event=self.on_event, progress=progress
        )

    def iter_many(self, cases: Iterable[C], *, window: int = 64) -> Iterator[R]:
        """Yield the result of each case in order, as soon as it is there, and keep none.

        Cases are read as there is room: neither they nor their results need fit into memory.

        Raises:
            Exception: A case's failure, in its place.
        """
        return drivers.iter_many(self._each_of(cases), self._services, window=window, on_event=self.on_event)

    def aiter_many(self, cases: Iterable[C], *, window: int = 64) -> AsyncIterator[R]:
        """Like :meth:`iter_many`, without blocking the event loop."""
        return drivers.aiter_many(self._each_of(cases), self._services, window=window, on_event=self.on_event)

    def to_dict(self) -> dict[str, Any]:
        """Return options and the services' identities as plain values; no model, client or key is in it.

        A function goes by its name, and has to be given again to :meth:`from_dict`.
        """
        return {**{name: plain(value) for name, value in self.chosen().items()}, **self._identities()}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], **living: Any) -> Self:
        """Rebuild from :meth:`to_dict`, with living services and functions injected.

        Raises:
            ConfigurationError: If there are settings that this class does not know.
        """
        services = {item.name for item in fields(cls) if item.init} - cls.OPTIONS.keys()
        unknown = sorted(settings.keys() - cls.OPTIONS.keys() - services)
        if unknown:
            raise ConfigurationError(f"unknown settings {unknown}", hint="load what to_dict() gave")
        values = {
            name: from_plain(cls.OPTIONS[name].kind, value)
            for name, value in settings.items()
            if name in cls.OPTIONS
        }
        return cls(**{**values, **living})

    def _identities(self) -> dict[str, str | None]:
        """Return the names of the models among the services."""
        models = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        return {
            name: model.name
            for name, model in models.items()
            if name not in self.OPTIONS and isinstance(getattr(model, "name", None), str)
        }

    def _all_of(self, cases: Iterable[C]) -> Iterable[Program[R]]:
        """Return programs, as many as there are cases where that is known: a progress bar then shows it."""
        programs = self._each_of(cases)
        return list(programs) if isinstance(cases, Sized) else programs

    def _each_of(self, cases: Iterable[C]) -> Iterator[Program[R]]:
        if isinstance(cases, str) or not isinstance(cases, Iterable):
            found = "text" if isinstance(cases, str) else type(cases).__name__
            raise InputError(
                f"cases are a list, and this is a {found}", hint="pass [question], or call run or arun"
            )
        return (self._of(case) for case in cases)

    def _of(self, case: C) -> Program[R]:
        parts = case if isinstance(case, tuple) else (case,)
        try:
            return self.program(*parts)
        except TypeError:
            self._check_parts(parts)
            raise

    def _check_parts(self, parts: tuple[Any, ...]) -> None:
        signature = inspect.signature(self.program)
        try:
            signature.bind(*parts)
        except TypeError:
            known = signature.parameters.values()
            needed = ", ".join(one.name for one in known if one.default is inspect.Parameter.empty)
            raise InputError(
                f"a case of {type(self).__name__} is ({needed}), and this one has {len(parts)} parts",
                hint="pass a list of such tuples",
            ) from None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._made()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return an equal component on the same services: a model is never copied by the way."""
        return self.with_options()

    @classmethod
    def _made(cls) -> set[str]:
        """Names of what is made of the other fields."""
        return {item.name for item in fields(cls) if not item.init}


def sync(program: Callable[Concatenate[S, P], Program[T]]) -> Callable[Concatenate[S, P], T]:
    """Make the verb that works on one case in the caller's thread."""

    @wraps(program)
    def run(self: S, /, *case: P.args, **more: P.kwargs) -> T:
        return drivers.run(program(self, *case, **more), self.services, on_event=self.on_event)

    return _documented(run, "Work on one case, in this thread.")


def asynchronous(
    program: Callable[Concatenate[S, P], Program[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make the verb that works on one case without blocking the event loop."""

    @wraps(program)
    async def arun(self: S, /, *case: P.args, **more: P.kwargs) -> T:
        return await drivers.arun(program(self, *case, **more), self.services, on_event=self.on_event)

    return _documented(arun, "Work on one case, without blocking the event loop.")


def streaming(
    program: Callable[Concatenate[S, P], Program[T]],
) -> Callable[Concatenate[S, P], AnswerStream[T]]:
    """Make the verb that returns an answer piece by piece."""

    @wraps(program)
    def stream(self: S, /, *case: P.args, **more: P.kwargs) -> AnswerStream[T]:
        return drivers.stream(program(self, *case, **more), self.services, on_event=self.on_event)

    return _documented(
        stream, "Answer piece by piece; what was decided before the first word is in the stream's ``events``."
    )


def astreaming(
    program: Callable[Concatenate[S, P], Program[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, AsyncAnswerStream[T]]]:
    """Make the verb that returns an answer piece by piece, without blocking the event loop."""

    @wraps(program)
    async def astream(self: S, /, *case: P.args, **more: P.kwargs) -> AsyncAnswerStream[T]:
        return await drivers.astream(program(self, *case, **more), self.services, on_event=self.on_event)

    return _documented(astream, "Like ``stream``, without blocking the event loop.")


V = TypeVar("V", bound=Callable[..., Any])


def _documented(verb: V, summary: str) -> V:
    """Give a verb its own first line; arguments and errors are those of the program."""
    made: Any = verb
    _, _, rest = (verb.__doc__ or "").partition("\n")
    made.__doc__ = f"{summary}\n{rest}".rstrip()
    # The program's arguments, without its return type, which introspection would find otherwise.
    made.of_program = made.__wrapped__
    made.__signature__ = inspect.signature(made.of_program).replace(return_annotation=inspect.Signature.empty)
    del made.__wrapped__
    return verb
