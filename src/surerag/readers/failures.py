"""Turn errors of a model's client into errors of surerag, the same for every client and framework.

A method may degrade what may pass (overload, time-out, a lost connection) and what is wrong with one request
alone (too long, a strange reply). It may not where a service refuses whatever is sent (key, address, model,
parameter): every question would be answered worse, and a line in a log would be all there is to see.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from surerag.errors import (
    ContextLengthError,
    RefusedError,
    ServiceError,
    SureragError,
    TransientServiceError,
)

REFUSED_HINT = "check the model's name, the key, the address and the parameters that the model was built with"
PASSING_HINT = "check that the server can be reached, try again later, or raise max_retries or timeout"
STRANGE_HINT = (
    "the model's server or its client returned a reply that cannot be read; ask the server directly"
)
TOO_LONG_HINT = "give the model fewer or shorter passages, or fewer max_tokens"

_KEY = re.compile(r"Bearer\s+[^\s'\"]+|\bsk-[\w-]{6,}")

_MAY_PASS = frozenset({408, 409, 425, 429})
_PASSING_KINDS = (
    "Timeout",
    "Connection",
    "TransportError",
    "RateLimit",
    "Throttl",
    "Overloaded",
    "ReadError",
)
_LASTING_KINDS = ("UnsupportedProtocol", "InvalidURL", "LocalProtocolError", "TooManyRedirects")
_TOO_LONG = ("context_length", "context length", "context window", "maximum context", "exceed context")
_WITHHELD = ("content_filter", "content filter", "content management policy", "invalid_prompt", "flagged")
_MISUSED = ("unexpected keyword argument", "authentication method", "unknown model", "api key", "api_key")
_HINTS = {
    ContextLengthError: TOO_LONG_HINT,
    RefusedError: REFUSED_HINT,
    TransientServiceError: PASSING_HINT,
    ServiceError: STRANGE_HINT,
}


def service_error(error: BaseException, name: str, message: str = "") -> SureragError:
    """Return our error for one that a client raised; raise it ``from`` the client's.

    Args:
        error: The client's error; one of ours is returned as it is.
        name: Of the model, for the message.
        message: What the service answered, where the error's own text does not say it.

    Example:
        >>> print(service_error(IndexError("list index out of range"), "gpt").args[0][:52])
        gpt failed with IndexError: list index out of range.
    """
    if isinstance(error, SureragError):
        return error
    kind = kind_of(error, message)
    return kind(f"{name} failed with {type(error).__name__}: {message or error}", hint=_HINTS[kind])


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without these secrets, and without what looks like a key.

    Example:
        >>> masked("Invalid key 9f8e7d6c; sent with Bearer abc", ["9f8e7d6c"])
        'Invalid key [key]; sent with [key]'
    """
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= 8:
            text = text.replace(secret, "[key]")
        elif secret:
            text = re.sub(rf"(?<![\w-]){re.escape(secret)}(?![\w-])", "[key]", text)
    return _KEY.sub("[key]", text)


def reply_of(error: BaseException) -> str:
    """Return the beginning of what a server sent, where an error or what it was raised from carries it."""
    for cause in _causes(error):
        with suppress(Exception):
            response = getattr(getattr(cause, "response", None), "text", None)
            sent = (getattr(cause, name, None) for name in ("doc", "body", "obj"))
            for text in (*sent, response):
                if text and isinstance(text, str | bytes | Mapping | list):
                    return str(text)[:300]
    return ""


def kind_of(error: BaseException, message: str = "") -> type[ServiceError]:
    """Return which of our errors a client's error is.

    Example:
        >>> kind_of(TimeoutError()).__name__, kind_of(ValueError("no JSON")).__name__
        ('TransientServiceError', 'ServiceError')
    """
    text = (message or str(error)).lower()
    if "insufficient_quota" in text:
        # Comes as a 429, and passes when somebody pays.
        return RefusedError
    if any(sign in text for sign in _TOO_LONG):
        return ContextLengthError
    status = status_of(error)
    if status is None and any(map(_is_lasting, _causes(error))):
        return RefusedError
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if any(sign in names for sign in _PASSING_KINDS):
        return TransientServiceError
    if status is None:
        return RefusedError if _is_misuse(error, text) else ServiceError
    return _kind_of_status(status, text)


def _kind_of_status(status: int, text: str) -> type[ServiceError]:
    if status in _MAY_PASS or status >= 500:
        return TransientServiceError
    if status == 413:
        return ContextLengthError
    if status < 400 or any(sign in text for sign in _WITHHELD):
        return ServiceError
    return RefusedError


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that a client's error carries, or the error that it was raised from."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        aws = response.get("ResponseMetadata", {}) if isinstance(response, Mapping) else {}
        body = getattr(cause, "body", None)
        places = (
            getattr(cause, "status_code", None),
            getattr(cause, "code", None),
            getattr(response, "status_code", None),
            aws.get("HTTPStatusCode"),
            body.get("code") if isinstance(body, Mapping) else None,
        )
        for status in places:
            if isinstance(status, int | str) and str(status).isdigit() and 100 <= int(status) < 600:
                return int(status)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        # A client may hide the cause that it was raised from.
        error = error.__cause__ or error.__context__


def _is_lasting(error: BaseException) -> bool:
    """Whether a connection fails for good: a wrong address, a name that is not there, TLS to a plain port."""
    if isinstance(error, socket.gaierror):
        return error.errno != socket.EAI_AGAIN
    if isinstance(error, ssl.SSLError):
        return "EOF" not in str(error)
    if isinstance(error, UnicodeError) and "idna" in str(error):
        return True
    return any(sign in kind.__name__ for kind in type(error).__mro__ for sign in _LASTING_KINDS)


def _is_misuse(error: BaseException, text: str) -> bool:
    """Whether a client refused before it asked: unknown option, no key, a library that is missing."""
    if isinstance(error, ImportError) or type(error).__name__ == "OpenAIError":
        return True
    return isinstance(error, TypeError | ValueError) and any(sign in text for sign in _MISUSED)
