"""Base class of all options: a pydantic model with short error messages, and hints for misspelt names.

Each method has one class of options. The method's public class inherits from its class of options and adds
services as fields. The method's components for LangChain and LlamaIndex inherit from the same class::

    class EDC2Options(Options):
        first_cluster_size: int = Field(default=3, ge=1)
        \"\"\"Size of the first cluster (the paper's τ).\"\"\"
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
)
from pydantic.functional_validators import SkipValidation

from surerag.errors import ConfigurationError, SureragError, check_kind
from surerag.prompts import PromptSet
from surerag.signatures import PlainHelp, TypeText, field_lines

PromptsOption = Annotated[Mapping[str, Any], SkipValidation, TypeText("Mapping[str, Any]")]
"""Type of the option ``prompts``: new templates or texts by the name of the prompt that they replace."""

_ALIASES = {
    "k": ("top_n",),
    "top_k": ("top_n",),
    "similarity_top_k": ("top_n",),
    "model": ("llm", "reader"),
    "llm": ("reader",),
    "embeddings": ("embed_model", "encoder"),
    "embed_model": ("embeddings", "encoder"),
    "n": ("n_tokens", "n_samples"),
    "tau": ("threshold",),
    "theta": ("threshold",),
    "max_new_tokens": ("max_tokens",),
    "templates": ("prompts",),
}
"""Names of options in frameworks and papers, with the corresponding names in this package."""


class CheckedFields(BaseModel, metaclass=PlainHelp):
    """Base of pydantic classes that refuse unknown names and invalid values with errors of this package.

    List this class before the base class of a framework, which may ignore unknown names.

    Raises:
        ConfigurationError: If a name is unknown, or a value has the wrong type or is out of bounds.
    """

    def __init__(self, **values: Any) -> None:
        check_names(type(self), values)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _plain_error(type(self), error) from None


class Options(CheckedFields):
    """Base of all classes with options, which checks names and values at construction and assignment.

    Raises:
        ConfigurationError: If a name is unknown, or a value has the wrong type or is out of bounds.
        PromptError: If a prompt has an unknown name or the wrong slots.

    Example:
        >>> class Chunks(Options):
        ...     top_n: int = Field(default=3, ge=1)
        >>> Chunks(k=2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        surerag.errors.ConfigurationError: Chunks has no option 'k'. Did you mean top_n? It takes top_n.
        ...
        >>> Chunks(top_n=0)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        surerag.errors.ConfigurationError: Chunks: top_n should be greater than or equal to 1, got 0.
        ...
    """

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, use_attribute_docstrings=True, arbitrary_types_allowed=True
    )

    PROMPTS: ClassVar[PromptSet] = PromptSet()
    """The method's default prompts, for classes with an option ``prompts``."""

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        """Append the type, default and description of each field to the docstring, for ``help``."""
        super().__pydantic_init_subclass__(**settings)
        lines = field_lines(cls)
        if lines and (own := vars(cls).get("__doc__")):
            cls.__doc__ = "\n".join([inspect.cleandoc(own), "", "Args:", *lines])

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; an invalid value raises an error and leaves the object unchanged."""
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        check_names(type(self), [name])
        before = dict(self.__dict__)
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            self.__dict__.update(before)
            raise _plain_error(type(self), error) from None
        except BaseException:
            self.__dict__.update(before)
            raise

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the changes in ``update``, which are checked.

        The copy shares models and retrievers with the original, whatever ``deep`` is.
        """
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**values, **(update or {})})

    def with_options(self, **changes: Any) -> Self:
        """Return a copy with changed options or services."""
        return self.model_copy(update=changes)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a copy that shares models and retrievers with the original."""
        return self.model_copy()

    @classmethod
    @cache
    def option_names(cls) -> tuple[str, ...]:
        """Return the names of the method's options, without fields for services or for a framework."""
        declared = [
            kind
            for kind in cls.__mro__
            if all(issubclass(base, Options) or base in CheckedFields.__mro__ for base in kind.__mro__)
        ]
        return tuple(dict.fromkeys(name for kind in declared for name in getattr(kind, "model_fields", ())))

    def options(self) -> dict[str, Any]:
        """Return the value of each option by the option's name."""
        return {name: getattr(self, name) for name in self.option_names()}

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_values(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and kind in (int, float, int | None, float | None):
            raise ConfigurationError(f"{cls.__name__}: {info.field_name} must be a number, got {value!r}")
        return value

    @field_validator("prompts", mode="before", check_fields=False)
    @classmethod
    def _replace_prompts(cls, value: Any) -> PromptSet:
        hint = f"the names are {', '.join(cls.PROMPTS)}"
        check_kind(Mapping, "a mapping from names to templates", hint=hint, prompts=value)
        return cls.PROMPTS.replaced(value)

    @field_serializer("prompts", check_fields=False)
    def _prompt_texts(self, value: Mapping[str, Any]) -> dict[str, str]:
        return {name: getattr(prompt, "text", prompt) for name, prompt in value.items()}


def prompts_field() -> Any:
    """Return the pydantic field of the option ``prompts``; by default, no prompt is replaced."""
    return Field(default_factory=dict, validate_default=True)


def check_names(owner: type[BaseModel], names: Iterable[str]) -> None:
    """Check that each of ``names`` is a field of a class, or the alias of a field.

    Raises:
        ConfigurationError: If a name is unknown; the hint suggests similar names.
    """
    if owner.model_config.get("extra") == "allow":
        return
    fields = owner.model_fields
    aliases = (field.alias for field in fields.values() if field.alias)
    check_known(owner.__name__, names, {*fields, *aliases})


def check_known(owner: str, names: Iterable[str], allowed: AbstractSet[str]) -> None:
    """Check that each of ``names`` is in ``allowed``, the options of ``owner``.

    Raises:
        ConfigurationError: If a name is unknown; the hint suggests similar names.

    Example:
        >>> check_known("a call of ChatReader", ["max_token"], {"max_tokens", "seed"})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        surerag.errors.ConfigurationError: a call of ChatReader has no option 'max_token'. Did you mean \
max_tokens? It takes max_tokens, seed.
        ...
    """
    for name in names:
        if name in allowed:
            continue
        aliases = [alias for alias in _ALIASES.get(name, ()) if alias in allowed]
        near = aliases or get_close_matches(name, sorted(allowed), n=2)
        choices = f"It takes {', '.join(sorted(allowed))}"
        if name in ("variant", "paper"):
            choices += '. For the settings of the papers, see "Settings of the papers" in docs/papers.md'
        raise ConfigurationError(
            f"{owner} has no option {name!r}",
            hint=f"did you mean {' or '.join(near)}? {choices}" if near else choices,
        )


def _plain_error(owner: type, error: ValidationError) -> SureragError:
    complaint = error.errors(include_url=False)[0]
    cause = complaint.get("ctx", {}).get("error")
    if isinstance(cause, SureragError):
        return cause
    name = ".".join(str(part) for part in complaint["loc"][:1]) or owner.__name__
    alternatives = dict.fromkeys(
        item["msg"].removeprefix("Input ")
        for item in error.errors(include_url=False)
        if item["loc"][:1] == complaint["loc"][:1]
    )
    return ConfigurationError(
        f"{owner.__name__}: {name} {', or '.join(alternatives)}, got {complaint['input']!r}."
    )
