"""An option of a method, declared once: its name, type, default, bound and sentence stand in one line.

A method's options are a class of their own::

    @options
    class LazyRAGOptions(Options):
        n_summaries: Annotated[int, Within(1), Doc("Document summaries to join for the first pass.")] = 3

The algorithm takes that class, the public class of the method *is* one (with services beside it), and the
adapters of both frameworks inherit its fields (see :mod:`surerag.adapting`). Every value is checked where it
is set, and every message says what was expected and what was found.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, dataclass_transform, get_args, get_origin

from surerag.errors import ConfigurationError
from surerag.prompts import PromptSet
from surerag.types import ANSWER_TOKENS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Doc:
    """The sentences that explain an option, wherever it is shown."""

    text: str


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number.

    Attributes:
        least: Smallest value.
        most: Largest value.
        above: Whether ``least`` itself is out of bounds.

    Example:
        >>> print(Within(1), "|", Within(0, 1, above=True), "|", Within(-1, 1))
        at least 1 | in (0, 1] | in [-1, 1]
    """

    least: float = -math.inf
    most: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (value > self.least if self.above else value >= self.least) and value <= self.most

    def __str__(self) -> str:
        if self.most == math.inf:
            return f"{'above' if self.above else 'at least'} {self.least:g}"
        return f"in {'(' if self.above else '['}{self.least:g}, {self.most:g}]"


AnswerTokens = Annotated[
    int | None,
    Within(1),
    Doc(f"Length of an answer, at most; None is the model's own limit, else {ANSWER_TOKENS} tokens."),
]
"""The option ``max_tokens`` of methods that answer."""

RefusalOption = Annotated[
    str | None,
    Doc(
        """What to answer where nothing supports an answer, such as ``"I do not know."``, in any language: the
        model is asked for these words, and an answer that consists of them is no answer, however sure the
        model is of it. None asks for an answer in any case."""
    ),
]
"""The option ``refusal`` of methods that answer."""

SameLanguage = Annotated[
    bool, Doc("Whether to ask for an answer in the language of the question, whatever that of the passages.")
]
"""The option ``same_language`` of methods that answer."""

StopTexts = Annotated[tuple[str, ...], Doc("Texts that end an answer.")]
"""The option ``stop`` of methods that answer."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as it was declared.

    Attributes:
        name: What users call it.
        kind: Its type.
        default: Its default.
        bound: Bounds, for numbers that have them.
        doc: What it does, in sentences.
    """

    name: str
    kind: Any
    default: Any
    bound: Within | None
    doc: str

    def checked(self, value: Any) -> Any:
        """Return a value in the form in which it is kept: a list becomes a tuple.

        Raises:
            ConfigurationError: If the value is of another type, out of bounds or no choice.
        """
        found = _fitted(self.kind, value)
        if found is _UNFIT:
            raise ConfigurationError(f"{self.name} must be {_expected(self)}, got {value!r}")
        if self.bound is not None and isinstance(found, Real) and found not in self.bound:  # type: ignore[operator]  # a number
            raise ConfigurationError(f"{self.name} must be {self.bound}, got {value!r}")
        return found


