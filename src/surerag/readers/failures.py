"""Kinds of failure, told from what a client's error carries: the same for our clients and the frameworks'.

A method may degrade what may pass (overload, time-out, a lost connection) and what is wrong with one request
alone (too long, withheld). It may not where a service refuses whatever is asked (key, address, model,
parameter): every question would be answered worse, and a line in a log would be all there is to see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from surerag.errors import (
    ContextLengthError,
    RefusedError,
    ServiceError,
    SureragError,
    TransientServiceError,
)

REFUSED_HINT = "check the model's name, the key, the address and the parameters that the model was built with"

_MAY_PASS = frozenset({408, 409, 425, 429})
_PASSING_KINDS = ("Timeout", "Connection", "TransportError", "RateLimit", "Throttl", "Overloaded")
_TOO_LONG = ("context_length", "context length", "context window", "maximum context", "exceed context")
_WITHHELD = ("content_filter", "content filter", "content management policy", "invalid_prompt", "flagged")
_MISUSED = ("unexpected keyword argument", "authentication method", "unknown model", "api key", "api_key")


def kind_of(error: BaseException, message: str = "") -> type[ServiceError]:
    """Return which of our errors a client's error is.

    Args:
        error: What the client raised.
        message: What the service said, where the error's own text does not tell.

    Example:
        >>> kind_of(TimeoutError()).__name__, kind_of(ValueError("no JSON")).__name__
        ('TransientServiceError', 'ServiceError')
    """
    said = (message or str(error)).lower()
    if "insufficient_quota" in said:
        # Comes as a 429, and passes when somebody pays.
        return RefusedError
    if any(sign in said for sign in _TOO_LONG):
        return ContextLengthError
    kinds = " ".join(kind.__name__ for kind in type(error).__mro__)
    if any(sign in kinds for sign in _PASSING_KINDS):
        return TransientServiceError
    status = status_of(error)
    if status is None:
        return RefusedError if _is_misuse(error, said) else ServiceError
    if status in _MAY_PASS or status >= 500:
        return TransientServiceError
    if status == 413:
        return ContextLengthError
    if status < 400 or any(sign in said for sign in _WITHHELD):
        return ServiceError
    return RefusedError


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status that a client's error carries, or the error that it was raised from."""
    while error is not None:
        response = getattr(error, "response", None)
        aws = response.get("ResponseMetadata", {}) if isinstance(response, Mapping) else {}
        places = (
            getattr(error, "status_code", None),
            getattr(error, "code", None),
            getattr(response, "status_code", None),
            aws.get("HTTPStatusCode"),
        )
        for found in places:
            if isinstance(found, int) and 100 <= found < 600:
                return int(found)
        error = error.__cause__
    return None


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Turn what a service refuses for good into our error, and let everything else be.

    Args:
        name: Of the model, for the message.

    Raises:
        RefusedError: If the service would refuse every request of this kind.
    """
    try:
        yield
    except SureragError:
        raise
    except Exception as error:
        if kind_of(error) is not RefusedError:
            raise
        raise RefusedError(
            f"{name} was refused with {type(error).__name__}: {error}", hint=REFUSED_HINT
        ) from error


def _is_misuse(error: BaseException, said: str) -> bool:
    """Whether a client refused before it asked: unknown option, no key, a library that is missing."""
    if isinstance(error, ImportError) or type(error).__name__ == "OpenAIError":
        return True
    return isinstance(error, TypeError | ValueError) and any(sign in said for sign in _MISUSED)
