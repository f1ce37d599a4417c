"""Several gates that decide together, and every form in which a gate can be given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from surerag.decisions.benefit import BenefitModel
from surerag.decisions.policy import fingerprint
from surerag.errors import ConfigurationError
from surerag.methods.functions import name_of
from surerag.methods.lazy_rag.gate import (
    AT_HAND,
    FIRST_TOKENS,
    LENGTH,
    FirstPass,
    Gate,
    Look,
    Measured,
    combined_look,
)
from surerag.methods.lazy_rag.sample_gates import DisagreementGate, FunctionGate
from surerag.methods.lazy_rag.token_gates import EntropyGate, MarginGate

GateName = Literal["entropy", "margin", "disagreement"]


@dataclass(frozen=True, slots=True)
class CombinedGate(Gate):
    """Retrieve iff any, or all, of several gates would; see :func:`any_of` and :func:`all_of`.

    The signal is the largest (any) or smallest (all) of the members' signals, each divided by its own
    threshold: above 1, any or all of them are above theirs. So members on different scales share one
    ``threshold`` that can be calibrated, and a larger one means that the reader is trusted more by each.

    Attributes:
        rule: ``"any"`` or ``"all"``.
        gates: The members, each with a threshold of its own.
    """

    rule: Literal["any", "all"]
    gates: tuple[AnyGate, ...]

    def __post_init__(self) -> None:
        """Check the members."""
        if self.rule not in ("any", "all"):
            raise ConfigurationError(f"rule must be any or all, got {self.rule!r}")
        if len(self.gates) < 2 or not all(isinstance(gate, Gate) for gate in self.gates):
            raise ConfigurationError(
                f"gates that decide together must be two or more gates, got {self.gates!r}",
                hint="wrap a function in FunctionGate(function, threshold=…)",
            )
        for gate in self.gates:
            if gate.threshold_for(None) < 0:
                raise ConfigurationError(
                    f"the threshold of {gate.name} must be 0 or more to be compared with others, "
                    f"got {gate.default_threshold!r}"
                )
        combined_look([gate.look for gate in self.gates])

    @property
    def name(self) -> str:
        """The rule and its members."""
        return f"{self.rule} of ({', '.join(gate.name for gate in self.gates)})"

    @property
    def signal(self) -> str:
        """What is compared with the threshold."""
        parts = (f"{gate.signal}, over {gate.threshold_for(None):g}" for gate in self.gates)
        return f"{self.rule} of ({'; '.join(parts)})"

    @property
    def unit(self) -> str:
        """Of the signal."""
        return "times the threshold"

    @property
    def least(self) -> float:
        """Smallest share of a threshold."""
        return 0.0

    @property
    def default_threshold(self) -> float:
        """Each member's own threshold, once."""
        return 1.0

    @property
    def look(self) -> Look:
        """All that the members have to see."""
        return combined_look([gate.look for gate in self.gates])

    def measure(self, seen: FirstPass) -> Measured:
        """Compare each member's signal with its threshold; a member to which nothing was said is open.

        Raises:
            LogprobsError: If a trace lacks what a member needs.
        """
        found = [(gate.measure(seen), gate.threshold_for(None)) for gate in self.gates]
        chosen = max if self.rule == "any" else min
        silent = [measured.signal is None for measured, _ in found]
        if any(silent) if self.rule == "any" else all(silent):
            return Measured(None)

        def of(ends: list[float | None]) -> float:
            return chosen(_share(end, threshold) for end, (_, threshold) in zip(ends, found, strict=True))

        return Measured(
            of([measured.signal for measured, _ in found]),
            of([measured.lower for measured, _ in found]),
            of([measured.upper for measured, _ in found]),
            exact=all(measured.exact for measured, _ in found),
        )


