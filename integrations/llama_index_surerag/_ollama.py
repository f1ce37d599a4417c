"""LlamaIndex's ``Ollama``: what it passes on to its client is put right there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from llama_index_surerag._fanout import PerLoop
from llama_index_surerag._lent import standing_in
from llama_index_surerag._manners import WITHOUT_LOGPROBS
from llama_index_surerag.dialects import LLMAnswer, LLMDialect, LLMToken, text_of, value_of
from surerag.readers.hosted.parse import token_count

_OPTIONS = frozenset({"temperature", "top_p", "top_k", "seed", "stop", "num_predict"})
"""What Ollama takes among its ``options``; the LLM passes no keyword of a call on."""


class OllamaDialect(LLMDialect):
    """The native chat API of Ollama; log-probabilities since November 2025 (server 0.12.11, client 0.6.1)."""

    takes = frozenset({"temperature", "top_p", "top_k", "seed", "stop", "max_tokens"}) | {
        "logprobs",
        "top_logprobs",
    }
    names: Mapping[str, str] = {"max_tokens": "num_predict"}
    top_logprobs = 20
    uncut: Mapping[str, Any] = {"top_k": 0}
    streams = True
    logprobs_hint = (
        "update Ollama (log-probabilities came in November 2025: server 0.12.11, pip install -U ollama), or "
        'ask it as OpenAILike(api_base="http://localhost:11434/v1", is_chat_model=True); ' + WITHOUT_LOGPROBS
    )

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._clients: PerLoop[dict[str, Any]] = PerLoop(dict)

    def built(self, llm: Any) -> Mapping[str, Any]:
        """Return the LLM's temperature, and what stands in its ``additional_kwargs``."""
        given = {"temperature": llm.temperature, **llm.additional_kwargs}
        named = {"max_tokens": given.pop("num_predict", None), **given}
        return {name: value for name, value in named.items() if value is not None}

    def view(self, llm: Any, parameters: Mapping[str, Any]) -> Any:
        """Return a copy whose client sends the parameters."""
        with self._making:
            client = llm.client
        copy = llm.model_copy()

        def wrapped(target: Any) -> Any:
            return lambda **body: target.chat(**_edited(body, parameters))

        copy._client = standing_in(client, ("chat",), wrapped)
        return copy

    async def aview(self, llm: Any, parameters: Mapping[str, Any]) -> Any:
        """Like ``view``; each event loop has a client of its own, unless the user gave one."""
        copy = llm.model_copy()
        client = llm._async_client
        if client is None:
            # Kept by address, so that one dialect may serve several LLMs.
            own = self._clients.get()
            if llm.base_url not in own:
                own[llm.base_url] = copy.async_client
            client = own[llm.base_url]

        def wrapped(target: Any) -> Any:
            async def chat(**body: Any) -> Any:
                return await target.chat(**_edited(body, parameters))

            return chat

        copy._async_client = standing_in(client, ("chat",), wrapped)
        return copy

    def read(self, response: Any) -> LLMAnswer:
        """Read text, thoughts and tokens of an answer."""
        plain, raw = text_of(response), response.raw
        return LLMAnswer(
            plain.text,
            _tokens(raw),
            thoughts=plain.thoughts,
            finish=plain.finish,
            prompt_tokens=token_count(value_of(raw, "prompt_eval_count")),
            completion_tokens=token_count(value_of(raw, "eval_count")),
        )

    def piece(self, response: Any) -> LLMAnswer:
        """Read what a piece of a stream adds."""
        raw = response.raw
        done = value_of(raw, "done")
        return LLMAnswer(
            response.delta or "",
            _tokens(raw),
            thoughts=str(response.additional_kwargs.get("thinking_delta") or ""),
            finish=(("length" if value_of(raw, "done_reason") == "length" else "stop") if done else None),
            prompt_tokens=token_count(value_of(raw, "prompt_eval_count")),
            completion_tokens=token_count(value_of(raw, "eval_count")),
        )


def _edited(body: dict[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is sent in place of what the LLM would send."""
    given = {name: value for name, value in (body.get("options") or {}).items() if name not in _OPTIONS}
    ours = {name: value for name, value in parameters.items() if name in _OPTIONS}
    asked = {name: value for name, value in parameters.items() if name in ("logprobs", "top_logprobs")}
    return {**body, **asked, "options": {**given, **ours}}


def _tokens(raw: Any) -> tuple[LLMToken, ...] | None:
    listed = value_of(raw, "logprobs")
    if listed is None:
        return None
    return tuple(
        LLMToken(
            str(value_of(entry, "token") or ""),
            value_of(entry, "logprob"),
            tuple(
                (str(value_of(one, "token") or ""), value_of(one, "logprob"))
                for one in value_of(entry, "top_logprobs") or ()
            ),
        )
        for entry in listed
    )
