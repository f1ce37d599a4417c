"""What a reader learnt about its models: what they refuse, whether they think, and what was said of it."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from langchain_surerag.dialects import Asked, Dialect, LanguageModel, tell_overruled
from surerag.errors import LogprobsRefusedError, RefusedError, ServiceError
from surerag.readers.failures import kind_of, status_of
from surerag.readers.hosted.failures import said
from surerag.readers.refusals import Understood, needed, refusals_in, tell_left_out

if TYPE_CHECKING:
    from langchain_surerag._streams import Draft

_REFUSALS = (None, 400, 403, 422)
"""Statuses by which a request is refused for what is in it; clients that refuse by themselves have none."""


class Memory:
    """What is known of each of a reader's models, by its identity; threads may share it."""

    def __init__(self) -> None:
        self._understood: dict[str, Understood] = {}
        self._thinking: set[str] = set()
        self._opened: set[str] = set()
        self._reasons: dict[tuple[str, str], str] = {}
        self._said: set[Hashable] = set()
        self._lock = threading.Lock()

    def informed(self, dialect: Dialect) -> Dialect:
        """Return a dialect that knows what is known of its model."""
        name = identity(dialect.model)
        with self._lock:
            understood = self._understood.get(name, dialect.understood)
            thinks, opened = name in self._thinking or dialect.options.thinking, name in self._opened
        return replace(dialect, understood=understood, thinks=thinks, opened=opened)

    def saw(self, draft: Draft) -> bool:
        """Note whether an answer was thought about first; return whether that is news.

        Then the model had no tokens allowed for it, or its thoughts were taken for the answer.
        """
        dialect = draft.dialect
        if dialect is None or not (draft.thought or draft.opened):
            return False
        name = identity(dialect.model)
        with self._lock:
            self._thinking.add(name)
            if draft.opened:
                self._opened.add(name)
        return not dialect.thinks or (draft.opened and not dialect.opened)

    def require(self, dialect: Dialect, asked: Asked) -> None:
        """Refuse to ask for what cannot be had: several answers drawn at a temperature that is refused.

        Raises:
            RefusedError: With the provider's own words.
        """
        for name in sorted(
            _kept(dialect, asked) & dialect.understood.dropped & dialect.attempted(asked).keys()
        ):
            with self._lock:
                message = self._reasons.get((identity(dialect.model), name), "")
            raise _refusal(dialect, name, message)

    def tell(self, dialect: Dialect, asked: Asked) -> None:
        """Say once of each of the user's settings that it gives way."""
        name = identity(dialect.model)
        for overruled in dialect.settled(asked).overruled:
            if self._first((name, overruled)):
                tell_overruled(name, overruled)

    def learn(self, dialect: Dialect, asked: Asked, error: Exception) -> bool:
        """Take a refusal to heart.

        Args:
            dialect: In which the model was asked.
            asked: What it was asked for.
            error: What was raised.

        Returns:
            Whether asking again is of use: without what the model refuses.

        Raises:
            RefusedError: If it refuses what cannot be done without.
        """
        if kind_of(error) not in (RefusedError, ServiceError) or status_of(error) not in _REFUSALS:
            return False
        message = said(error)
        for own, name in dialect.aliases.items():
            message = message.replace(own, name)
        sent = dialect.attempted(asked)
        kept = _kept(dialect, asked)
        learnt = dialect.understood.learnt(message, sent, kept)
        if learnt is None:
            if refused := refusals_in(message, {name: sent[name] for name in sorted(kept & sent.keys())}):
                raise _refusal(dialect, refused[0].name, message) from error
            return False
        name = identity(dialect.model)
        fresh = learnt.dropped - dialect.understood.dropped
        with self._lock:
            self._understood[name] = self._understood.get(name, Understood()).joined(learnt)
            self._reasons |= {(name, item): message for item in fresh}
        tell_left_out(name, [item for item in fresh if self._first((name, item))], asked.sampling)
        return True

    def _first(self, words: Hashable) -> bool:
        with self._lock:
            first = words not in self._said
            self._said.add(words)
        return first


def _kept(dialect: Dialect, asked: Asked) -> frozenset[str]:
    """Return which parameters cannot be left out."""
    return needed(asked.sampling if dialect.traces else replace(asked.sampling, trace="none"))


def _refusal(dialect: Dialect, name: str, message: str) -> RefusedError:
    kind = LogprobsRefusedError if "logprobs" in name else RefusedError
    return kind(f"{identity(dialect.model)} refuses {name}: {message[:300]}", hint=dialect.advice(name))


def identity(model: LanguageModel) -> str:
    """Return which model this is: its class, the name of what it asks, and where that is."""
    names = (getattr(model, attribute, None) for attribute in ("model_name", "model", "model_id", "repo_id"))
    asked = next((name for name in names if isinstance(name, str) and name), "")
    urls = (getattr(model, attribute, None) for attribute in ("openai_api_base", "base_url", "endpoint_url"))
    where = urlsplit(next((url for url in urls if isinstance(url, str) and url), ""))
    port = f":{where.port}" if where.port else ""
    # The paths of one host may lead to different models; what follows a "?" may be a credential.
    address = f"@{where.hostname}{port}{where.path.rstrip('/')}" if where.hostname else ""
    return f"{type(model).__name__}({asked}{address})"
