"""Requests to a user's ``OpenAIResponses``, and its answers in the form of OpenAI's chat API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.llms import LLM

from llama_index_surerag._lent import Asking, AsyncLine, Body, LentAsyncClient, LentClient, Line
from llama_index_surerag._manners import Manners
from llama_index_surerag._openai_requests import class_temperature, plain
from llama_index_surerag._settings import asked
from llama_index_surerag.prompts import messages_for
from surerag.messages import Prompt, SamplingParams
from surerag.readers.hosted.limits import Limits
from surerag.readers.hosted.loops import client_of_this_loop
from surerag.readers.hosted.parse import Json

_LOGPROBS = "message.output_text.logprobs"
_TAKES = frozenset({"max_tokens", "temperature", "top_p", "logprobs", "top_logprobs"})
_OURS = frozenset({"max_output_tokens", "temperature", "top_p", "top_logprobs"})


class ResponsesRequests:
    """What a reader asks of one ``OpenAIResponses``: one answer a request, without seeds and stop texts.

    Args:
        llm: The LLM.
        manners: What it takes.
        top_logprobs: Likeliest tokens to list at each step, where entropies are needed.
        limits: What its service may take for one answer.
    """

    streams = native_async = tells_end = True
    several = False

    def __init__(self, llm: LLM, manners: Manners, top_logprobs: int, limits: Limits) -> None:
        self._base: Any = llm.model_copy()
        self._manners = manners
        self._top_logprobs = top_logprobs
        self._limits = limits

    @property
    def top_logprobs(self) -> int:
        """Likeliest tokens that the server lists, as far as is known."""
        return self._manners.most("top_logprobs", self._top_logprobs)

    def ask(self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int) -> Json:
        """Return an answer with one choice."""
        llm, _ = self._lent(sampling)
        return _whole(plain(llm.chat(messages_for(llm, prompt)).raw))

    async def aask(self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int) -> Json:
        """Like ``ask``."""
        llm, _ = self._alent(sampling)
        return _whole(plain((await llm.achat(messages_for(llm, prompt))).raw))

    def open(self, prompt: Prompt, sampling: SamplingParams) -> Line:
        """Open a stream of LlamaIndex responses, each of which :meth:`piece` reads."""
        llm, client = self._lent(sampling)
        return Line(llm.stream_chat(messages_for(llm, prompt)), client)

    async def aopen(self, prompt: Prompt, sampling: SamplingParams) -> AsyncLine:
        """Like ``open``."""
        llm, client = self._alent(sampling)
        return AsyncLine(await llm.astream_chat(messages_for(llm, prompt)), client)

    def piece(self, response: Any) -> Json:
        """Return a streamed event in the form of the chat API."""
        event = plain(response.raw)
        kind = str(event.get("type"))
        if kind == "response.output_text.delta":
            return {"choices": [_choice("delta", event.get("delta"), event.get("logprobs"))]}
        if kind in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
            return {"choices": [{"index": 0, "delta": {"reasoning_content": event.get("delta")}}]}
        if kind in ("response.completed", "response.incomplete"):
            answer = event.get("response") or {}
            ended = {"index": 0, "delta": {"content": ""}, "finish_reason": _finish(answer)}
            return {"choices": [ended], "usage": _usage(answer)}
        return {"choices": []}

    def _body(self, body: dict[str, Any], sampling: SamplingParams) -> Body:
        """Return what is sent in place of what the LLM would send."""
        built = {name: body[name] for name in _OURS if body.get(name) is not None}
        if "max_output_tokens" in built:
            built["max_tokens"] = built.pop("max_output_tokens")
        if built.get("temperature") == class_temperature(self._base):
            # Not the user's choice, but the class's; so is the mass.
            built.pop("temperature", None)
        if built.get("top_p") == 1:
            del built["top_p"]
        found = asked(
            sampling, built, takes=_TAKES, top_logprobs=self._top_logprobs, thinks=self._manners.thinks
        )
        self._manners.tell(found.overridden)
        parameters = dict(found.parameters)
        if "max_tokens" in parameters:
            parameters["max_output_tokens"] = parameters.pop("max_tokens")
        if parameters.get("top_p") == 1:
            del parameters["top_p"]
        kept = {
            name: value
            for name, value in body.items()
            # The class sends what nobody set, too; not every server knows all of it.
            if name not in _OURS and value not in (None, []) and (name, value) != ("truncation", "disabled")
        }
        if parameters.pop("logprobs", None):
            # Without it, an empty list comes back.
            kept["include"] = [*(kept.get("include") or ()), _LOGPROBS]
        return Body(kept, parameters)

    def _lent(self, sampling: SamplingParams) -> tuple[Any, LentClient]:
        llm = self._base.model_copy()
        client = LentClient(self._base._client, self._asking(sampling))
        llm._client = client
        return llm, client

    def _alent(self, sampling: SamplingParams) -> tuple[Any, LentAsyncClient]:
        llm = self._base.model_copy()
        client = LentAsyncClient(client_of_this_loop(self._base._aclient), self._asking(sampling))
        llm._aclient = client
        return llm, client

    def _asking(self, sampling: SamplingParams) -> Asking:
        return Asking(self._manners, sampling, lambda body: self._body(body, sampling), self._limits)


def _whole(answer: Json) -> Json:
    """Return a response in the form of the chat API."""
    said = [item for item in answer.get("output") or () if isinstance(item, Mapping)]
    texts = _parts(said, "message", "content", "output_text")
    thoughts = [*_parts(said, "reasoning", "content"), *_parts(said, "reasoning", "summary")]
    listed = [entry for text in texts for entry in text.get("logprobs") or ()]
    choice = _choice("message", "".join(str(text.get("text") or "") for text in texts), listed)
    if thoughts:
        choice["message"]["reasoning_content"] = "\n".join(str(part.get("text") or "") for part in thoughts)
    return {"choices": [{**choice, "finish_reason": _finish(answer)}], "usage": _usage(answer)}


def _parts(said: Sequence[Json], kind: str, key: str, part_kind: str | None = None) -> list[Json]:
    return [
        part
        for item in said
        if item.get("type") == kind
        for part in item.get(key) or ()
        if part_kind in (None, part.get("type"))
    ]


def _choice(key: str, text: Any, listed: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, key: {"role": "assistant", "content": text}}
    if listed:
        choice["logprobs"] = {"content": listed}
    return choice


def _finish(answer: Json) -> str:
    why = (answer.get("incomplete_details") or {}).get("reason")
    return {"max_output_tokens": "length", "content_filter": "content_filter"}.get(str(why), "stop")


def _usage(answer: Json) -> Json:
    usage = answer.get("usage") or {}
    details = usage.get("output_tokens_details") or {}
    read = usage.get("input_tokens_details") or {}
    return {
        "prompt_tokens_details": {"cached_tokens": read.get("cached_tokens")},
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "completion_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens")},
    }
