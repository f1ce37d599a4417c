"""Models of which only the text is used, whatever their class: asked by the fields that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_surerag._connections import OpenedStreams
from langchain_surerag.dialects.base import DO_WITHOUT, Dialect, Prepared
from langchain_surerag.dialects.settings import ALIASES, SETTINGS, Asked, Settled


class TextDialect(Dialect):
    """Any model that has no dialect of its own: text in, text out."""

    logprobs = False
    takes = SETTINGS
    fix = (
        "use ChatOpenAI, OpenAI, ChatOllama, ChatGoogleGenerativeAI, HuggingFacePipeline, ChatHuggingFace, "
        f"or a reader of surerag; for a class of your own, see register_dialect; {DO_WITHOUT}"
    )

    def prepared(self, asked: Asked) -> Prepared:
        """Set the fields of a copy; stop texts are LangChain's own keyword."""
        settled = self.settled(asked)
        values = dict(settled.values)
        arguments = self.kept(settled)
        if "stop" in values:
            arguments["stop"] = values.pop("stop")
        fields = self._fields()
        changes: dict[str, object] = {fields[name]: value for name, value in values.items()}
        changes |= self.fields_without(settled.unset)
        return Prepared(self.copied(asked, **changes), arguments, OpenedStreams())

    def _fields(self) -> Mapping[str, str]:
        """Return the model's own names of the settings that it has fields for."""
        return {ALIASES.get(own, own): own for own in type(self.model).model_fields}

    def _wished(self, asked: Asked, held: Mapping[str, Any]) -> Settled:
        """Leave out what the model has no field for: keywords that a provider does not know would fail."""
        found = super()._wished(asked, held)
        # Samples are asked for one by one.
        known = (self._fields().keys() | {"stop"}) - {"n"}
        values = {name: value for name, value in found.values.items() if name in known}
        return found._replace(
            values=values, overruled=tuple(item for item in found.overruled if item.name in values)
        )


class AnthropicDialect(TextDialect):
    """ChatAnthropic: the length of an answer has to hold the thinking that the user allows for."""

    fix = f"Anthropic's API gives none; use a model that returns them; {DO_WITHOUT}"

    def _wished(self, asked: Asked, held: Mapping[str, Any]) -> Settled:
        """Add the budget for thinking, which Anthropic counts into the length."""
        found = super()._wished(asked, held)
        thinking = self.bound.get("thinking", getattr(self.model, "thinking", None)) or {}
        budget, length = thinking.get("budget_tokens"), found.values.get("max_tokens")
        if isinstance(budget, int) and isinstance(length, int) and length <= budget:
            length = min(length + budget, held.get("max_tokens", length + budget))
            return found._replace(values={**found.values, "max_tokens": length})
        return found


class GroqDialect(TextDialect):
    """ChatGroq: Groq's API is OpenAI's, but for log-probabilities."""

    fix = f"Groq's API gives none; use a model that returns them; {DO_WITHOUT}"
