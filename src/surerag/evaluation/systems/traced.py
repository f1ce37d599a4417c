"""Systems whose answers were recorded: what a trace holds under each of its conditions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.rows import Question
from surerag.evaluation.systems.system import CalledSystem, SystemAnswer
from surerag.prices import Costs
from surerag.records.rows import (
    COMPRESSED,
    NONE,
    RETRIEVAL,
    STRONG,
    SUMMARIES,
    VERIFIED,
    Pass,
    TraceRow,
)
from surerag.records.trace import Trace

NAMES: Final[Mapping[str, str]] = {
    "plain": RETRIEVAL,
    "none": NONE,
    "summaries": SUMMARIES,
    "strong": STRONG,
    "rewrite": VERIFIED,
    "compressed": COMPRESSED,
}
"""Systems, and the conditions that a trace records them under."""

_HELD = 1024


class TracedSystems:
    """What a trace's pipeline answers, as systems to compare: offline, at once, and with what it cost then.

    ``lazy`` acts where a signal of its first answer exceeds a threshold: the first answer is that without
    retrieval (from summaries, where they were recorded), the other that with it.

    Args:
        trace: One that kept its texts.
        signal: What ``lazy`` decides by; None for the signal of the recorded gate.
        threshold: Of the signal; None for that of the recorded gate.

    Raises:
        ConfigurationError: If texts were not kept.
    """

    def __init__(self, trace: Trace, signal: str | None = None, threshold: float | None = None) -> None:
        if trace.hashed:
            raise ConfigurationError(
                f"{trace.folder} holds digests in place of texts, so that answers cannot be compared",
                hint="record without hash_texts",
            )
        self.trace = trace
        self._rows: OrderedDict[str, TraceRow] = OrderedDict()
        first = next(iter(trace), None)
        self._conditions = () if first is None else tuple(one.condition for one in first.passes)
        own: Mapping[str, str] = trace.about.get("signals", {})
        settings: Mapping[str, object] = trace.about.get("settings", {}).get("lazy") or {}
        recorded = settings.get("threshold")
        self.signal = signal or next(iter(own.values()), "")
        self.threshold = threshold if threshold is not None else recorded
        self._first = SUMMARIES if SUMMARIES in self._conditions else NONE
        self._second = STRONG if self._first == SUMMARIES and STRONG in self._conditions else RETRIEVAL

    @property
    def names(self) -> tuple[str, ...]:
        """Systems that the trace can tell of, the one that always retrieves first."""
        found = [name for name, condition in NAMES.items() if condition in self._conditions]
        both = {self._first, self._second} <= set(self._conditions)
        if both and self.signal and isinstance(self.threshold, int | float):
            found.insert(1, "lazy")
        return tuple(found)

    def systems(self, names: tuple[str, ...] | None = None) -> dict[str, CalledSystem]:
        """Return systems by name.

        Raises:
            ConfigurationError: If the trace does not hold what one needs.
        """
        wanted = self.names if names is None else names
        missing = [name for name in wanted if name not in self.names]
        if missing:
            lazy = "; for lazy give a signal and a threshold" if "lazy" in missing else ""
            raise ConfigurationError(
                f"{self.trace.folder} does not hold {', '.join(missing)}",
                hint=f"it holds {', '.join(self.names) or 'no condition that is compared'}{lazy}",
            )
        asked: dict[str, Callable[[str], SystemAnswer]] = {
            name: self._lazy if name == "lazy" else partial(self._under, NAMES[name]) for name in wanted
        }
        return {
            name: CalledSystem(answer, str(self.trace.about.get("reader", "")))
            for name, answer in asked.items()
        }

    def questions(self) -> Iterator[Question]:
        """Yield the trace's questions; the systems answer those that were yielded last."""
        for row in self.trace:
            text = row.question or row.id
            self._rows[text] = row
            while len(self._rows) > _HELD:
                self._rows.popitem(last=False)
            yield Question(text, row.golds or (), row.id)

    def _row(self, question: str) -> TraceRow:
        row = self._rows.get(question)
        if row is None:
            raise InputError(
                f"{question[:60]!r} is not at hand", hint="ask the questions of the trace, in order"
            )
        return row

    def _under(self, condition: str, question: str) -> SystemAnswer:
        return _answer(self._pass(self._row(question), condition), condition != NONE)

    def _pass(self, row: TraceRow, condition: str) -> Pass:
        found = row.under(condition)
        if found is None:
            raise InputError(
                f"{row.id} was not recorded under {condition}", hint=row.error or "record it again"
            )
        return found

    def _lazy(self, question: str) -> SystemAnswer:
        row = self._row(question)
        first = self._pass(row, self._first)
        value = first.signals.get(self.signal)
        if value is None:
            raise InputError(
                f"{row.id} has no signal {self.signal!r}", hint=f"it has {', '.join(first.signals) or 'none'}"
            )
        tried = _answer(first, retrieved=False)
        if value <= float(self.threshold):  # type: ignore[arg-type]  # names() says that it is a number
            return tried
        acted = _answer(self._pass(row, self._second), retrieved=True)
        # What the first answer cost was spent all the same.
        return SystemAnswer(acted.text, acted.contexts, tried.costs + acted.costs, True, acted.model)


def _answer(found: Pass, retrieved: bool) -> SystemAnswer:
    costs = Costs(
        prompt_tokens=found.prompt_tokens,
        completion_tokens=found.completion_tokens,
        calls=found.calls,
        seconds=found.seconds or 0.0,
    )
    return SystemAnswer(found.text or "", (), costs, retrieved)
