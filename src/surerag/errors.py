"""One exception per kind of failure, each with a message and a hint on what to do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from types import UnionType
from typing import Any

TROUBLESHOOTING = "https://surerag.github.io/surerag/troubleshooting.html"
"""Page with a section for each class of this file."""


class SureragError(Exception):
    """Base of all errors that surerag raises on purpose.

    A traceback ends with the address of the page that explains the class of the error.

    Attributes:
        message: What happened, without the hint.
        hint: What to do about it.
        retryable: Whether the same call may succeed later.
    """

    retryable: bool = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        sentence = message.removesuffix(".")
        super().__init__(f"{sentence}. {hint[:1].upper()}{hint[1:]}." if hint else message)
        self.message, self.hint = message, hint
        self.add_note(f"More about it: {self.page}")

    @property
    def page(self) -> str:
        """Address of the documentation of this class.

        Example:
            >>> ConfigurationError("no such option").page
            'https://surerag.github.io/surerag/troubleshooting.html#configurationerror'
        """
        kind = next((kind for kind in type(self).__mro__ if kind.__module__ == __name__), SureragError)
        return TROUBLESHOOTING if kind is SureragError else f"{TROUBLESHOOTING}#{kind.__name__.lower()}"


class ConfigurationError(SureragError, ValueError):
    """A setting has a value that cannot work."""


class PromptError(SureragError, ValueError):
    """The slots of a prompt do not match the values to fill in."""


class InputError(SureragError, ValueError):
    """An input (a question, a passage, a file) cannot be used."""


class StorageError(SureragError, OSError):
    """A file or folder cannot be written: the disk is full, read-only or failing, or the path is in use."""


class MissingExtraError(SureragError, ImportError):
    """An optional dependency is not installed; the hint is the pip command that installs it."""


class ServiceError(SureragError, RuntimeError):
    """A reader, encoder, entailer or retriever failed."""


class MissingServiceError(SureragError, TypeError):
    """A method needs a service (reader, encoder, entailer, retriever) that was not passed."""


class CapabilityError(SureragError, TypeError):
    """A service cannot do what a method needs."""


class LogprobsError(ServiceError):
    """Log-probabilities are missing, null or not numbers."""


class ContextLengthError(ServiceError):
    """A prompt does not fit the model's window; the message says by how much.

    Attributes:
        inputs: Inputs of the call that do not fit, as they were passed in; empty if they are not known.
    """

    def __init__(self, message: str, *, hint: str = "", inputs: Sequence[Hashable] = ()) -> None:
        super().__init__(message, hint=hint)
        self.inputs = tuple(inputs)


class ThinkingBudgetError(ServiceError):
    """A model was still thinking when its budget of tokens was spent, so that there is no answer."""


class RefusedError(ServiceError):
    """A service refuses a request because of the key, address, model or a parameter; a retry cannot help.

    Attributes:
        parameters: Fields of the request that the service names as the reason; empty if it names none.
    """

    def __init__(self, message: str, *, hint: str = "", parameters: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.parameters = tuple(parameters)


class LogprobsRefusedError(RefusedError, LogprobsError):
    """A service refuses requests that ask for log-probabilities."""


class TransientServiceError(ServiceError):
    """A service failed in a way that may pass: rate limit, overload, time-out.

    Attributes:
        broken: Whether the connection broke during a reply; clients then do not repeat the request.
    """

    retryable = True
    broken: bool = False


_NOT_THE_USERS = sys.stdlib_module_names | {
    "surerag", "langchain_surerag", "llama_index_surerag", "langchain", "langchain_core", "langchain_classic",
    "langgraph", "llama_index", "llama_index_instrumentation", "workflows", "pydantic", "anyio", "typer",
}  # fmt: skip
"""Top-level packages in which :func:`warn_user` does not look for the user's line."""
MISCONFIGURED = (
    CapabilityError, ConfigurationError, MissingExtraError, MissingServiceError, PromptError, RefusedError
)  # fmt: skip
"""Errors of a misconfigured pipeline; methods raise them and do not fall back to the original input."""


def check_question(question: object) -> None:
    """Raise InputError unless a question is a non-empty text."""
    if not isinstance(question, str):
        raise InputError(
            f"a question is a text, got {kind_of(question)}",
            hint="pass one question; for several questions, call run_many",
        )
    if not question.strip():
        raise InputError("the question is empty", hint="pass a question")


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code, which called this package directly or through a framework."""
    level, frame = 2, sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS and frame.f_back:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def check_at_least(least: float, **settings: float | None) -> None:
    """Check that each setting is None or at least ``least``.

    If ``least`` is an int, each setting must also be a whole number.

    Raises:
        ConfigurationError: If a setting fails the check.
    """
    kind: Any = Integral if isinstance(least, int) else Real
    for name, value in settings.items():
        if value is not None and not (_is_a(kind, value) and value >= least):
            number = "a whole number" if kind is Integral else "a number"
            raise ConfigurationError(f"{name} must be {number} of at least {least}, got {value!r}")


def check_kind(kind: type | UnionType, expected: str, *, hint: str = "", **settings: object) -> None:
    """Raise ConfigurationError unless all settings have the type ``kind``; the message shows no values."""
    for name, value in settings.items():
        if not _is_a(kind, value):
            raise ConfigurationError(f"{name} must be {expected}, got {kind_of(value)}", hint=hint)


def with_article(name: str) -> str:
    """Return a name after "a" or "an".

    Example:
        >>> with_article("AbstentionPolicy"), with_article("str")
        ('an AbstentionPolicy', 'a str')
    """
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def kind_of(value: object) -> str:
    """Return the type of a value for an error message; ``None`` is its own type.

    Example:
        >>> kind_of(3), kind_of("x"), kind_of(None)
        ('an int', 'a str', 'None')
    """
    return "None" if value is None else with_article(type(value).__name__)


def _is_a(kind: Any, value: object) -> bool:
    return isinstance(value, kind) and not (isinstance(value, bool) and kind in (int, Integral, Real))


def check_items(kind: type, items: Iterable[object], hint: str) -> None:
    """Raise InputError unless all items are instances of ``kind``."""
    for place, item in enumerate(items):
        if not isinstance(item, kind):
            raise InputError(
                f"expected {with_article(kind.__name__)}, got {kind_of(item)} at place {place}", hint=hint
            )


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Return a context in which optional packages are imported.

    Args:
        name: The extra of ``surerag`` that installs the packages.

    Raises:
        MissingExtraError: If a package is not installed, or its version lacks something that is needed.

    Example:
        >>> with extra("faiss"):  # doctest: +ELLIPSIS
        ...     import no_such_package
        Traceback (most recent call last):
        surerag.errors.MissingExtraError: the package 'no_such_package' is not installed. \
Install it with: pip install "surerag[faiss]".
        More about it: ...#missingextraerror
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").split(".")[0]
        if not package or "surerag" in package or isinstance(error, MissingExtraError):
            raise
        if isinstance(error, ModuleNotFoundError):
            message, how = f"the package {package!r} is not installed", "install it with: pip install"
        else:
            message = f"the package {package!r} does not have what is needed ({error})"
            how = "install a version that has it: pip install --upgrade"
        raise MissingExtraError(message, hint=f'{how} "surerag[{name}]"') from error


@contextmanager
def writing(path: object) -> Iterator[None]:
    """Return a context in which the file ``path`` is written; an OSError in it becomes a StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="name a file in an existing folder that can be written",
        ) from error
