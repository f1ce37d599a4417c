"""What one LLM was found to refuse, remembered; requests are made again without it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from llama_index_surerag._settings import LLMSettingWarning, Overridden
from surerag.errors import (
    ContextLengthError,
    LogprobsRefusedError,
    RefusedError,
    SureragError,
    TransientServiceError,
)
from surerag.messages import SamplingParams
from surerag.readers.failures import kind_of, status_of
from surerag.readers.refusals import Understood, needed, refusals_in, tell_left_out

T = TypeVar("T")

WITHOUT_LOGPROBS = (
    'without them, use gate="disagreement" for lazy retrieval, metric="disagreement" for rewriting and '
    'weights="frequency" for ΔSePer'
)
"""What serves an LLM that answers in text alone."""

LOGPROBS_HINT = (
    "log-probabilities come from HuggingFaceLLM, from OpenAILike(api_base=…, is_chat_model=True) over vLLM "
    "or llama.cpp, and from OpenAI's models that do not think (gpt-5.1 and later: "
    f'reasoning_effort="none"); {WITHOUT_LOGPROBS}'
)

_MOST_LESSONS = 8
"""Refusals to learn from in one request: more parameters than these there are none."""

_LOGPROBS = frozenset({"logprobs", "top_logprobs"})


class Manners:
    """What one LLM takes; shared by all threads that ask it.

    Args:
        name: Of the LLM, for messages.
        names: What its service calls parameters, by the names of OpenAI's API, where that differs.
        logprobs_hint: What to do where log-probabilities are refused, or missing.

    Attributes:
        logprobs_hint: As given.
        understood: What was learnt.
        thinks: Whether the model was seen to think before it answers.
        opened: Whether its prompt template opens the thoughts, so that only their end is marked.
    """

    def __init__(
        self, name: str, names: Mapping[str, str] | None = None, logprobs_hint: str = LOGPROBS_HINT
    ) -> None:
        self.understood = Understood()
        self.thinks = False
        self.opened = False
        self._name = name
        self._names = dict(names or {})
        self.logprobs_hint = logprobs_hint
        self._told: set[str] = set()
        self._left_out: set[str] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Manners], tuple[str, dict[str, str], str]]:
        """A pickle or a deep copy has everything to learn again."""
        return Manners, (self._name, self._names, self.logprobs_hint)

    def takes(self, name: str) -> bool:
        """Whether a parameter is not known to be refused."""
        return name not in self.understood.dropped

    def most(self, name: str, value: int) -> int:
        """Return a number, or the largest that the service takes."""
        return min(value, self.understood.most.get(self._names.get(name, name), value))

    def send(
        self, parameters: Mapping[str, Any], sampling: SamplingParams, call: Callable[[dict[str, Any]], T]
    ) -> T:
        """Make a call with parameters, and again without those that turn out to be refused.

        Args:
            parameters: By the service's names, or those of OpenAI's API.
            sampling: What the method needs.
            call: Makes the request.

        Raises:
            RefusedError: If something is refused that the method depends on.
        """
        named = {self._names.get(name, name): value for name, value in parameters.items()}
        for _ in range(_MOST_LESSONS):
            understood = self.understood
            self._tell_left_out(named, understood, sampling)
            try:
                return call(understood.render(named))
            except Exception as error:
                self._learn(error, named, sampling, understood)
        return call(self.understood.render(named))

    async def asend(
        self,
        parameters: Mapping[str, Any],
        sampling: SamplingParams,
        call: Callable[[dict[str, Any]], Awaitable[T]],
    ) -> T:
        """Like ``send``."""
        named = {self._names.get(name, name): value for name, value in parameters.items()}
        for _ in range(_MOST_LESSONS):
            understood = self.understood
            self._tell_left_out(named, understood, sampling)
            try:
                return await call(understood.render(named))
            except Exception as error:
                self._learn(error, named, sampling, understood)
        return await call(self.understood.render(named))

    def tell(self, overridden: Iterable[Overridden]) -> None:
        """Say once of each setting that it gives way to a method's."""
        for setting in overridden:
            self.say_once(
                setting.name,
                f"{self._name} was built with {setting.name}={setting.built!r}, and is asked with "
                f"{setting.name}={setting.used!r}: the method's result depends on it",
            )

    def say_once(self, about: str, message: str) -> None:
        """Warn of how a setting is handled, the first time that it comes up."""
        with self._lock:
            told = about in self._told
            self._told.add(about)
        if not told:
            warnings.warn(message, LLMSettingWarning, stacklevel=2)

    def _learn(
        self, error: Exception, sent: Mapping[str, Any], sampling: SamplingParams, understood: Understood
    ) -> None:
        """Learn from a failure what to leave out; raise it where asking again would be no use."""
        message = _said(error)
        passing = kind_of(error) in (TransientServiceError, ContextLengthError)
        if isinstance(error, SureragError) or passing or status_of(error) == 401:
            raise error
        depends = {self._names.get(name, name) for name in needed(sampling)}
        with self._lock:
            if self.understood.render(sent) != understood.render(sent):
                # Another thread has learnt it meanwhile.
                return
            learnt = self.understood.learnt(message, sent, depends)
            if learnt is not None:
                self.understood = learnt
        if learnt is None:
            refused = {refusal.name for refusal in refusals_in(message, sent)} & depends
            if sampling.trace != "none" and "logprob" in message.lower():
                refused.add("logprobs")
            self._explain(error, message, refused)
            raise error

    def _tell_left_out(
        self, asked: Mapping[str, Any], understood: Understood, sampling: SamplingParams
    ) -> None:
        """Say once of each parameter that it is left out, when that may be felt."""
        with self._lock:
            fresh = {name for name in asked if name in understood.dropped} - self._left_out
            self._left_out |= fresh
        if fresh:
            told = tell_left_out(self._name, fresh, sampling)
            with self._lock:
                self._left_out -= fresh.difference(told)

    def _explain(self, error: Exception, message: str, refused: set[str]) -> None:
        """Raise our error for what a method cannot do without."""
        if refused & (_LOGPROBS | {self._names.get(name, name) for name in _LOGPROBS}):
            raise LogprobsRefusedError(
                f"{self._name} refuses to be asked for log-probabilities: {message[:300]}",
                hint=self.logprobs_hint,
            ) from error
        if refused:
            raise RefusedError(
                f"{self._name} refuses {' and '.join(sorted(refused))}, and several answers have to be drawn "
                f"with it: {message[:300]}",
                hint="use a model that can be told how to sample, such as HuggingFaceLLM or "
                "OpenAILike(api_base=…, is_chat_model=True)",
            ) from error


def _said(error: Exception) -> str:
    """Return what a service said: some clients leave the better part of it out of an error's text."""
    body = getattr(error, "body", None)
    return f"{error} {body}" if body and str(body) not in str(error) else str(error)
