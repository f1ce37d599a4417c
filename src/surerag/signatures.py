"""Make ``help`` and a notebook's tooltip show a class's options with plain types, bounds and defaults.

Without this module, they show pydantic's validators with memory addresses, and pydantic's internal tables.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ForwardRef,
    Generic,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

F = TypeVar("F", bound=Callable[..., Any])

_BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}


_PYDANTIC = frozenset(dir(BaseModel))
_OPTIONS_ENTRY = re.compile(r"^( +)\*\*options: .*(?:\n\1 +\S.*)*", re.MULTILINE)
"""Pattern of the entry for ``**options`` in a docstring, with its continuation lines."""


@dataclass(frozen=True)
class TypeText:
    """Metadata of an ``Annotated`` type: the text that signatures and docstrings show for the type."""

    text: str


INTERNAL = TypeText("")
"""Metadata of a field that no user sets: no signature and no docstring names the field."""


class Verbatim(str):
    """A text that a signature shows without quotation marks."""

    __slots__ = ()

    __repr__ = str.__str__


class PlainHelp(ModelMetaclass):
    """Metaclass of pydantic models: gives a plain signature, and hides pydantic's names from ``dir``."""

    @property
    def __signature__(self) -> inspect.Signature:
        # Instances do not see a property of the metaclass, so the signature of a callable instance stays the
        # signature of its __call__. A class attribute would replace it.
        if (lazy := vars(self).get("__pydantic_signature__")) is None:
            raise AttributeError("__signature__")
        return _without_validators(lazy.__get__(None, self), self)  # type: ignore[arg-type]  # its classes are models

    @__signature__.setter
    def __signature__(self, lazy: Any) -> None:
        self.__pydantic_signature__ = lazy  # pydantic assigns __signature__ when it builds a class

    def __dir__(self) -> list[str]:
        """Return the names that the class and its bases define, without the names that pydantic defines.

        Example:
            >>> class Options(BaseModel, metaclass=PlainHelp):
            ...     number: int = 1
            ...     def double(self) -> int:
            ...         return 2 * self.number
            >>> [name for name in dir(Options) if "pydantic" in name or name.startswith("model_")]
            []
            >>> "double" in dir(Options)
            True
        """
        return [name for name in super().__dir__() if not _is_machinery(self, name)]


def _is_machinery(kind: type, name: str) -> bool:
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    if owner is None:
        return False
    if owner in (BaseModel, Generic) or name.startswith(("__pydantic", "__get_pydantic")):
        return True
    value = vars(owner)[name]
    if name.startswith("__") and not callable(value) and not isinstance(value, (classmethod, staticmethod)):
        return name not in ("__doc__", "__module__")
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    return name in _PYDANTIC and str(getattr(function, "__module__", "pydantic")).startswith("pydantic")


def type_text(annotation: Any) -> str:
    """Return a type as readable text, without validators.

    Example:
        >>> type_text(Literal["entropy", "margin"] | Annotated[int, Ge(1)] | None)
        "'entropy' | 'margin' | int | None"
        >>> type_text(dict[str, Annotated[Any, TypeText("float")]])
        'dict[str, float]'
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        texts = [item.text for item in arguments[1:] if isinstance(item, TypeText)]
        return texts[0] if texts else type_text(arguments[0])
    if origin in (Union, UnionType):
        return " | ".join(map(type_text, arguments))
    if origin is Literal:
        return " | ".join(map(repr, arguments))
    if isinstance(annotation, list):
        return f"[{', '.join(map(type_text, annotation))}]"
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    if annotation is Ellipsis:
        return "..."
    if annotation in (None, type(None)):
        return "None"
    name = str(getattr(origin or annotation, "__name__", None) or annotation).removeprefix("typing.")
    return f"{name}[{', '.join(map(type_text, arguments))}]" if arguments else name


def field_type(field: FieldInfo) -> str:
    """Return the type of a field as readable text; an empty text for a field marked ``INTERNAL``."""
    texts = [item.text for item in field.metadata if isinstance(item, TypeText)]
    return texts[0] if texts else type_text(field.annotation)


def field_bounds(field: FieldInfo) -> str:
    """Return the bounds of a field in words, such as ``at least 1, below 2``."""
    metadata = [*field.metadata, *_nested_metadata(field.annotation)]
    return ", ".join(
        f"{words} {getattr(item, name):g}"
        for item in metadata
        for kind, (name, words) in _BOUNDS.items()
        if isinstance(item, kind)
    )


def _nested_metadata(annotation: Any) -> Iterator[Any]:
    for argument in get_args(annotation):
        if get_origin(argument) is Annotated:
            for item in get_args(argument)[1:]:
                yield from item.metadata if isinstance(item, FieldInfo) else [item]
        yield from _nested_metadata(argument)


def field_default(field: FieldInfo) -> str:
    """Return the default of a field as it is written in code; empty if the field is required."""
    if field.is_required():
        return ""
    factory: Any = field.default_factory
    value = field.default if factory is None else factory()
    if inspect.isroutine(value) or isinstance(value, type):
        return value.__qualname__
    text = str(value) if isinstance(value, Enum) else repr(value)
    return f"{type(value).__name__}()" if " object at 0x" in text else text


def field_summary(field: FieldInfo) -> str:
    """Return type, bounds and default of a field, such as ``int, at least 1, default 3``."""
    default = field_default(field)
    parts = [field_type(field), field_bounds(field), f"default {default}" if default else ""]
    return ", ".join(part for part in parts if part)


def public_fields(kind: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields that a user sets and that have a description, in the order of the signature."""
    names = [name for name in plain_signature(kind).parameters if name in kind.model_fields]
    return {name: field for name in names if (field := kind.model_fields[name]).description}


