"""Models over OpenAI's APIs, and servers compatible with them: chat completions, completions, Responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from langchain_core.outputs import Generation

from langchain_surerag._connections import OpenedStreams
from langchain_surerag._overheard import OVERHEARD, Entries, Listening, Overheard
from langchain_surerag.dialects.base import DO_WITHOUT, Dialect, Prepared, Thinking
from langchain_surerag.dialects.settings import SETTINGS, Asked, Settled
from surerag.readers.hosted.loops import client_of_this_loop

COMPLETIONS_TOP_LOGPROBS = 5
"""The most that OpenAI's completions API lists a token."""

_OPENAI_HOSTS = (".openai.com", ".azure.com", ".windows.net")
"""Hosts that call the length of an answer ``max_completion_tokens``; ChatOpenAI says that to all."""


class OpenAIChatDialect(Dialect):
    """Chat models over the chat completions API."""

    takes = SETTINGS
    fix = (
        'reasoning models give none, but from gpt-5.1 on with ChatOpenAI(…, reasoning_effort="none"); use a '
        f"model and a server that return them over chat completions, or a local model; {DO_WITHOUT}"
    )

    @property
    def thinking(self) -> Thinking:
        """What is known of its thinking: it may have been switched off in the model's template or request."""
        held = {**(getattr(self.model, "extra_body", None) or {}), **self.bound.get("extra_body", {})}
        template = held.get("chat_template_kwargs") or {}
        effort = self.bound.get("reasoning_effort", getattr(self.model, "reasoning_effort", None))
        off = effort == "none" or template.get("enable_thinking") is False
        return "off" if off and not self.thinks else super().thinking

    def choice(self, answer: Generation) -> dict[str, Any]:
        """Take tokens without a word of text for thoughts: servers tell these apart, LangChain drops them."""
        found = super().choice(answer)
        message, listed = found.get("message", {}), found["logprobs"]
        entries = listed.get("content") if isinstance(listed, Mapping) else None
        if isinstance(entries, list) and not message.get("content") and "reasoning_content" not in message:
            tokens = (entry.get("token") for entry in entries if isinstance(entry, Mapping))
            message["reasoning_content"] = "".join(token for token in tokens if isinstance(token, str))
        return found

    def advice(self, name: str) -> str:
        """Name the setting by which reasoning models take what they refuse."""
        if name in ("temperature", "top_p"):
            return (
                f"several answers are drawn, and would be drawn otherwise; a reasoning model takes {name}, "
                'if at all, with ChatOpenAI(…, reasoning_effort="none")'
            )
        return super().advice(name)

    def prepared(self, asked: Asked) -> Prepared:
        """Ask over chat completions, and outside streams for all samples at once."""
        settled = self.settled(asked)
        arguments = {**self.kept(settled), **self.keywords(settled.values)}
        own = {**(getattr(self.model, "extra_body", None) or {}), **self.bound.get("extra_body", {})}
        if (extra := self._extra_body(own, settled)) or own:
            arguments["extra_body"] = extra
        if asked.n > 1:
            # A listening callback handler would turn this into one stream, with the samples mixed up.
            arguments["stream"] = False
        if asked.streamed and getattr(self.model, "stream_usage", None) is None:
            # Undecided: LangChain then asks OpenAI alone for the count of tokens.
            arguments.setdefault("stream_usage", "stream_options" not in self.understood.dropped)
        elif "stream_options" in self.understood.dropped:
            arguments["stream_usage"] = False
        opened = OpenedStreams(self.options.limits)
        # What the length is called differs; sent under two names it is refused.
        changes = self.fields_without(settled.unset | {"max_tokens"})
        # Left open, a bound keyword could still lead to the Responses API.
        undecided = getattr(self.model, "use_responses_api", False) is None
        changes |= {"use_responses_api": False} if undecided else {}
        changes |= opened.watched(self.model)
        return Prepared(self.copied(asked, **changes), arguments, opened)

    def called(self, name: str) -> str:
        """Call the length of an answer as ChatOpenAI does, where OpenAI's own models are behind it."""
        own = _is_a(self.model, "ChatOpenAI") and self._is_openai
        return "max_completion_tokens" if name == "max_tokens" and own else name

    def attempted(self, asked: Asked) -> dict[str, Any]:
        """Note that a stream asks for the count of tokens, too."""
        found = super().attempted(asked)
        return {**found, "stream_options": True} if asked.streamed else found

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out what goes into the request's body beside the SDK's keywords."""
        return {name: value for name, value in settings.items() if name not in self._beside}

    def _extra_body(self, own: Mapping[str, Any], settled: Settled) -> dict[str, Any]:
        """Say what the SDK has no keyword for, and what ChatOpenAI would rename, beside the user's."""
        gone = {"max_tokens", "max_completion_tokens", *settled.values, *settled.unset}
        extra = {name: value for name, value in own.items() if name not in gone}
        extra |= {name: settled.values[name] for name in self._beside if name in settled.values}
        return extra

    def _happening_anyway(self) -> dict[str, Any]:
        """Expect nothing of servers of open models: each cuts the distribution in its own way."""
        return super()._happening_anyway() if self._is_openai else {}

    @property
    def _beside(self) -> frozenset[str]:
        # Many servers know max_tokens alone, and ChatOpenAI renames it in its keywords.
        renames = _is_a(self.model, "ChatOpenAI") and not self._is_openai
        return frozenset({"top_k", "max_tokens"} if renames else {"top_k"})

    @property
    def _is_openai(self) -> bool:
        base = getattr(self.model, "openai_api_base", None)
        return not base or f".{urlsplit(base).hostname or ''}".endswith(_OPENAI_HOSTS)


