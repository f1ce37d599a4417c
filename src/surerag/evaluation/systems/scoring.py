"""What is measured of an answer: with gold answers, and without."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from surerag.effects import Program, entail, generate
from surerag.entailment.labels import ENTAILMENT
from surerag.errors import ConfigurationError
from surerag.evaluation.systems.system import SystemAnswer, Wrap
from surerag.journal import Answers
from surerag.measures import exact_match, same_answer, token_f1
from surerag.methods.dense_rag.component import Dense
from surerag.methods.dense_rag.memory import DenseCache
from surerag.methods.seper.component import SePer
from surerag.prompts import CLOSED_BOOK, FROM_CONTEXT, format_passages
from surerag.recording import RecordedEntailer
from surerag.records.judging import Judge, contains_gold, judge_of
from surerag.services import Entailer, Services, as_reader
from surerag.types import Pair, Sampling

MEASURES: Mapping[str, str] = {
    "accuracy": "share of answers that the rule finds right",
    "exact_match": "share of answers that equal a gold answer, normalised",
    "f1": "token F1 with the nearest gold answer",
    "containment": "share of answers that a gold answer stands in",
    "judge": "share of answers that an entailer finds to mean a gold answer, or to entail one",
    "delta_seper": "what the shown passages added to the reader's belief in the gold answers (SePer)",
    "faithfulness": "share of answers that a passage which was shown entails, of those with passages",
    "understanding": "1 less the DENSE score by its largest value: does rephrasing a passage change nothing",
    "self_consistency": "share of sampled answers, from the same passages, that say what the answer says",
    "agreement": "share of answers that say what the reference system says: no measure of being right",
}
"""What can be measured, and what it is."""

WITHOUT_GOLDS = ("faithfulness", "understanding", "self_consistency", "agreement")
"""What needs no gold answers; none of it says that an answer is right."""


@dataclass(frozen=True)
class Scoring:
    """How answers are scored.

    Attributes:
        rule: What makes an answer right: ``"contains"``, ``"exact_match"``, ``"token_f1"``, or a function.
        judge: Whether an entailer judges answers, and whether passages entail them.
        seper: Measures ΔSePer, if asked.
        dense: Measures understanding, if asked.
        consistency: Answers to sample for self-consistency; 0 for none.
        reference: System that agreement is measured with; empty for none.
        services: Who judges and samples.
        entailment_threshold: Probability that counts as entailment.
    """

    rule: Judge = "contains"
    judge: bool = False
    seper: SePer | None = None
    dense: Dense | None = None
    consistency: int = 0
    reference: str = ""
    services: Services = field(default_factory=Services)
    entailment_threshold: float = 0.5

    def __post_init__(self) -> None:
        judge_of(self.rule)
        for needed, what in ((self.judge, "entailer"), (self.consistency, "reader")):
            if needed and getattr(self.services, what) is None:
                raise ConfigurationError(
                    f"there is no {what} for what is to be measured", hint=f"pass {what}=…"
                )

    @property
    def measured(self) -> tuple[str, ...]:
        """What is measured, where there is all that it needs."""
        found = ["accuracy", "exact_match", "f1", "containment"]
        found += ["judge", "faithfulness"] if self.judge else []
        found += ["delta_seper"] if self.seper is not None else []
        found += ["understanding"] if self.dense is not None else []
        found += ["self_consistency"] if self.consistency else []
        return (*found, *(["agreement"] if self.reference else []))

    def keeping(self, wrap: Wrap, answers: Answers) -> Scoring:
        """Return the same on readers and an entailer whose answers are kept."""
        services = self.services
        reader = None if services.reader is None else wrap(services.reader)
        judge: Entailer | None = services.entailer
        if judge is not None:
            judge = RecordedEntailer(judge, answers)
        more: dict[str, Any] = {"services": replace(services, reader=reader, entailer=judge)}
        if self.seper is not None and judge is not None:
            more["seper"] = self.seper.with_options(reader=wrap(as_reader(self.seper.reader)), entailer=judge)
        if self.dense is not None:
            more["dense"] = self.dense.with_options(
                reader=wrap(as_reader(self.dense.reader)), entailer=judge, cache=DenseCache()
            )
        return replace(self, **more)

    def by_words(self, answer: str, golds: Sequence[str]) -> dict[str, float]:
        """Return what words alone tell; nothing without gold answers."""
        if not golds:
            return {}
        rule: Callable[[str, Sequence[str]], bool | float] = judge_of(self.rule)
        return {
            "accuracy": float(rule(answer, golds)),
            "exact_match": float(exact_match(answer, golds)),
            "f1": token_f1(answer, golds),
            "containment": float(contains_gold(answer, golds)),
        }

    def agreement(self, answer: str, other: str) -> float:
        """Return whether two answers say the same by their words."""
        return float(same_answer(answer, other))

    def programs(self, question: str, golds: Sequence[str], answer: SystemAnswer) -> dict[str, Program[Any]]:
        """Return what is to be asked for the other measures, a program each that returns a number."""
        found: dict[str, Program[Any]] = {}
        said = bool(answer.text.strip())
        if self.judge and golds and said:
            pairs = [Pair(answer.text, gold, question) for gold in golds]
            found["judge"] = self._entailed(pairs)
        if self.judge and answer.contexts and said:
            claim = f"{question} {answer.text}"
            found["faithfulness"] = self._entailed([Pair(one.text, claim) for one in answer.contexts])
        if self.seper is not None and golds and answer.contexts:
            found["delta_seper"] = _delta(self.seper, question, golds, answer)
        if self.dense is not None and answer.contexts:
            found["understanding"] = _understanding(self.dense, question, answer)
        if self.consistency and said:
            found["self_consistency"] = self._consistency(question, answer)
        return found

    def _entailed(self, pairs: Sequence[Pair]) -> Program[float]:
        found = yield from entail(pairs)
        return float((found[:, ENTAILMENT] > self.entailment_threshold).any())

    def _consistency(self, question: str, answer: SystemAnswer) -> Program[float]:
        shown = format_passages(one.text for one in answer.contexts)
        prompt = (
            FROM_CONTEXT.render(context=shown, question=question)
            if shown
            else CLOSED_BOOK.render(question=question)
        )
        tokens = max(self.services.answer_tokens(None), 1)
        sampling = Sampling(n=self.consistency, temperature=1.0, max_tokens=min(tokens, 64), trace="none")
        [samples] = yield from generate([prompt], sampling)
        return sum(same_answer(one.text, answer.text) for one in samples) / len(samples)


def _delta(seper: SePer, question: str, golds: Sequence[str], answer: SystemAnswer) -> Program[float]:
    result = yield from seper.program(question, golds, answer.contexts)
    return float(result.delta)


def _understanding(dense: Dense, question: str, answer: SystemAnswer) -> Program[float | None]:

    result = yield from dense.program(question, [replace(one) for one in answer.contexts])
    return 1 - float(result.score) / math.log(len(result.answers)) if len(result.answers) > 1 else 1.0