class Options:
    """Base of every class that has options: checks them when it is made, copies with changes, writes down.

    Attributes:
        OPTIONS: Every option by its name.
        PROMPTS: The method's prompts, for classes with an option ``prompts``: what is given there replaces
            prompts of the same name.

    Raises:
        ConfigurationError: If a value is of the wrong type or out of bounds, or a name is unknown.
        PromptError: If a prompt has an unknown name, or the wrong slots.
    """

    OPTIONS: ClassVar[Mapping[str, Option]] = MappingProxyType({})
    PROMPTS: ClassVar[PromptSet] = PromptSet()

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse unknown names before anything else."""
        check_names(cls, given)
        return super().__new__(cls)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Explain the options in the help of a class that takes them over."""
        super().__init_subclass__(**arguments)
        if cls.OPTIONS:
            cls.__doc__ = _explained(cls)

    def __post_init__(self) -> None:
        """Check every option, and keep it in its own form."""
        for name, value in checked(type(self), {name: getattr(self, name) for name in self.OPTIONS}).items():
            object.__setattr__(self, name, value)

    @property
    def answer_tokens(self) -> int:
        """Length of an answer, at most: the option ``max_tokens``, or a default where that is None."""
        return getattr(self, "max_tokens", None) or ANSWER_TOKENS

    def chosen(self) -> dict[str, Any]:
        """Return the value of every option, by its name."""
        return {name: getattr(self, name) for name in self.OPTIONS}

    def with_options(self, **changes: Any) -> Self:
        """Return a copy with other options or services."""
        check_names(type(self), changes)
        return replace(self, **changes)  # type: ignore[type-var]  # every class with options is a dataclass


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(declared: type[T]) -> type[T]:
    """Make a class that declares options: a frozen dataclass whose help lists them.

    Raises:
        TypeError: If an option comes without its sentence, or with a default that it would refuse.
    """
    made = dataclass(frozen=True, kw_only=True)(declared)
    hints = typing.get_type_hints(made, include_extras=True)
    found = {item.name: _declared(item.name, hints[item.name], item.default) for item in fields(made)}  # type: ignore[arg-type]  # a dataclass
    made.OPTIONS = MappingProxyType(found)  # type: ignore[attr-defined]  # of Options
    made.__doc__ = _explained(made)
    return made


F = TypeVar("F", bound=Callable[..., Any])


def takes(declared: type[Options]) -> Callable[[F], F]:
    """Let a function with ``**options`` show a method's options in its signature and help.

    For factories of classes that are no pydantic models; the method's class checks the options.
    """

    def taking(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        names = {one.name for one in own}
        more = [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.kind
            )
            for option in declared.OPTIONS.values()
            if option.name not in names
        ]
        known = [*names, *(one.name for one in more)]

        @wraps(function)
        def checked_first(*args: Any, **given: Any) -> Any:
            check_among(known, given, function.__qualname__)
            return function(*args, **given)

        checked_first.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]  # read by inspect
        own_help = inspect.cleandoc(function.__doc__ or "")
        checked_first.__doc__ = f"{own_help}\n\n{described(declared.OPTIONS.values())}"
        return checked_first  # type: ignore[return-value]  # the same, its names checked first

    return taking


def described(found: Iterable[Option]) -> str:
    """Return what options mean, as a section of a docstring."""
    return "\n".join(["Options:", *(f"    {option.name}: {option.doc}" for option in found)])


def _explained(owner: Any) -> str:
    """Return a class's help with its options at the end."""
    own = inspect.cleandoc(owner.__doc__ or "").split("\n\nOptions:\n")[0]
    return f"{own}\n\n{described(owner.OPTIONS.values())}"


def check_names(owner: type, given: Iterable[str]) -> None:
    """Refuse names that a class does not know, and name the near ones.

    Raises:
        ConfigurationError: If there are any.
    """
    known = {
        *getattr(owner, "OPTIONS", ()),
        *getattr(owner, "model_fields", ()),
        *getattr(owner, "__dataclass_fields__", ()),
        *_named(owner.__init__),  # type: ignore[misc]  # the class's own
    }
    check_among((name for name in known if not name.startswith("_")), given, owner.__name__)


