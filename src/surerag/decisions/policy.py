"""A threshold with a promise: what it bounds, how surely, for which model, signal and prompts."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from surerag.decisions.gain import Gain
from surerag.decisions.saved import Saved
from surerag.errors import ConfigurationError, InputError
from surerag.options import plain

Target = Literal["loss", "budget", "both", "best"]
"""What a calibration is for: a bounded loss against always acting; a budget of acting; both; or the threshold
that was best on the sample, as papers choose it, which promises nothing."""

Verdict = Literal["holds", "no gain shown", "infeasible", "no promise"]

Scored = Literal["gold answers", "agreement"]
"""What answers were scored by: gold answers; or agreement with the answer after acting, which says nothing of
whether either is right."""


class CalibrationWarning(UserWarning):
    """A sample or policy is used for more than it can tell."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a calibration belongs to; an empty part is not known.

    Attributes:
        model: Identity of the reader.
        signal: What is compared with the threshold, with all that changes its scale.
        prompts: Fingerprint of prompts and settings that change the answers.
    """

    model: str = ""
    signal: str = ""
    prompts: str = ""


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return a short name for settings, the same in every process.

    Example:
        >>> fingerprint({"a": 1}) == fingerprint({"a": 1}) != fingerprint({"a": 2})
        True
    """
    written = json.dumps({name: plain(one) for name, one in settings.items()}, sort_keys=True, default=str)
    return hashlib.sha256(written.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Policy(Saved):
    """Act (retrieve, rewrite, compress) iff the signal exceeds a threshold, and what that is worth.

    What it promises is about questions like those of the sample: drawn independently from the same source,
    asked of the same model with the same prompts over the same documents. Where these shift, the promise
    ends; a monitor watches for that. It speaks of the mean over such questions, not of each question, nor of
    the observed mean of the next hundred. In a share of at most 1 - ``confidence`` of all calibrations it
    does not hold.

    A calibration without gold answers can promise a rate of acting. It cannot promise anything about answers:
    which threshold loses nothing is not in the signals.

    Attributes:
        threshold: Act iff the signal exceeds this; -inf always acts, inf never.
        target: What it was calibrated for.
        max_loss: Allowed loss of mean score against always acting; None where that was not bounded.
        budget: Allowed share of questions that act; None likewise.
        confidence: Of the promise.
        n: Questions in the sample.
        rate: Share of the sample that acts.
        loss: Loss on the sample against always acting; None for a sample without gold answers.
        gain: Gain on the sample over acting at random equally often; None likewise.
        verdict: ``"holds"``: promise and gain; ``"no gain shown"``: the promise holds, and acting at random
            equally often may be as good; ``"infeasible"``: no threshold could be certified, and
            ``on_infeasible`` decided; ``"no promise"``: best on the sample.
        needed: Where it is infeasible: about how many questions would do; None where no number would.
        rule: How the threshold was found.
        cost: Share of the cost of always acting that is spent on the sample, where rows have costs.
        identity: What it belongs to.
        scored: What "score" means above.
    """

    _called: ClassVar[str] = "a policy"

    threshold: float
    target: Target
    max_loss: float | None
    budget: float | None
    confidence: float
    n: int
    rate: float
    loss: float | None = None
    gain: Gain | None = None
    verdict: Verdict = "no promise"
    needed: int | None = None
    rule: str = ""
    cost: float | None = None
    identity: Identity = Identity()
    scored: Scored = "gold answers"

    @property
    def promise(self) -> str:
        """What is promised and what was found, in words, for people."""
        n = f"{self.n:,} questions"
        if self.verdict == "infeasible":
            more = "no number of such questions would do"
            if self.needed is not None:
                more = f"about {self.needed:,} would be needed"
            does = {-math.inf: "always acts", math.inf: "never acts"}.get(self.threshold, "is a fallback")
            return f"infeasible at n = {self.n:,}; {more}. This policy {does}, and promises nothing more."
        if self.verdict == "no promise":
            return f"best on a sample of {n}; no promise: on other questions it will be worse."
        bounds = []
        if self.max_loss is not None:
            bounds.append(
                f"loses at most {100 * self.max_loss:g} points against always acting"
                if self.scored == "gold answers"
                else f"answers otherwise than always acting on at most {100 * self.max_loss:g} % of questions"
            )
        if self.budget is not None:
            bounds.append(f"acts on at most {100 * self.budget:g} % of questions")
        told = f"{' and '.join(bounds)}, at confidence {self.confidence:g}, from {n}."
        if self.gain is None:
            return f"{told} Without gold answers nothing is promised about answers."
        low, high = 100 * self.gain.lower, 100 * self.gain.upper
        found = f"{100 * self.gain.value:+.1f} [{low:+.1f}, {high:+.1f}] points"
        if self.scored == "agreement":
            found += " of agreement"
        shown = "Gain" if self.verdict == "holds" else "No gain shown"
        return f"{told} {shown} over acting at random on {100 * self.rate:.0f} % of questions: {found}."

    def acts(self, signal: float) -> bool:
        """Whether to act at a signal."""
        return signal > self.threshold

    def check(self, identity: Identity) -> None:
        """Refuse to serve another model, signal or prompt than this was calibrated for.

        Raises:
            ConfigurationError: If a part of the identity is another.

        Warns:
            CalibrationWarning: If the policy does not know what it belongs to.
        """
        names = {"model": "reader", "signal": "signal", "prompts": "prompts and settings"}
        unknown = []
        for part, name in names.items():
            mine, yours = getattr(self.identity, part), getattr(identity, part)
            if not mine:
                unknown.append(name)
            elif mine != yours:
                raise ConfigurationError(
                    f"the policy was calibrated for the {name} {mine!r} and is used with {yours!r}",
                    hint="calibrate again, or set prompts, top_n, max_tokens and the like as they were then"
                    if part == "prompts"
                    else "calibrate again; a threshold says nothing about another model, signal or prompt",
                )
        if unknown:
            warnings.warn(
                f"the policy does not say for which {' and '.join(unknown)} it was calibrated; "
                "its promise holds for no other",
                CalibrationWarning,
                stacklevel=4,
            )

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Policy:
        """Rebuild from :meth:`to_dict`.

        Raises:
            InputError: If something else was given.
        """
        found = super(Policy, cls).from_dict(written)
        if not isinstance(found.identity, Identity):
            raise InputError(
                "the policy's identity cannot be read", hint="load what Policy.save() or to_dict() wrote"
            )
        return found
