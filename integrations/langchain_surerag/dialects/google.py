"""Google's classes: log-probabilities go by other names, and by other ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.outputs import Generation

from langchain_surerag._overheard import OVERHEARD, Entries, Listening, Overheard
from langchain_surerag.dialects.base import DO_WITHOUT, Dialect, Prepared
from langchain_surerag.dialects.settings import SETTINGS, Asked


class GeminiDialect(Dialect):
    """ChatGoogleGenerativeAI, which asks for log-probabilities and leaves them out of its answers."""

    takes = SETTINGS - {"n"}
    anyway = {"temperature": 1.0, "top_p": 0.95}  # noqa: RUF012  # a ClassVar of the base
    aliases = {  # noqa: RUF012  # a ClassVar of the base
        "max_output_tokens": "max_tokens",
        "maxOutputTokens": "max_tokens",
        "responseLogprobs": "logprobs",
        "response_logprobs": "logprobs",
        "topK": "top_k",
        "topP": "top_p",
    }
    fix = (
        "not every Gemini model gives them: try a stable one on Vertex AI, such as "
        f'ChatGoogleGenerativeAI(model="gemini-2.5-flash", vertexai=True); {DO_WITHOUT}'
    )

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Say it in Google's words."""
        found = {_NAMES.get(name, name): value for name, value in settings.items()}
        if found.pop("logprobs", False):
            found["response_logprobs"] = True
            if "top_logprobs" in found:
                found["logprobs"] = found.pop("top_logprobs")
        return found

    def prepared(self, asked: Asked) -> Prepared:
        """Listen to what the client returns."""
        prepared = super().prepared(asked)
        overheard = Overheard(_candidates)
        methods = [("models", name) for name in ("generate_content", "generate_content_stream")]
        methods_of_both = (*methods, *(("aio", *path) for path in methods))
        client = Listening(getattr(prepared.model, "client", None), overheard, *methods_of_both)
        listened_to = prepared.model.model_copy(update={"client": client})
        return prepared._replace(model=listened_to, overheard=overheard)

    def logprobs_of(self, answer: Generation) -> Any:
        """Return what was overheard."""
        return self.metadata(answer).get(OVERHEARD)


_NAMES = {"max_tokens": "max_output_tokens"}


class VertexDialect(Dialect):
    """ChatVertexAI: ``logprobs`` is a number, and what comes is ``logprobs_result``."""

    takes = SETTINGS - {"n"}
    anyway = GeminiDialect.anyway
    aliases = GeminiDialect.aliases
    fix = GeminiDialect.fix

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Say it in Google's words; the number of alternatives is the value of ``logprobs``."""
        found = {_NAMES.get(name, name): value for name, value in settings.items() if name != "logprobs"}
        if "logprobs" in settings:
            found["logprobs"] = found.pop("top_logprobs", True)
        return found

    def logprobs_of(self, answer: Generation) -> Any:
        """Return the entries, which are in OpenAI's form."""
        entries = self.metadata(answer).get("logprobs_result")
        return {"content": entries} if entries else None


def _candidates(answer: Any) -> Entries:
    """Return the log-probabilities of an answer's first candidate."""
    candidates = getattr(answer, "candidates", None) or [None]
    result = getattr(candidates[0], "logprobs_result", None)
    chosen = getattr(result, "chosen_candidates", None) or []
    listed = getattr(result, "top_candidates", None) or [None] * len(chosen)
    return [
        {**_entry(token), "top_logprobs": [_entry(other) for other in getattr(top, "candidates", None) or []]}
        for token, top in zip(chosen, listed, strict=False)
    ]


def _entry(token: Any) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.log_probability}
