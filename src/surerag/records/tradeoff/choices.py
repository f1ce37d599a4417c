"""The decisions that a trace can be calibrated for, and what each answer of a question costs under them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from surerag.decisions.policy import Identity
from surerag.errors import InputError
from surerag.records.judging import Judge, judge_of
from surerag.records.rows import (
    COMPRESSED,
    NONE,
    ORIGINAL,
    RETRIEVAL,
    STRONG,
    SUMMARIES,
    VERIFIED,
    Pass,
    TraceRow,
)
from surerag.records.trace import Trace

Method = Literal["l-rag", "dynqr", "edc2"]

_GATE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision between two answers.

    Attributes:
        method: Whose decision it is.
        part: Its name in the settings of a trace.
        verb: What acting is.
        without: Condition of the answer that there is before the decision.
        with_: Condition of the answer after acting.
        plain: Condition of the pipeline without the method, whose costs are compared.
        retrievals: Retrievals of a question that does not act, of one that does, and of the plain pipeline.
    """

    method: Method
    part: str
    verb: str
    without: str
    with_: str
    plain: str
    retrievals: tuple[int, int, int]


CHOICES: Final[Mapping[Method, Choice]] = {
    "l-rag": Choice("l-rag", "lazy", "retrieve", SUMMARIES, STRONG, RETRIEVAL, (0, 1, 1)),
    "dynqr": Choice("dynqr", "rewriter", "rewrite", ORIGINAL, VERIFIED, ORIGINAL, (1, 2, 1)),
    "edc2": Choice("edc2", "compressor", "compress", RETRIEVAL, COMPRESSED, RETRIEVAL, (1, 1, 1)),
}
_WITHOUT_SUMMARIES = Choice("l-rag", "lazy", "retrieve", NONE, RETRIEVAL, RETRIEVAL, (0, 1, 1))
"""L-RAG's decision in a table that was imported, which has no summaries."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What an answer costs.

    Attributes:
        prompt_tokens: Read.
        completion_tokens: Generated.
        calls: Answers asked for, or beginnings of one.
        seconds: Of the model, an equal share of each batch; None where it is not known.
        cached_tokens: Of those that were read, the ones that a server had in its cache.
    """

    prompt_tokens: float
    completion_tokens: float
    calls: float
    seconds: float | None
    cached_tokens: float = 0.0

    def __add__(self, other: Spending) -> Spending:
        known = self.seconds is not None and other.seconds is not None
        return Spending(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.calls + other.calls,
            (self.seconds or 0.0) + (other.seconds or 0.0) if known else None,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A question from both sides of a decision.

    Attributes:
        id: Names it.
        signal: What the decision goes by.
        without: Score of the answer without acting; None unjudged.
        with_: Score of the answer after acting.
        plain: Score of the plain pipeline's answer.
        agrees: Whether both answers say the same, by the judge; of digests, whether they are the same.
        plain_agrees: Whether the plain pipeline's and the one after acting do.
        shut: Cost of not acting.
        opened: Cost of acting, the look before it included.
        usual: Cost of the plain pipeline.
    """

    id: str
    signal: float
    without: float | None
    with_: float | None
    plain: float | None
    agrees: float
    plain_agrees: float
    shut: Spending
    opened: Spending
    usual: Spending


def choice_of(trace: Trace, method: Method) -> Choice:
    """Return a method's decision in a trace.

    Raises:
        InputError: If the trace was not recorded with the method.
    """
    choice = CHOICES[method]
    settings = trace.about.get("settings")
    if settings is None and method == "l-rag":
        return _WITHOUT_SUMMARIES
    if choice.part not in (settings or {}):
        there = [name for name, one in CHOICES.items() if one.part in (settings or {})]
        raise InputError(
            f"{trace.folder} was recorded without {method}; it has {', '.join(there) or 'no method'}",
            hint="choose another --method, or record again with it",
        )
    return choice


def identity_of(trace: Trace, choice: Choice, signal: str | None = None) -> Identity:
    """Return what a policy from a trace belongs to: the recorded component's own identity.

    Args:
        trace: Recorded, or imported; then only reader and signal are known.
        choice: The decision.
        signal: Another signal than the component's own; nothing recorded decides by it.

    Raises:
        InputError: If there is no component, and no signal was named.
    """
    known = trace.about.get("identities", {}).get(choice.part)
    if known is not None and signal in (None, known["signal"]):
        return Identity(**known)
    if signal is None:
        raise InputError(
            f"{trace.folder} does not say which signal its pipeline decides by",
            hint="name one with --signal",
        )
    return Identity(str(trace.about.get("reader", "")), signal)


def cases(trace: Trace, choice: Choice, signal: str) -> Iterable[Case]:
    """Yield the questions that were answered on both sides, as they are read.

    Raises:
        InputError: If the trace lacks the signal.
    """
    known: Mapping[str, str] = trace.about.get("signals", {})
    settings = (trace.about.get("settings") or {}).get(choice.part, {})
    name = known.get(signal, signal)
    judge = str(trace.about.get("judge", "contains"))
    for row in trace:
        before, after = row.under(choice.without), row.under(choice.with_)
        if before is None or after is None:
            continue
        plain = row.under(choice.plain) or after
        shut, opened = _costs(choice, before, after, settings)
        yield Case(
            id=row.id,
            signal=_signal(row, before, name, choice, trace),
            without=before.correct,
            with_=after.correct,
            plain=plain.correct,
            agrees=_agreement(before, after, judge),
            plain_agrees=_agreement(plain, after, judge),
            shut=shut,
            opened=opened,
            usual=_spent(plain),
        )


def _signal(row: TraceRow, before: Pass, name: str, choice: Choice, trace: Trace) -> float:
    if choice.method == "edc2" and name == "tokens":
        return row.measures["compression_before"]
    if name not in before.signals:
        raise InputError(
            f"{trace.folder} holds no signal {name!r} for {row.id!r}; it has {', '.join(before.signals)}",
            hint="name one of these with --signal",
        )
    return before.signals[name]


def _costs(
    choice: Choice, before: Pass, after: Pass, settings: Mapping[str, Any]
) -> tuple[Spending, Spending]:
    """Return the costs of not acting and of acting, with the look that the decision takes."""
    shut, acted = _spent(before), _spent(after)
    if choice.method != "l-rag":
        # What acting costs holds the first answer already (DynQR), or takes none of it over (EDC²-RAG).
        return shut, acted
    gate = settings.get("gate")
    if gate == "disagreement":
        # Whole answers are sampled; one of them is given where the gate stays shut.
        texts = [len(one.trace) if one.trace is not None else 0 for one in before.samples]
        written = float(sum(texts)) or before.completion_tokens * max(len(before.samples), 1)
        times = max(len(before.samples), 1)
        seconds = None if shut.seconds is None else shut.seconds * times
        look = Spending(shut.prompt_tokens, written, times, seconds, shut.cached_tokens)
        return look, look + acted
    seen = min(int(settings.get("gate_tokens") or _GATE_TOKENS), before.completion_tokens)
    part = seen / before.completion_tokens if before.completion_tokens else 1.0
    seconds = None if shut.seconds is None else part * shut.seconds
    look = Spending(shut.prompt_tokens, seen, shut.calls, seconds, shut.cached_tokens)
    return shut, look + acted


def _spent(one: Pass) -> Spending:
    return Spending(one.prompt_tokens, one.completion_tokens, one.calls, one.seconds, one.cached_tokens)


def _agreement(first: Pass, second: Pass, judge: Judge) -> float:
    """Return how far two answers say the same, by the trace's judge, in the better direction."""
    if first.text is None or second.text is None or str(judge).startswith("custom"):
        return float(first.sha256 == second.sha256)
    if not first.text.strip() or not second.text.strip():
        return float(first.text.strip() == second.text.strip())
    rule = judge_of(judge)
    return float(max(rule(first.text, (second.text,)), rule(second.text, (first.text,))))
