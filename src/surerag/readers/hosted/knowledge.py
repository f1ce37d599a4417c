"""What was found out about one model by asking it, so that it is asked rightly from then on."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

from surerag.errors import CapabilityError, RefusedError
from surerag.messages import SamplingParams, Usage
from surerag.readers.hosted.failures import hint_for
from surerag.readers.hosted.logprobs import Wanted
from surerag.readers.hosted.parse import Api, Draft
from surerag.readers.hosted.requests import answer_at_once
from surerag.readers.refusals import Understood, needed, tell_left_out

_LISTED: Mapping[Api, str] = {
    "chat": "top_logprobs",
    "completions": "logprobs",
    "responses": "top_logprobs",
}
"""The field that says how many of the likeliest tokens to list."""

_SWITCHES = frozenset({"reasoning", "reasoning_effort", "chat_template_kwargs"})


class Knowledge:
    """What one reader knows of its model; many requests learn at the same time, and none forgets for another.

    Args:
        model: Name for warnings.
        api: Where it is asked.
        thinking: Whether the model was told to think (True), not to (False), or neither.
        budget: Tokens for thinking, for a model that thinks.

    Attributes:
        thinks: Whether the model thinks before it answers, as far as is known.
        opened: Whether its prompt template opens the thoughts.
        together: Whether several samples come to one request.
    """

    def __init__(self, model: str, api: Api, thinking: bool | None, budget: int) -> None:
        self.model = model
        self.api: Api = api
        self.thinking = thinking
        self.thinks = thinking is True
        self.opened = False
        self.together = api != "responses"
        self._budget = budget
        self._understood = Understood()
        self._reasons: dict[str, str] = {}
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    @property
    def understood(self) -> Understood:
        """What the service refuses, limits or calls otherwise."""
        return self._understood

    @property
    def budget(self) -> int:
        """Tokens to grant for thinking: none before the model is known to think."""
        return self._budget if self.thinks else 0

    def reason(self, name: str) -> str:
        """Return the service's own words on a parameter that it refuses."""
        return self._reasons.get(name, "")

    def learnt(self, found: Understood, reasons: Mapping[str, str]) -> None:
        """Keep what a service was found to take, once it took it."""
        with self._lock:
            self._understood = self._understood.joined(found)
            self._reasons |= reasons

    def tell(self, body: Collection[str], sampling: SamplingParams) -> None:
        """Warn, once, of fields of a request that were left out of it, where that may be felt."""
        with self._lock:
            fresh = (self._understood.dropped & set(body)) - self._told
            # Under the lock, so that of many requests at once only one warns.
            self._told |= set(tell_left_out(self.model, fresh, sampling)) if fresh else set()

    def require(self, body: Collection[str], kept: Collection[str]) -> None:
        """Refuse a request that cannot do without what the service is known to refuse.

        Args:
            body: Names of its fields.
            kept: Those that cannot be left out.

        Raises:
            RefusedError: With the service's own words.
        """
        for name in sorted(self._understood.dropped & set(kept) & set(body)):
            raise RefusedError(
                f"{self.model} refuses {name}, which this needs: {self.reason(name)}", hint=hint_for(name)
            )

    def listed(self, wanted: Wanted) -> Wanted:
        """Return what is asked of each token, with as many alternatives as the service lists."""
        most = self._understood.most.get(_LISTED[self.api], wanted.top)
        return wanted._replace(top=min(wanted.top, most))

    def draft(
        self,
        wanted: Wanted,
        sampling: SamplingParams,
        *,
        budget: int,
        usage: Usage | None = None,
        streamed: bool = False,
    ) -> Draft:
        """Return an empty answer to be filled, which is read by what is known.

        Args:
            wanted: What was asked of each token.
            sampling: Limits of the answer.
            budget: Tokens that were granted for thinking.
            usage: What the server counted, if it is known already.
            streamed: Whether it comes in pieces; one that is too long is then cut in any case.
        """
        beyond = streamed or budget > 0 or self.api == "responses"
        return Draft(
            self.listed(wanted),
            usage=usage or Usage(),
            limit=sampling.max_tokens if beyond else None,
            stop=sampling.stop,
            opened=self.opened,
            budget=budget,
        )

    def saw(self, draft: Draft) -> None:
        """Note whether an answer was thought about first.

        Raises:
            CapabilityError: If it was, although the model was told not to.
        """
        if not draft.thought and not draft.opened:
            return
        self.thinks, self.opened = True, self.opened or draft.opened
        self.allow()

    def saw_opened(self) -> None:
        """Note that the prompt's template opens thoughts.

        Raises:
            CapabilityError: If the model was told not to think.
        """
        self.thinks = self.opened = True
        self.allow()

    def allow(self) -> None:
        """Refuse to go on with a model that thinks although it was told not to.

        Raises:
            CapabilityError: If it does.
        """
        if self.thinks and self.thinking is False:
            said = "; ".join(f"{name}: {words}" for name, words in self._reasons.items() if name in _SWITCHES)
            raise CapabilityError(
                f"{self.model} thinks before it answers, although it was told not to"
                + (f" (the service said of {said})" if said else ""),
                hint="leave thinking=False out, so that its thoughts are told apart; or give the service's "
                'own switch, such as extra_body={"thinking": {"type": "disabled"}}; or use a model that can '
                "answer at once",
            )

    @property
    def switched_off(self) -> bool:
        """Whether the model was told not to think, in words that its service takes."""
        fields = set(answer_at_once(self.api))
        return self.thinking is False and bool(fields - self._understood.dropped)


def kept(sampling: SamplingParams | None) -> frozenset[str]:
    """Return the fields that a request cannot do without: all that asks for what its answer must hold."""
    if sampling is None:
        return frozenset()
    found = needed(sampling)
    return found | {"include"} if "logprobs" in found else found