def field_lines(kind: type[BaseModel], indent: int = 4) -> list[str]:
    """Return docstring lines that give each field's type, bounds, default and description."""
    first, further = " " * indent, " " * (indent + 4)
    lines = []
    for name, field in public_fields(kind).items():
        # Tools that read docstrings expect a name and its type on one line.
        head = f"{name} ({field_summary(field)}):".replace(" ", "\0")
        text = textwrap.fill(
            f"{head} {field.description}",
            width=100,
            initial_indent=first,
            subsequent_indent=further,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines.append(text.replace("\0", " "))
    return lines


def plain_signature(kind: type[BaseModel]) -> inspect.Signature:
    """Return the signature of a pydantic class, with readable types, and with defaults as written in code."""
    signature = inspect.signature(kind)
    return signature if isinstance(kind, PlainHelp) else _without_validators(signature, kind)


def _without_validators(signature: inspect.Signature, kind: type[BaseModel]) -> inspect.Signature:
    def described(name: str) -> bool:
        field = kind.model_fields.get(name)
        return field is None or bool(field.description)

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        field = kind.model_fields.get(parameter.name)
        if field is None:
            parameters.append(parameter)
        elif text := field_type(field):
            default = parameter.default
            if default is not parameter.empty:
                default = Verbatim(field_default(field) or repr(default))
            parameters.append(parameter.replace(annotation=Verbatim(text), default=default))
    # Required parameters come first; a framework's fields without a description come last.
    keywords = [item for item in parameters if item.kind is item.KEYWORD_ONLY]
    keywords.sort(key=lambda item: (item.default is not item.empty, not described(item.name)))
    parameters = [item for item in parameters if item.kind is not item.KEYWORD_ONLY] + keywords
    return signature.replace(parameters=parameters, return_annotation=signature.empty)


def takes_options(kind: type[BaseModel]) -> Callable[[F], F]:
    """Return a decorator, which shows the fields of ``kind`` in place of the parameter ``**options``.

    The decorator is for functions and classes. The signature lists the fields as keyword arguments. The
    docstring describes them after its entry ``**options:``.

    Example:
        >>> class Options(BaseModel):
        ...     size: int = 3
        >>> @takes_options(Options)
        ... def build(text: str, **options: Any) -> None: ...
        >>> print(inspect.signature(build))
        (text: 'str', *, size: int = 3) -> 'None'
    """

    def show(function: F) -> F:
        # Set the signature on __init__: derived classes inherit a class's attributes, but may have other
        # constructors.
        call: Any = vars(function)["__init__"] if isinstance(function, type) else function
        signature = inspect.signature(call)
        own = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        names = {item.name for item in own}
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Verbatim(field_type(field)),
                default=Verbatim(field_default(field)),
            )
            for name, field in kind.model_fields.items()
            if field_type(field) and name not in names
        ]
        call.__signature__ = signature.replace(parameters=[*own, *added])
        document = inspect.getdoc(function) or ""
        if entry := _OPTIONS_ENTRY.search(document):
            lines = field_lines(kind, indent=len(entry[1]) + 4)
            function.__doc__ = "\n".join([document[: entry.end()], *lines]) + document[entry.end() :]
        return function

    return show
