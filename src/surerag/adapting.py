"""A method's options as the fields of a framework's own class, for frameworks that build on pydantic.

Both LlamaIndex and LangChain do, so this module needs one of them, and nothing in the core imports it. An
adapter inherits from the framework's class, from :class:`Adapted` and from the method's options: names,
defaults, choices and sentences come over, no line of them is repeated, and what a user sets is checked by the
core, with the core's messages. ::

    class ClusterCompressor(Adapted[Core], BaseDocumentCompressor, EDC2Options):
        llm: Any = Field(default=None, exclude=True, repr=False)

        def _core(self) -> Core:
            return Core(reader_of(self.llm), **self.chosen())
"""

from __future__ import annotations

import logging
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from pydantic import BaseModel, ConfigDict, PrivateAttr

from surerag.options import Options, check_names, checked

T = TypeVar("T")

logger = logging.getLogger("surerag")


class Adapted(BaseModel, Options, ABC, Generic[T]):
    """A pydantic model that takes over a method's options; ``T`` is the method's public class.

    The method is built at construction, so that what is misconfigured raises there, and anew when a field is
    set or a copy is made with changes: what the fields say is always in force.

    Raises:
        ConfigurationError: If a name is unknown, or a value of the wrong type or out of bounds.
        PromptError: If a prompt has an unknown name, or the wrong slots.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    _built: T | None = PrivateAttr(default=None)

    def __init__(self, **given: Any) -> None:
        super().__init__(**_read(type(self), given))
        self._build()

    @classmethod
    def __pydantic_init_subclass__(cls, **arguments: Any) -> None:
        """Hand the options' sentences over to the fields' descriptions."""
        super().__pydantic_init_subclass__(**arguments)
        for name, option in cls.OPTIONS.items():
            if name in cls.model_fields:
                cls.model_fields[name].description = option.doc

    @abstractmethod
    def _core(self) -> T:
        """Return the method with the options and services as they are now."""

    def _build(self) -> None:
        self._built = self._core()

    @classmethod
    def _templates(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return prompts as the core takes them; adapters read their framework's templates here."""
        return given

    def chosen(self) -> dict[str, Any]:
        """Return the value of every option, by its name, prompts as the core takes them."""
        values = super().chosen()
        return {**values, "prompts": self._templates(values["prompts"])} if "prompts" in values else values

    @property
    def core(self) -> T:
        """The method with its options and services."""
        if self._built is None:
            self._built = self._core()
        return self._built

    def worst_case_calls(self, passages: int) -> int:
        """Calls of models that one question can cost, for so many passages; see the method's own."""
        core: Any = self.core
        return int(core.worst_case_calls(passages))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field and build the method anew; where that fails, everything stays as it was."""
        if name not in type(self).model_fields:
            super().__setattr__(name, value)
            return
        before = getattr(self, name)
        super().__setattr__(name, _read(type(self), {name: value})[name])
        try:
            self._build()
        except Exception:
            super().__setattr__(name, before)
            raise

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with changes, which are in force; services are shared, never copied."""
        check_names(type(self), update or {})
        copy = super().model_copy(update=_read(type(self), update or {}))
        copy._build()
        return copy

    def with_options(self, **changes: Any) -> Self:
        """Return a copy with other options or services."""
        return self.model_copy(update=changes)

    def __getstate__(self) -> dict[Any, Any]:
        """Leave the method out of a pickle: it is built anew from the fields."""
        state = dict(super().__getstate__())
        state["__pydantic_private__"] = {**(state["__pydantic_private__"] or {}), "_built": None}
        return state

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a copy on the same services: a model is never copied by the way."""
        return self.model_copy()


def _read(owner: type[Adapted[Any]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as the core keeps them; prompts as the user gave them, once the core has taken them."""
    values = dict(given)
    if "prompts" not in owner.OPTIONS or "prompts" not in values:
        return checked(owner, values)
    prompts = values.pop("prompts")
    read = checked(owner, values)
    checked(owner, {"prompts": owner._templates(prompts)})
    return {**read, "prompts": prompts}


_shared: WeakValueDictionary[Any, Any] = WeakValueDictionary()
_made_of: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_lock = threading.Lock()


def shared(make: Callable[..., T], source: object, **arguments: Any) -> T:
    """Return what is made of a user's object, the same one for as long as anybody uses it.

    Copies and reconfigured copies of a component then ask the same reader, and so through one merging queue.

    Args:
        make: Makes it, of the source and the arguments; what it returns can be referred to weakly.
        source: A user's model.
        **arguments: Hashable values.
    """
    key = (make, id(source), tuple(sorted(arguments.items())))
    with _lock:
        found: T | None = _shared.get(key)
        if found is not None and _made_of.get(found) is source:
            return found
    made = make(source, **arguments)
    with _lock:
        _shared[key] = made
        # Held as long as what was made of it: its id cannot be given to another object meanwhile.
        _made_of[made] = source
    return made


class ChatTemplateWarning(UserWarning):
    """Prompts go through a chat template where the framework's own class would send raw text."""


_told_of: WeakSet[Any] = WeakSet()


def takes_template(tokenizer: Any, llm: str, maker: str) -> bool:
    """Whether a model without a rendering of the user's own is asked through its tokenizer's chat template.

    It is wherever there is one: a model that was trained on conversations answers raw text with whatever
    might follow it. That the framework itself does otherwise is said once for each tokenizer.

    Args:
        tokenizer: The model's tokenizer.
        llm: Name of the framework's class.
        maker: Name of the function that takes ``chat_template=False``.
    """
    if not getattr(tokenizer, "chat_template", None):
        return False
    with _lock:
        told = tokenizer in _told_of
        _told_of.add(tokenizer)
    if not told:
        found = (
            f"the tokenizer of this {llm} has a chat template, so surerag asks the model through it, "
            f"where {llm} itself sends raw text; {maker}(llm, chat_template=False) sends raw text, too"
        )
        logger.warning(found)
        warnings.warn(found, ChatTemplateWarning, stacklevel=4)
    return True
