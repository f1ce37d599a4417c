"""Models of which only the text is used, whatever their class: asked by the fields that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_surerag._connections import OpenedStreams
from langchain_surerag.dialects.base import DO_WITHOUT, Dialect, Prepared, Thinking
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
        return Prepared(self.copied(asked, **changes), arguments, OpenedStreams(self.options.limits))

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
    """ChatAnthropic: the user says whether it thinks, and for how long, which is part of the length."""

    fix = f"Anthropic's API gives none; use a model that returns them; {DO_WITHOUT}"

    @property
    def budget(self) -> int:
        """Tokens for thinking: as many as the user allows for."""
        said = self.bound.get("thinking", getattr(self.model, "thinking", None)) or {}
        allowed = said.get("budget_tokens", 0)
        return allowed if isinstance(allowed, int) and allowed else super().budget

    @property
    def thinking(self) -> Thinking:
        """What is known of its thinking."""
        return "apart" if self.budget else "none"


class GroqDialect(TextDialect):
    """ChatGroq: Groq's API is OpenAI's, but for log-probabilities."""

    fix = f"Groq's API gives none; use a model that returns them; {DO_WITHOUT}"
