"""One exception per kind of failure; each says what was found and how to mend it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

TROUBLESHOOTING = "https://surerag.github.io/surerag/guides/troubleshooting.html"
"""The page with a place for each class of this file."""


class SureragError(Exception):
    """Base of all errors that surerag raises on purpose.

    A traceback ends with the address of the page that tells more about its class.

    Attributes:
        hint: What to do about it; part of the message.
        retryable: Whether the same call may succeed later.
    """

    retryable: bool = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        # What a service said may end as a sentence does.
        told = message.removesuffix(".")
        super().__init__(f"{told}. {hint[:1].upper()}{hint[1:]}." if hint else message)
        self.hint = hint
        self.add_note(f"More about it: {self.page}")

    @property
    def page(self) -> str:
        """Where the documentation tells what to do about errors of this class.

        Example:
            >>> ConfigurationError("no such option").page
            'https://surerag.github.io/surerag/guides/troubleshooting.html#configurationerror'
        """
        told = next((kind for kind in type(self).__mro__ if kind.__module__ == __name__), SureragError)
        return TROUBLESHOOTING if told is SureragError else f"{TROUBLESHOOTING}#{told.__name__.lower()}"


class ConfigurationError(SureragError, ValueError):
    """A setting has a value that cannot work."""


class PromptError(SureragError, ValueError):
    """A prompt's slots do not fit what is filled in."""


class InputError(SureragError, ValueError):
    """What was passed in (a question, a corpus, a document) cannot be used."""


class StorageError(SureragError, OSError):
    """A file or folder cannot be written: full, read-only, failing, or something else stands there.

    Answers that cannot be kept would be paid for again, so it ends a whole run, not one of its rows.
    """


class BudgetError(SureragError):
    """A run would cost more than it may; what was answered before is kept."""


class MissingExtraError(SureragError, ImportError):
    """An optional dependency is not installed; the hint names the pip line."""


class ServiceError(SureragError, RuntimeError):
    """A reader, encoder, entailer or retriever failed."""


class MissingServiceError(SureragError, TypeError):
    """A method needs a service that was not given."""


class CapabilityError(SureragError, TypeError):
    """A service cannot do what a method needs of it."""


class LogprobsError(ServiceError):
    """Log-probabilities are missing, null or not numbers."""


class ContextLengthError(ServiceError):
    """A prompt does not fit the model's window; the message says by how much.

    Attributes:
        inputs: Those of the call that do not fit, as they were passed in, where the service knows.
    """

    def __init__(self, message: str, *, hint: str = "", inputs: Sequence[Hashable] = ()) -> None:
        super().__init__(message, hint=hint)
        self.inputs = tuple(inputs)


class ThinkingBudgetError(ServiceError):
    """A model was still thinking when its budget of tokens was spent, so that there is no answer."""


class RefusedError(ServiceError):
    """A service refuses every such request: key, address, model, or a parameter that it does not know."""


class LogprobsRefusedError(RefusedError, LogprobsError):
    """A service refuses to be asked for log-probabilities."""


class TransientServiceError(ServiceError):
    """A service failed in a way that may pass: rate limit, overload, time-out."""

    retryable = True


MISCONFIGURED = (
    CapabilityError,
    ConfigurationError,
    MissingExtraError,
    MissingServiceError,
    PromptError,
    RefusedError,
)
"""Failures that say how a pipeline was put together; no fallback hides them."""
