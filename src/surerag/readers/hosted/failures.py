"""The SDK's errors, translated into ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from surerag.errors import (
    ContextLengthError,
    LogprobsError,
    LogprobsRefusedError,
    RefusedError,
    ServiceError,
    TransientServiceError,
)
from surerag.readers.failures import REFUSED_HINT, kind_of, status_of
from surerag.readers.hosted.logprobs import NO_LOGPROBS_HINT
from surerag.readers.hosted.retry import NOBODY, OverloadedError, retry_after
from surerag.readers.hosted.text import malformed
from surerag.readers.refusals import refusals_in

_HINTS = {
    401: "set OPENAI_API_KEY, or pass api_key=…",
    403: "set OPENAI_API_KEY, or pass api_key=…",
    404: "check the model's name, and that base_url ends with the API's root, such as …/v1",
}

_BUSY = frozenset({429, 503, 529})
"""What servers answer that have too much to do; 529 is Anthropic's."""


class ToldError(Exception):
    """A failure that a server tells within an answer, as OpenRouter and every stream does.

    Attributes:
        status_code: The HTTP status that it would have been, if the server says so.
        body: What the server said.
    """

    def __init__(self, body: object) -> None:
        super().__init__(str(body))
        self.body = body
        code = body.get("code") if isinstance(body, Mapping) else None
        told = int(code) if isinstance(code, int | str) and str(code).isdigit() else None
        self.status_code = told if told is not None and 400 <= told < 600 else None


def sdk_errors() -> tuple[type[Exception], ...]:
    """Return what may come of a request: the SDK's errors, those of HTTP and JSON, and those told within."""
    import httpx
    import openai

    return (openai.OpenAIError, httpx.HTTPError, httpx.StreamError, ValueError, RecursionError, ToldError)


def said(error: Exception) -> str:
    """Return what the server said about a failure; a router's words, and those of the service behind it."""
    body = getattr(error, "body", None)
    words = list(dict.fromkeys(_words(body)))
    return ": ".join(words) if words else str(body or error)


def _words(body: object) -> Iterator[str]:
    if not isinstance(body, Mapping):
        return
    inner = body.get("error")
    detail = inner if isinstance(inner, Mapping) else body
    yield from (str(detail[key]) for key in ("code", "message", "detail") if detail.get(key))
    if detail.get("param") and detail.get("code") in ("unsupported_parameter", "unknown_parameter"):
        yield f"unsupported parameter {detail['param']}"
    metadata = detail.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    if isinstance(raw, str):
        try:
            yield from _words(json.loads(raw))
        except (ValueError, RecursionError):
            yield raw


def refused(error: Exception) -> bool:
    """Whether the server refused the request's form, so that another form may do.

    OpenAI answers 403 where a model gives no log-probabilities.
    """
    return status_of(error) in (400, 403, 422)


def hint_for(name: str, otherwise: str = REFUSED_HINT) -> str:
    """Return what to change where a service refuses a field that is needed."""
    hints = {
        "temperature": "sample at temperature=1.0, or use a model that can be told how to sample; OpenAI's "
        'from gpt-5.1 on can with thinking=False (reasoning_effort="none")',
        "top_p": "sample with top_p=1.0",
        "top_k": "sample with top_k=None",
    }
    return hints.get(name, otherwise)


def explained(
    error: Exception, server: str, asked: Mapping[str, Any], clean: Callable[[str], str]
) -> ServiceError:
    """Return our error for one of the SDK's.

    The SDK's error itself is left behind: it holds the request, and the request holds the key.

    Args:
        error: What was raised.
        server: The server's host, for the message.
        asked: Body of the request.
        clean: Takes secrets out of a text.
    """
    import httpx
    import openai

    message = clean(said(error))[:300].rstrip(". ")
    if isinstance(error, openai.APITimeoutError | httpx.TimeoutException):
        return OverloadedError(f"{server} did not answer in time")
    if isinstance(error, openai.APIConnectionError | httpx.TransportError):
        cause = error.__cause__ or error
        if "refused" in str(cause).lower():
            return OverloadedError(f"{NOBODY} {server}: the connection was refused")
        return OverloadedError(f"the connection to {server} failed: {clean(str(cause))[:300]}")
    kind = kind_of(error, message)
    if "logprob" in message.lower() and ("logprobs" in asked or "include" in asked):
        without = LogprobsRefusedError if kind is RefusedError else LogprobsError
        return without(f"{server} gives no log-probabilities: {message}", hint=NO_LOGPROBS_HINT)
    if kind is ContextLengthError:
        return ContextLengthError(
            f"the prompt does not fit the model's window: {message}",
            hint="give it fewer or shorter passages, or fewer max_tokens (or thinking_tokens, if it thinks)",
        )
    status = status_of(error)
    if status is not None and status >= 400:
        if kind is TransientServiceError:
            response = getattr(error, "response", None)
            wait = retry_after(response.headers) if response is not None else None
            asked_for = f", and asks to wait {wait:g} s" if wait is not None else ""
            return OverloadedError(
                f"{server} answered {status}{asked_for}: {message}",
                retry_after=wait,
                refused=status in _BUSY,
            )
        if kind is RefusedError:
            names = [refusal.name for refusal in refusals_in(message, asked)]
            hint = hint_for(names[0] if names else "", _HINTS.get(status, REFUSED_HINT))
            return RefusedError(f"{server} refused the request ({status}): {message}", hint=hint)
        return ServiceError(f"{server} refused the request ({status}): {message}")
    if isinstance(error, ToldError):
        return ServiceError(f"the server failed while it answered: {message}")
    if isinstance(error, openai.APIError | openai.OpenAIError):
        failed = RefusedError if kind is RefusedError else ServiceError
        return failed(f"{server} failed: {message}")
    return malformed(message)