class TogetherDialect(OpenAIChatDialect):
    """ChatTogether: how many alternatives to list is the value of ``logprobs``."""

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Say the number of alternatives in the one keyword that there is."""
        found = super().keywords(settings)
        if found.pop("logprobs", False):
            found["logprobs"] = found.pop("top_logprobs", 1)
        return found


class ResponsesDialect(Dialect):
    """Chat models that are set to OpenAI's Responses API, whose log-probabilities LangChain leaves out."""

    takes = SETTINGS - {"n", "seed", "stop", "top_k"}
    least_tokens = 16
    fix = (
        "the Responses API gives them for models that do not reason: build it with ChatOpenAI(…, "
        'reasoning={"effort": "none"}), or with ChatOpenAI(…, use_responses_api=False) for chat completions; '
        f"{DO_WITHOUT}"
    )

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for log-probabilities by naming them among what is to be included."""
        found = dict(settings)
        if found.pop("logprobs", False):
            own = self.bound.get("include", getattr(self.model, "include", None)) or []
            found["include"] = list(dict.fromkeys([*own, "message.output_text.logprobs"]))
        return found

    def prepared(self, asked: Asked) -> Prepared:
        """Listen to what the SDK returns."""
        prepared = super().prepared(asked)
        overheard = Overheard(_responses_entries)
        methods = (("responses", "create"), ("responses", "with_raw_response", "create"))
        clients = {
            "root_client": getattr(prepared.model, "root_client", None),
            "root_async_client": _ClientHere(getattr(prepared.model, "root_async_client", None)),
        }
        changes = {name: Listening(client, overheard, *methods) for name, client in clients.items()}
        return prepared._replace(model=prepared.model.model_copy(update=changes), overheard=overheard)

    def logprobs_of(self, answer: Generation) -> Any:
        """Return what was overheard."""
        return self.metadata(answer).get(OVERHEARD)

    def _finish(self, answer: Generation) -> Any:
        info = self.metadata(answer)
        if info.get("status") == "incomplete":
            reason = (info.get("incomplete_details") or {}).get("reason")
            return "length" if reason == "max_output_tokens" else reason
        return info.get("status") and "stop"


class _ClientHere:
    """An async client of the SDK, with connections of the event loop that asks."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(client_of_this_loop(self._client), name)


def _responses_entries(answer: Any) -> Entries:
    """Return the log-probabilities in a response, or in one event of its stream."""
    if getattr(answer, "type", None) == "response.output_text.delta":
        return [_entry(one) for one in getattr(answer, "logprobs", None) or []]
    return [
        _entry(one)
        for output in getattr(answer, "output", None) or []
        if getattr(output, "type", None) == "message"
        for content in output.content
        for one in getattr(content, "logprobs", None) or []
    ]


def _entry(logprob: Any) -> dict[str, Any]:
    found: dict[str, Any] = logprob.model_dump()
    return found


class CompletionsDialect(Dialect):
    """LLMs over OpenAI's completions API."""

    takes = SETTINGS
    scores = True
    most_top_logprobs = COMPLETIONS_TOP_LOGPROBS
    fix = f"use a server that returns them for completions, or a local model; {DO_WITHOUT}"

    @property
    def top_logprobs(self) -> int:
        """Alternatives a token: here the user says it as ``logprobs``."""
        said = self.options.top_logprobs
        number = self.held().get("logprobs", self.most_top_logprobs) if said is None else said
        return min(int(number), self.understood.most.get("logprobs", number))

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Say the number of alternatives in the one keyword that there is."""
        found = {name: value for name, value in settings.items() if name not in ("top_k", "top_logprobs")}
        if found.pop("logprobs", False):
            # The sampled token's own comes with any number, but some servers take 0 for none at all.
            found["logprobs"] = settings.get("top_logprobs", 1)
        return found

    def prepared(self, asked: Asked) -> Prepared:
        """Ask for all samples at once; or to echo the prompt with its own log-probabilities."""
        settled = self.settled(asked)
        arguments = {**self.kept(settled), **self.keywords(settled.values)}
        if asked.echo:
            arguments |= {"echo": True, "max_tokens": 1, "temperature": 0.0}
        if "top_k" in settled.values:
            own = {**(getattr(self.model, "extra_body", None) or {}), **self.bound.get("extra_body", {})}
            arguments["extra_body"] = {**own, "top_k": settled.values["top_k"]}
        opened = OpenedStreams(self.options.limits)
        changes = {**self.fields_without(settled.unset), **opened.watched(self.model)}
        if getattr(self.model, "streaming", False) and not asked.streamed:
            # A streaming LLM answers with one sample, however many are asked for.
            changes["streaming"] = False
        return Prepared(self.copied(asked, **changes), arguments, opened)


def _is_a(model: object, name: str) -> bool:
    return any(base.__name__ == name for base in type(model).__mro__)