@dataclass(frozen=True, slots=True)
class BenefitGate(Gate):
    """Retrieve iff a fitted model expects more good than harm of it; see :mod:`surerag.decisions.benefit`.

    Attributes:
        model: Reads the signals of the gates by their names, and what is at hand beside
            (:data:`~surerag.methods.lazy_rag.gate.AT_HAND`); fitted to rows of
            ``LazyRAG.rows(…, gates=gates)``.
        gates: What is measured for it; at least one.
    """

    model: BenefitModel
    gates: tuple[AnyGate, ...]

    def __post_init__(self) -> None:
        """Check that the gates measure what the model reads."""
        if not all(isinstance(gate, Gate) for gate in self.gates):
            raise ConfigurationError(
                f"a benefit is estimated from gates, got {self.gates!r}",
                hint="wrap a function in FunctionGate(function)",
            )
        if not self.gates:
            raise ConfigurationError(
                "a benefit gate needs a gate that looks at the answer",
                hint="give the gates whose rows the model was fitted to",
            )
        measured = {*AT_HAND, *(gate.signal for gate in self.gates)}
        missing = [name for name in self.model.features if name not in measured]
        if missing:
            raise ConfigurationError(
                f"the benefit model reads {', '.join(missing)}, which no gate measures",
                hint=f"give the gates whose rows it was fitted to, or fit it to some of {sorted(measured)}",
            )
        seen = combined_look([gate.look for gate in self.gates]).n_tokens
        if LENGTH in self.model.features and seen is not None and seen < FIRST_TOKENS:
            raise ConfigurationError(
                f"the benefit model reads {LENGTH}, and the gates see {seen} tokens of the answer",
                hint=f"give a gate that sees {FIRST_TOKENS}, or fit a model without it",
            )

    @property
    def name(self) -> str:
        """What decisions call it."""
        return "benefit"

    @property
    def signal(self) -> str:
        """What is compared with the threshold; a model fitted anew is another signal."""
        return f"benefit by {', '.join(self.model.features)}, model {fingerprint(self.model.to_dict())}"

    @property
    def unit(self) -> str:
        """Of the signal."""
        return "probability"

    @property
    def least(self) -> float:
        """Smallest benefit."""
        return -1.0

    @property
    def default_threshold(self) -> float:
        """As much good as harm."""
        return 0.0

    @property
    def look(self) -> Look:
        """All that the gates have to see."""
        return combined_look([gate.look for gate in self.gates])

    def measure(self, seen: FirstPass) -> Measured:
        """Estimate the benefit; None where the reader said nothing to one of the gates.

        Raises:
            LogprobsError: If a trace lacks what a gate needs.
        """
        found = {gate.signal: gate.measure(seen) for gate in self.gates}
        signals = {name: one.signal for name, one in found.items() if one.signal is not None}
        if len(signals) < len(found):
            return Measured(None)
        value = self.model.benefit({**seen.at_hand, **signals})
        return Measured(value, value, value, exact=all(one.exact for one in found.values()))


AnyGate = EntropyGate | MarginGate | DisagreementGate | FunctionGate | CombinedGate | BenefitGate | Gate
GateLike = GateName | AnyGate | Callable[..., float]
"""A gate by its name, a gate with settings of its own, or a function of the whole greedy answer."""


def any_of(*gates: GateName | Gate) -> CombinedGate:
    """Retrieve iff any of several gates would.

    Args:
        *gates: Two or more, by name or with settings; each decides by its own threshold.

    Raises:
        ConfigurationError: If they cannot decide together.

    Example:
        >>> any_of("entropy", DisagreementGate(n_samples=3)).name
        'any of (entropy, disagreement)'
    """
    return CombinedGate("any", tuple(map(_named, gates)))


def all_of(*gates: GateName | Gate) -> CombinedGate:
    """Retrieve iff all of several gates would.

    Args:
        *gates: Two or more, by name or with settings; each decides by its own threshold.

    Raises:
        ConfigurationError: If they cannot decide together.
    """
    return CombinedGate("all", tuple(map(_named, gates)))


def gate_name(gate: GateLike) -> str:
    """Return what a gate goes by.

    Example:
        >>> gate_name("margin"), gate_name(EntropyGate()), gate_name(len)
        ('margin', 'entropy', 'len')
    """
    if isinstance(gate, str):
        return gate
    return gate.name if isinstance(gate, Gate) else name_of(gate)


def as_gate(gate: GateLike) -> Gate:
    """Return a gate for its name, a function or a gate, with its own settings.

    Example:
        >>> as_gate("margin").signal
        'mean want of margin of 8 tokens, middle estimate'
    """
    found: Gate = _named(gate)
    return found if isinstance(found, Gate) else FunctionGate(found)


def _named(gate: Any) -> Any:
    """Return a gate for its name, and what is no name as it is: the members are checked together."""
    made: dict[str, Callable[[], Gate]] = {
        "entropy": EntropyGate,
        "margin": MarginGate,
        "disagreement": DisagreementGate,
    }
    return made[gate]() if isinstance(gate, str) and gate in made else gate


def _share(signal: float | None, threshold: float) -> float:
    """Return a signal in units of its threshold; infinite above one of 0, and where nothing was said."""
    if signal is None:
        return math.inf
    if threshold == 0:
        return math.inf if signal > 0 else 0.0
    return 0.0 if math.isinf(threshold) else signal / threshold
