"""Parts that a user's own function makes, named as text: ``module:function``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

from surerag.errors import ConfigurationError


@dataclass(frozen=True)
class Factory:
    """A function that can be named in settings and on the command line.

    Attributes:
        named: What says it, for errors: ``--retriever``, or a setting.
        module: Where it is.
        function: Its name there.
    """

    named: str
    module: str
    function: str

    @classmethod
    def parsed(cls, named: str, text: str) -> Self:
        """Read a factory as a user writes it.

        Raises:
            ConfigurationError: If it is none.

        Example:
            >>> Factory.parsed("--retriever", "my.code:retriever").function
            'retriever'
        """
        module, colon, function = text.partition(":")
        if not (module and colon and function):
            raise ConfigurationError(f"{named} must be MODULE:FUNCTION, got {text!r}")
        return cls(named, module, function)

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"

    def make(self, role: type, *, hint: str, **arguments: Any) -> Any:
        """Call it.

        Args:
            role: Protocol of :mod:`surerag.services` that what it returns must fulfil; ``object`` for any.
            hint: What to do if it is not found.
            **arguments: Of the function.

        Raises:
            ConfigurationError: If it is not there, or returns something else.
        """
        try:
            function: Callable[..., Any] = getattr(import_module(self.module), self.function)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(f"{self.named} names {str(self)!r}: {error}", hint=hint) from error
        made = function(**arguments)
        if not isinstance(made, role):
            raise ConfigurationError(
                f"{self} returned a {type(made).__name__}, which is no {role.__name__.lower()}",
                hint=f"return an object with the methods of surerag.services.{role.__name__}",
            )
        return made
