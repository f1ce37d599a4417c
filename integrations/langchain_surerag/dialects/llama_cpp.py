"""A model of llama.cpp in this process: one answer at a time, and nothing beside it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from langchain_surerag._connections import OpenedStreams
from langchain_surerag.dialects.base import DO_WITHOUT, Dialect, Prepared
from langchain_surerag.dialects.settings import SETTINGS, Asked
from langchain_surerag.dialects.text import TextDialect


class ChatLlamaCppDialect(Dialect):
    """ChatLlamaCpp: takes the keywords of llama.cpp's ``create_chat_completion``."""

    serial = True
    takes = SETTINGS - {"n"}
    fix = f"build it with ChatLlamaCpp(…, logits_all=True); {DO_WITHOUT}"

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Say what stands for no limit."""
        found = dict(settings)
        if found.get("top_k", 1) is None:
            found["top_k"] = 0
        return found

    def prepared(self, asked: Asked) -> Prepared:
        """Ask for a whole answer as one: joined from pieces it would lose its stop texts."""
        _tell_of_positions(self.model)
        settled = self.settled(asked)
        arguments = {**self.kept(settled), **self.keywords(settled.values)}
        changes = {"streaming": False, "client": _OneAtATime(getattr(self.model, "client", None))}
        model = self.copied(asked, **changes, **self.fields_without(settled.unset))
        return Prepared(model, arguments, OpenedStreams(self.options.limits))


class LlamaCppDialect(TextDialect):
    """LlamaCpp, whose class drops log-probabilities."""

    serial = True
    fix = f"use ChatLlamaCpp(…, logits_all=True), which keeps them; {DO_WITHOUT}"

    def prepared(self, asked: Asked) -> Prepared:
        """Ask for a whole answer as one, so that nothing else comes between its tokens."""
        prepared = super().prepared(asked)
        changes = {"streaming": False, "client": _OneAtATime(getattr(self.model, "client", None))}
        return prepared._replace(model=prepared.model.model_copy(update=changes))


def _tell_of_positions(model: Any) -> None:
    """Warn where the class's default for rotary positions overrules the model file's: answers get worse."""
    metadata = getattr(getattr(model, "client", None), "metadata", None) or {}
    own = next((float(value) for key, value in metadata.items() if key.endswith(".rope.freq_base")), None)
    used = getattr(model, "rope_freq_base", None)
    if own and used and used != own:
        warnings.warn(
            f"ChatLlamaCpp(rope_freq_base={used:g}) overrules the model's own {own:g}, which makes its "
            "answers and their probabilities worse: build it with rope_freq_base=0, rope_freq_scale=0",
            stacklevel=2,
        )


class _OneAtATime:
    """Stands in for a ``llama_cpp.Llama``, whose state two answers at the same time would spoil."""

    def __init__(self, llama: Any) -> None:
        self._llama = llama

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llama, name)

    def __call__(self, *args: Any, **arguments: Any) -> Any:
        with _turn_of(self._llama):
            return self._llama(*args, **arguments)

    def create_chat_completion(self, *args: Any, **arguments: Any) -> Any:
        with _turn_of(self._llama):
            return self._llama.create_chat_completion(*args, **arguments)


_turns: WeakKeyDictionary[Any, threading.Lock] = WeakKeyDictionary()
_turns_lock = threading.Lock()


def _turn_of(llama: Any) -> threading.Lock:
    with _turns_lock:
        return _turns.setdefault(llama, threading.Lock())
