"""The SDK's errors, translated into ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from surerag.errors import (
    ContextLengthError,
    LogprobsError,
    LogprobsRefusedError,
    RefusedError,
    ServiceError,
    TransientServiceError,
)
from surerag.readers.failures import REFUSED_HINT, kind_of
from surerag.readers.openai.parse import NO_LOGPROBS_HINT, malformed
from surerag.readers.openai.retry import OverloadedError, retry_after

_HINTS = {
    401: "set OPENAI_API_KEY, or pass api_key=…",
    403: "set OPENAI_API_KEY, or pass api_key=…",
    404: "check the model's name, and that base_url ends with the API's root, such as …/v1",
}


def sdk_errors() -> tuple[type[Exception], ...]:
    """Return what the SDK raises: its own errors, and those of HTTP and JSON that a stream lets through."""
    import httpx
    import openai

    return (openai.OpenAIError, httpx.HTTPError, httpx.StreamError, ValueError, RecursionError)


def said(error: Exception) -> str:
    """Return what the server said about a failure."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        inner = body.get("error")
        detail = inner if isinstance(inner, Mapping) else body
        words = [str(detail[key]) for key in ("code", "message", "detail") if detail.get(key)]
        if detail.get("param") and detail.get("code") in ("unsupported_parameter", "unknown_parameter"):
            words.append(f"unsupported parameter {detail['param']}")
        if words:
            return ": ".join(words)
    return str(body or error)


def refused(error: Exception) -> bool:
    """Whether the server refused the request's form, so that another form may do."""
    return getattr(error, "status_code", None) in (400, 422)


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

    message = clean(said(error))[:300]
    if isinstance(error, openai.APITimeoutError | httpx.TimeoutException):
        return OverloadedError(f"{server} did not answer in time")
    if isinstance(error, openai.APIConnectionError | httpx.TransportError):
        cause = error.__cause__ or error
        return OverloadedError(f"the connection to {server} failed: {clean(str(cause))[:300]}")
    kind = kind_of(error, message)
    if "logprob" in message.lower() and "logprobs" in asked:
        without = LogprobsRefusedError if kind is RefusedError else LogprobsError
        return without(f"{server} gives no log-probabilities: {message}", hint=NO_LOGPROBS_HINT)
    if kind is ContextLengthError:
        return ContextLengthError(
            f"the prompt does not fit the model's window: {message}",
            hint="give it fewer or shorter passages, or fewer max_tokens",
        )
    if isinstance(error, openai.APIStatusError):
        status = error.status_code
        if kind is TransientServiceError:
            wait = retry_after(error.response.headers)
            asked_for = f", and asks to wait {wait:g} s" if wait is not None else ""
            return OverloadedError(f"{server} answered {status}{asked_for}: {message}", retry_after=wait)
        if kind is RefusedError:
            hint = _HINTS.get(status, REFUSED_HINT)
            return RefusedError(f"{server} refused the request ({status}): {message}", hint=hint)
        return ServiceError(f"{server} refused the request ({status}): {message}")
    if isinstance(error, openai.APIError | openai.OpenAIError):
        failed = RefusedError if kind is RefusedError else ServiceError
        return failed(f"{server} failed: {message}")
    return malformed(message)