def _named(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that can be given by name."""
    _, *parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


_ALSO_CALLED = {
    "k": ("top_n",),
    "similarity_top_k": ("top_n",),
    "model": ("llm", "reader"),
    "llm": ("reader",),
    "embeddings": ("embed_model", "encoder"),
    "embed_model": ("embeddings", "encoder"),
    "tau": ("threshold",),
    "theta": ("threshold",),
    "max_new_tokens": ("max_tokens",),
    "templates": ("prompts",),
}
"""What frameworks, papers and habit call an option, and what it may be called here."""


def check_among(known: Iterable[str], given: Iterable[str], owner: str) -> None:
    """Refuse names that are not among the known ones, and name the near ones.

    Raises:
        ConfigurationError: If there are any.
    """
    names = sorted(known)
    for name in given:
        if name not in names:
            meant = [said for said in _ALSO_CALLED.get(name, ()) if said in names]
            near = meant or get_close_matches(name, names, n=2)
            taken = f"It takes {', '.join(names)}"
            raise ConfigurationError(
                f"{owner} has no option {name!r}",
                hint=f"did you mean {' or '.join(near)}? {taken}" if near else taken,
            )


def checked(owner: type[Options], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values in the form in which a class keeps them; names that are no options go through.

    Raises:
        ConfigurationError: If a value is of the wrong type or out of bounds.
        PromptError: If a prompt has an unknown name, or the wrong slots.
    """
    found = {
        name: owner.OPTIONS[name].checked(value) if name in owner.OPTIONS else value
        for name, value in given.items()
    }
    if "prompts" in found and "prompts" in owner.OPTIONS:
        found["prompts"] = owner.PROMPTS.replaced(found["prompts"])
    return found


def plain(value: Any) -> Any:
    """Return a value in terms of JSON: dataclasses as mappings, tuples as lists, functions by their names."""
    if isinstance(value, PromptSet):
        return value.texts()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value) if item.init}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return value


def from_plain(kind: Any, value: Any) -> Any:
    """Return a value of a type from what :func:`plain` made of it."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    for alternative in _alternatives(kind):
        if is_dataclass(alternative) and isinstance(value, Mapping):
            if value.keys() != {item.name for item in fields(alternative) if item.init}:
                continue
            hints = typing.get_type_hints(alternative, include_extras=True)
            return alternative(**{name: from_plain(hints[name], item) for name, item in value.items()})  # type: ignore[operator]  # a class
        if get_origin(alternative) is tuple and isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(from_plain(get_args(alternative)[0], item) for item in value)
    return value


_UNFIT = object()


def _declared(name: str, hint: Any, default: Any) -> Option:
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    docs = [note.text for note in notes if isinstance(note, Doc)]
    if not docs:
        raise TypeError(f"the option {name} has no Doc")
    bound = next((note for note in notes if isinstance(note, Within)), None)
    option = Option(name, kind, default, bound, " ".join(docs[0].split()))
    option.checked(default)
    return option


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _fitted(kind: Any, value: Any) -> Any:
    """Return a value as a type keeps it, or that it does not fit."""
    for alternative in _alternatives(kind):
        found = _fitted_one(alternative, value)
        if found is not _UNFIT:
            return found
    return _UNFIT


def _fitted_one(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if origin is Annotated or origin in (typing.Union, types.UnionType):
        return _fitted(get_args(kind)[0] if origin is Annotated else kind, value)
    if kind is Any:
        return value
    if origin is Literal:
        return value if isinstance(value, str | int) and value in get_args(kind) else _UNFIT
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, Sequence):
            return _UNFIT
        items = [_fitted(get_args(kind)[0], item) for item in value]
        return _UNFIT if any(item is _UNFIT for item in items) else tuple(items)
    if is_dataclass(kind) and isinstance(value, Mapping):
        # As :func:`plain` wrote it down: frameworks read what they wrote without :func:`from_plain`.
        written = value.keys() == {item.name for item in fields(kind) if item.init}
        return from_plain(kind, value) if written else _UNFIT
    return value if _is_a(origin or kind, value) else _UNFIT


def _is_a(kind: Any, value: Any) -> bool:
    if kind in (None, types.NoneType):
        return value is None
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is float:
        return not isinstance(value, bool) and isinstance(value, Real) and not math.isnan(value)
    if kind is Callable or kind is typing.get_origin(Callable[..., Any]):
        return callable(value)
    return isinstance(value, kind)


def _expected(option: Option) -> str:
    words = [_worded(kind) for kind in _alternatives(option.kind)]
    return " or ".join(dict.fromkeys(words))


def _worded(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if origin is tuple:
        return f"a list or tuple, each item {_worded(get_args(kind)[0])}"
    words = {
        types.NoneType: "None",
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "True or False",
        Callable: "a function",
    }
    return words.get(origin or kind) or str(getattr(origin or kind, "__name__", kind))
