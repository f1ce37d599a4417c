"""A watch on decisions in a stream: does what a policy was calibrated on still hold?

Three tests, each of which shares the stated rate of false alarms and may be looked at after every question:

- of signals, and of decisions: whether the stream could be the sample gone on, in any order (Vovk,
  Nouretdinov & Gammerman, "Testing exchangeability on-line", ICML 2003: conformal p-values; the bets on them
  are the Simple Jumper of Vovk et al., "Retrain or not retrain: conformal test martingales for change-point
  detection", 2021);
- of the loss: on a random share of the stream both answers are asked for, and where these are judged, whether
  the mean loss exceeds the bound (betting; Waudby-Smith & Ramdas, JRSSB 86, 2024).

Were the stream like the sample, a gambler against that would become 1/a times as rich with probability a at
most, ever (Ville). So the rate of false alarms is for a whole stream, however long, and not for each look.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from surerag.decisions.policy import Policy
from surerag.decisions.rows import DecisionRow, signal_of
from surerag.errors import ConfigurationError, InputError

logger = logging.getLogger("surerag")

Watched = Literal["signal", "rate", "loss"]
WATCHED: tuple[Watched, ...] = ("signal", "rate", "loss")

_JUMP = 0.01
_DIGITS = 2
"""Significant digits of signals in the test: fixed beforehand, so that memory does not grow with a stream."""


class MonitorDecision(NamedTuple):
    """What to do about a question: act, and whether that is for the sake of the audit alone."""

    act: bool
    audit: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """What no longer is as it was calibrated.

    Attributes:
        watched: ``"signal"``, ``"rate"`` of acting, or ``"loss"``.
        n: Questions seen when it was raised.
        evidence: How many times richer the gambler has become; at least the limit.
        limit: One over this test's share of the rate of false alarms.
        expected: Rate of acting, or the bound on the loss; None for signals.
        observed: That of the stream; None likewise.
    """

    watched: Watched
    n: int
    evidence: float
    limit: float
    expected: float | None = None
    observed: float | None = None

    def __str__(self) -> str:
        found = "" if self.observed is None else f": {self.observed:.3f}, calibrated {self.expected:.3f}"
        return (
            f"the {self.watched} is no longer as calibrated{found} (evidence {self.evidence:.3g}, limit "
            f"{self.limit:g}, after {self.n} questions); calibrate again on recent questions"
        )


class Monitor:
    """Watches signals, decisions and audited losses of a policy in use.

    Args:
        policy: In use; from :func:`surerag.calibrate`.
        reference: The rows that it was calibrated on, or their signals.
        false_alarms: Largest probability of any alarm in a stream, however long, that is like the sample.
        audit_share: Share of questions on which both answers are asked for, at random.
        seed: Of the audit and of ties.
        on_alarm: Called with each :class:`Alarm`, once for each thing watched.

    Raises:
        ConfigurationError: If a rate is out of range.
        InputError: If there is no reference.

    Example:
        >>> policy = Policy(0.5, "budget", None, 0.5, 0.95, 4, 0.5)
        >>> monitor = Monitor(policy, [0.1, 0.2, 0.8, 0.9], audit_share=0.0)
        >>> monitor.decide(0.7), monitor.decide(0.3), monitor.alarms
        (MonitorDecision(act=True, audit=False), MonitorDecision(act=False, audit=False), ())
    """

    def __init__(
        self,
        policy: Policy,
        reference: Sequence[DecisionRow] | Sequence[float],
        *,
        false_alarms: float = 0.05,
        audit_share: float = 0.02,
        seed: int = 0,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> None:
        if not 0 < false_alarms < 1 or not 0 <= audit_share <= 1:
            raise ConfigurationError(
                f"false_alarms must be in (0, 1) and audit_share in [0, 1], got {false_alarms!r} and "
                f"{audit_share!r}"
            )
        if not len(reference):
            raise InputError(
                "there is no reference to watch against", hint="pass the rows of the calibration"
            )
        self.policy = policy
        self.false_alarms = false_alarms
        self.audit_share = audit_share
        self.on_alarm = on_alarm
        self._seed = seed
        self._lock = threading.Lock()
        self._signals: dict[float, int] = {}
        self._acts = {False: 0, True: 0}
        for signal in _signals_of(policy, reference):
            self._count(signal)
        self._reference = sum(self._acts.values())
        self._reference_acts = self._acts[True]
        self._draws = 0
        self._jumpers = {"signal": [1 / 3] * 3, "rate": [1 / 3] * 3}
        self._loss = _Losses()
        self._alarms: tuple[Alarm, ...] = ()
        self._meter = _meter()

    @property
    def n(self) -> int:
        """Questions of the stream that were seen."""
        return sum(self._acts.values()) - self._reference

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms so far, in order."""
        return self._alarms

    @property
    def evidence(self) -> dict[Watched, float]:
        """How rich each gambler is; alarms come at 3 / false_alarms."""
        return {
            "signal": sum(self._jumpers["signal"]),
            "rate": sum(self._jumpers["rate"]),
            "loss": self._loss.capital,
        }

    def decide(self, signal: float | None) -> MonitorDecision:
        """Decide on a question by the policy, watch it, and draw whether to audit it.

        Args:
            signal: What the policy compares; None for an empty first answer, which acts.

        Returns:
            Whether to act. Where it is audited and the policy would not have acted, ask for both answers, and
            hand over what acting changed to :meth:`judge` once that is known.
        """
        value = math.inf if signal is None else signal
        act = signal is None or self.policy.acts(value)
        with self._lock:
            self._watch(value, act)
            audit = self._uniform() < self.audit_share
            raised = self._raised()
        self._tell(raised)
        self._meter.decided(act, audit)
        return MonitorDecision(act or audit, audit)

    def watch(self, event: Any) -> None:
        """Watch the decisions of a component: pass this as its ``on_event``.

        Events other than those of gates are left alone. It cannot audit: use :meth:`decide` for that.
        """
        if event.name not in ("lazy_rag.gate", "uncertainty_rewriting.gate"):
            return
        data = event.data
        if data.get("hop"):
            return  # A policy is of the gate before the first retrieval.
        signal = data.get("signal", data.get("uncertainty"))
        act = bool(data["retrieve"]) if "retrieve" in data else data.get("outcome") == "rewrite"
        with self._lock:
            self._watch(math.inf if signal is None else float(signal), act)
            raised = self._raised()
        self._tell(raised)
        self._meter.decided(act, False)

    def judge(self, signal: float | None, correct_without: float, correct_with: float) -> None:
        """Take in an audited question whose two answers were judged.

        Args:
            signal: Of the question, as it was handed to :meth:`decide`.
            correct_without: Score of the answer without acting, in [0, 1].
            correct_with: Score of the answer after acting.

        Raises:
            InputError: If a score lies outside of [0, 1].
        """
        row = DecisionRow({}, correct_without, correct_with)
        acts = signal is None or self.policy.acts(signal)
        with self._lock:
            self._loss = self._loss.with_loss(0.0 if acts else row.benefit, self._bound)
            raised = self._raised()
        self._tell(raised)

    def to_dict(self) -> dict[str, Any]:
        """Return settings and state in terms of JSON; the callback is not in it."""
        with self._lock:
            return {
                "policy": self.policy.to_dict(),
                "false_alarms": self.false_alarms,
                "audit_share": self.audit_share,
                "seed": self._seed,
                "signals": [[_written(value), count] for value, count in self._signals.items()],
                "acts": [self._acts[False], self._acts[True]],
                "reference": [self._reference, self._reference_acts],
                "draws": self._draws,
                "jumpers": {name: list(capital) for name, capital in self._jumpers.items()},
                "loss": list(self._loss),
                "alarms": [
                    [one.watched, one.n, one.evidence, one.limit, one.expected, one.observed]
                    for one in self._alarms
                ],
            }

    @classmethod
    def from_dict(cls, written: Mapping[str, Any], on_alarm: Callable[[Alarm], object] | None = None) -> Self:
        """Go on from what :meth:`to_dict` gave.

        Raises:
            InputError: If something else was given.
        """
        try:
            made = cls(
                Policy.from_dict(written["policy"]),
                [0.0],
                false_alarms=written["false_alarms"],
                audit_share=written["audit_share"],
                seed=written["seed"],
                on_alarm=on_alarm,
            )
            made._signals = {float(value): int(count) for value, count in written["signals"]}
            made._acts = {False: int(written["acts"][0]), True: int(written["acts"][1])}
            made._reference, made._reference_acts = map(int, written["reference"])
            made._draws = int(written["draws"])
            made._jumpers = {name: [float(one) for one in written["jumpers"][name]] for name in made._jumpers}
            made._loss = _Losses(*written["loss"])
            made._alarms = tuple(Alarm(*one) for one in written["alarms"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"expected the state of a monitor: {type(error).__name__} {error}",
                hint="load what Monitor.save() or to_dict() wrote, or start a new monitor",
            ) from error
        return made

    def save(self, path: str | Path) -> None:
        """Write settings and state as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, on_alarm: Callable[[Alarm], object] | None = None) -> Self:
        """Go on from what :meth:`save` wrote.

        Raises:
            InputError: If the file holds something else, or cannot be read.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")), on_alarm)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} holds no monitor: {error}", hint="load what Monitor.save() wrote"
            ) from error

    @property
    def _bound(self) -> float:
        """The loss that was promised; without such a promise, that acting is worth nothing on average."""
        return self.policy.max_loss or 0.0

    def _count(self, signal: float) -> None:
        rounded = _rounded(signal)
        self._signals[rounded] = self._signals.get(rounded, 0) + 1
        self._acts[self.policy.acts(signal)] += 1

    def _watch(self, signal: float, act: bool) -> None:
        rounded = _rounded(signal)
        self._signals[rounded] = self._signals.get(rounded, 0) + 1
        self._acts[act] += 1
        above = sum(count for value, count in self._signals.items() if value > rounded)
        total = sum(self._signals.values())
        _bet(self._jumpers["signal"], (above + self._uniform() * self._signals[rounded]) / total)
        more = 0 if act else self._acts[True]
        _bet(self._jumpers["rate"], (more + self._uniform() * self._acts[act]) / total)

    def _raised(self) -> list[Alarm]:
        """Return what has just become known; each is said once."""
        limit = len(WATCHED) / self.false_alarms
        known = {alarm.watched for alarm in self._alarms}
        found = []
        for watched, evidence in self.evidence.items():
            if evidence < limit or watched in known:
                continue
            expected = observed = None
            if watched == "rate":
                expected = self._reference_acts / self._reference
                observed = (self._acts[True] - self._reference_acts) / max(1, self.n)
            elif watched == "loss":
                expected, observed = self._bound, self._loss.mean
            found.append(Alarm(watched, self.n, evidence, limit, expected, observed))
        self._alarms = (*self._alarms, *found)
        return found

    def _tell(self, raised: Sequence[Alarm]) -> None:
        for alarm in raised:
            logger.warning("monitor: %s", alarm)
            self._meter.alarmed(alarm)
            if self.on_alarm is not None:
                self.on_alarm(alarm)

    def _uniform(self) -> float:
        """Return the next random number of this stream, which needs no state but its place."""
        self._draws += 1
        digest = hashlib.blake2b(f"{self._seed}:{self._draws}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64


class _Losses(NamedTuple):
    """The gambler who bets that the mean loss exceeds its bound."""

    capital: float = 1.0
    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """Mean loss on what was audited."""
        return self.total / max(1, self.n)

    def with_loss(self, loss: float, bound: float) -> _Losses:
        """Bet on the next loss; the stake is set by what was seen before it, and is less than all."""
        variance = (0.25 + self.squares) / (self.n + 1)
        drift = (self.total - self.n * bound) / (self.n + 1)
        stake = min(max(drift / (variance + drift * drift), 0.05), 0.5 / (1 + bound))
        return _Losses(
            self.capital * (1 + stake * (loss - bound)),
            self.n + 1,
            self.total + loss,
            self.squares + (loss - bound) ** 2,
        )


def _bet(capital: list[float], p_value: float) -> None:
    """Let the Simple Jumper bet on a p-value, in place."""
    total = sum(capital)
    for at, slope in enumerate((-1, 0, 1)):
        moved = (1 - _JUMP) * capital[at] + _JUMP / 3 * total
        capital[at] = moved * (1 + slope * (p_value - 0.5))


def _rounded(signal: float) -> float:
    return signal if math.isinf(signal) else float(f"{signal:.{_DIGITS}g}")


def _written(value: float) -> float | str:
    return str(value) if math.isinf(value) else value


def _signals_of(policy: Policy, reference: Sequence[DecisionRow] | Sequence[float]) -> list[float]:
    rows = [row for row in reference if isinstance(row, DecisionRow)]
    if len(rows) != len(reference):
        return [float(value) for value in reference if not isinstance(value, DecisionRow)]
    found: list[float] = signal_of(rows, policy.identity.signal).tolist()
    return found


class _Meter:
    """Counts decisions and alarms where OpenTelemetry is installed, and does nothing elsewhere."""

    def __init__(self, decisions: Any = None, alarms: Any = None) -> None:
        self._decisions, self._alarms = decisions, alarms

    def decided(self, act: bool, audit: bool) -> None:
        if self._decisions is not None:
            self._decisions.add(1, {"act": act, "audit": audit})

    def alarmed(self, alarm: Alarm) -> None:
        if self._alarms is not None:
            self._alarms.add(1, {"watched": alarm.watched})


def _meter() -> _Meter:
    try:
        from opentelemetry.metrics import get_meter
    except ModuleNotFoundError:
        return _Meter()
    meter = get_meter("surerag")
    return _Meter(
        meter.create_counter("surerag.decisions", description="Decisions of a policy"),
        meter.create_counter("surerag.alarms", description="Alarms of a monitor"),
    )
