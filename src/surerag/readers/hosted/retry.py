"""When a failed request is sent again, and how long before."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NoReturn

from surerag.errors import TransientServiceError

if TYPE_CHECKING:
    from tenacity import RetryCallState


NOBODY = "nobody answers at"
"""How the message begins where no server listens."""


class OverloadedError(TransientServiceError):
    """A failure that may pass, with the time that the server asked to be left alone.

    Attributes:
        retry_after: Seconds, as the server asked for; None if it did not say.
        refused: Whether the server had more to do than it would take.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, refused: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.refused = refused


class DeadlineError(TransientServiceError):
    """An answer took longer than it may. Asking again at once would take as long once more."""


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return the seconds that a response asks to wait, or None.

    Args:
        headers: Headers of the response, in lower case.
        now: Unix time; the clock's, unless given.

    Example:
        >>> retry_after({"retry-after": "7"}), retry_after({"retry-after-ms": "250"}), retry_after({})
        (7.0, 0.25, None)
    """
    given = headers.get("retry-after", "")
    for value, unit in ((headers.get("retry-after-ms", ""), 0.001), (given, 1.0)):
        try:
            seconds = float(value) * unit
        except ValueError:
            continue
        if not math.isnan(seconds):
            return max(0.0, seconds)
    try:
        moment = parsedate_to_datetime(given).timestamp()
    except (ValueError, OverflowError, OSError):
        # No date, or one that no clock will ever show.
        return None
    return max(0.0, moment - (time.time() if now is None else now))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how patiently, a request is sent again.

    Attributes:
        retries: Attempts after the first one.
        max_wait: Longest pause in seconds; a server that asks for a longer one is not asked again.
    """

    retries: int
    max_wait: float

    def settings(self) -> dict[str, Any]:
        """Return arguments for tenacity's ``Retrying`` and ``AsyncRetrying``."""
        import tenacity

        return {
            "stop": tenacity.stop_after_attempt(self.retries + 1),
            "wait": self.wait,
            "retry": tenacity.retry_if_exception(self.again),
            "retry_error_callback": _give_up,
        }

    def again(self, error: BaseException) -> bool:
        """Whether a failure may pass, and soon enough."""
        if not isinstance(error, TransientServiceError) or isinstance(error, DeadlineError):
            return False
        asked = error.retry_after if isinstance(error, OverloadedError) else None
        return asked is None or asked <= self.max_wait

    def wait(self, state: RetryCallState) -> float:
        """Return the pause before the next attempt: the server's, or random and growing."""
        import tenacity

        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, OverloadedError) and error.retry_after is not None:
            return error.retry_after
        grown = tenacity.wait_random_exponential(multiplier=0.5, max=self.max_wait)
        return grown(state)


def _give_up(state: RetryCallState) -> NoReturn:
    last = state.outcome.exception() if state.outcome else None
    raise TransientServiceError(
        f"the server failed {state.attempt_number} times; at last: {last}",
        hint="start the server there (such as vllm serve MODEL, llama-server, or ollama serve), or give "
        "the address that it listens at"
        if str(last).startswith(NOBODY)
        else "look whether it can be reached, try again later, or raise retries, timeout or max_wait",
    )
