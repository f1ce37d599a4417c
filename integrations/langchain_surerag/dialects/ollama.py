"""Ollama's classes: settings are options of the request, log-probabilities its own parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.outputs import Generation

from langchain_surerag._connections import OpenedStreams
from langchain_surerag._overheard import OVERHEARD, Entries, Listening, Overheard
from langchain_surerag.dialects.base import DO_WITHOUT, Dialect, Prepared, Thinking
from langchain_surerag.dialects.settings import SETTINGS, Asked, held_in

_FIELDS = {"max_tokens": "num_predict"}


class OllamaDialect(Dialect):
    """ChatOllama: settings are fields of the model, from which it makes the options of a request."""

    takes = SETTINGS - {"n"}
    anyway = {"temperature": 0.8, "top_p": 0.9, "top_k": 40}  # noqa: RUF012  # a ClassVar of the base
    fix = (
        "a server before Ollama 0.12.11 ignores that they are asked for: update it, and langchain-ollama to "
        f"1.1 or later; {DO_WITHOUT}"
    )

    @property
    def thinking(self) -> Thinking:
        """What is known of its thinking."""
        reasoning = self.bound.get("reasoning", getattr(self.model, "reasoning", None))
        return "off" if reasoning is False and not self.thinks else super().thinking

    def held(self) -> dict[str, Any]:
        """Return what the user built or bound, also as options."""
        return {**super().held(), **held_in(self.bound.get("options") or {})}

    def prepared(self, asked: Asked) -> Prepared:
        """Set the fields of a copy, or bound options, which win over them; log-probabilities are keywords."""
        settled = self.settled(asked)
        values = dict(settled.values)
        arguments = self.kept(settled)
        arguments |= {name: values.pop(name) for name in ("logprobs", "top_logprobs") if name in values}
        if values.get("top_k", 1) is None:
            # What Ollama takes for no limit.
            values["top_k"] = 0
        options = {_FIELDS.get(name, name): value for name, value in values.items()}
        changes = {**self.fields_without(settled.unset), **options}
        if own := self.bound.get("options"):
            arguments["options"] = {**own, **options}
        return Prepared(self.copied(asked, **changes), arguments, OpenedStreams(self.options.limits))

    def logprobs_of(self, answer: Generation) -> Any:
        """Return the entries as plain mappings."""
        entries = self.metadata(answer).get("logprobs")
        return {"content": _plain(entries)} if entries else None


class OllamaLLMDialect(OllamaDialect):
    """OllamaLLM, which keeps no log-probabilities of the pieces that it streams and joins."""

    def prepared(self, asked: Asked) -> Prepared:
        """Listen to what the client returns."""
        prepared = super().prepared(asked)
        overheard = Overheard(lambda answer: _plain(getattr(answer, "logprobs", None) or []))
        model: Any = prepared.model.model_copy()
        for name in ("_client", "_async_client"):
            setattr(model, name, Listening(getattr(model, name), overheard, ("generate",)))
        return prepared._replace(model=model, overheard=overheard)

    def logprobs_of(self, answer: Generation) -> Any:
        """Return what was overheard."""
        return self.metadata(answer).get(OVERHEARD)


def _plain(entries: Any) -> Entries:
    return [entry if isinstance(entry, Mapping) else entry.model_dump() for entry in entries]  # type: ignore[misc]  # either way a mapping
