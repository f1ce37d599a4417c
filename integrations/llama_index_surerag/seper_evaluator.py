"""ΔSePer as a LlamaIndex evaluator: what was retrieval worth to this reader?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from llama_index.core.evaluation import EvaluationResult
from pydantic import PrivateAttr, model_validator

from llama_index_surerag.evaluating import MethodEvaluator
from llama_index_surerag.llm import reader_of
from surerag import SePer, SePerOptions, SePerResult
from surerag.effects import Program
from surerag.entailment import JudgeEntailer
from surerag.errors import InputError
from surerag.messages import Passage, Usage
from surerag.readers import Reader


class DeltaSePerResult(EvaluationResult):
    """What retrieval was worth to the reader, for one query.

    ``score`` is ΔSePer, ``passing`` whether it is above the evaluator's bar, ``feedback`` the result in
    words. An item that could not be measured has ``invalid_result`` and ``invalid_reason`` set, and no score.

    Attributes:
        references: The reference answers.
        before: SePer without contexts, in [0, 1].
        after: SePer with them, in [0, 1].
        interval: 95 % interval of the score, over the samples.
        answers_before: The samples without contexts: text, log-likelihood, weight, entailment, cluster.
        answers_after: The samples with contexts.
        weights: How answers were weighed; ``"frequency"`` where the reader has no log-probabilities.
        truncated: Samples that were cut at ``max_tokens``.
        unusable: Judgements that could not be used.
        usage: Calls, tokens and seconds.
    """

    references: tuple[str, ...] = ()
    before: float | None = None
    after: float | None = None
    interval: tuple[float, float] | None = None
    answers_before: tuple[Any, ...] = ()
    answers_after: tuple[Any, ...] = ()
    weights: str | None = None
    truncated: int = 0
    unusable: int = 0
    usage: Usage = Usage()


class DeltaSePerEvaluator(MethodEvaluator[SePerResult, DeltaSePerResult], SePerOptions):
    """Measures the reader's belief in the right answers with the contexts, minus that without (ΔSePer).

    Needs ``query``, ``contexts`` and ``reference`` (one right answer or several) for each item; the
    ``response`` is carried along and not looked at. Of an LLM without log-probabilities, answers are weighed
    by frequency. Prompts are texts or LlamaIndex templates.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM is none.
        MissingServiceError: If there is no entailer.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = FakeReader(lambda prompt: "Velm" if "born in Velm" in prompt else "Orun")
        >>> evaluator = DeltaSePerEvaluator(reader, ExactEntailer())
        >>> contexts = ["Ada was born in Velm."]
        >>> result = evaluator.evaluate("Where was Ada born?", contexts=contexts, reference="Velm")
        >>> result.before, result.after, result.score, result.passing
        (0.0, 1.0, 1.0, True)
    """

    METHOD = "seper"
    RESULT: ClassVar[type[EvaluationResult]] = DeltaSePerResult

    passing_above: float = 0.0
    """``passing`` is whether ΔSePer exceeds this."""

    _core: SePer = PrivateAttr()

    @model_validator(mode="after")
    def _connect(self) -> Self:
        judge = self.judge()
        entailer = JudgeEntailer(judge) if isinstance(judge, Reader) else judge
        self._core = SePer(reader_of(self.llm), entailer, **self.options())
        return self

    def _program(
        self, query: str, passages: list[Passage], others: Mapping[str, Any]
    ) -> Program[SePerResult]:
        reference = others.get("reference")
        references = [reference] if isinstance(reference, str) else list(reference or ())
        if not references or not all(isinstance(one, str) and one.strip() for one in references):
            raise InputError("there is no reference", hint="pass reference=…, one right answer or a list")
        return self._core.program(query, references, passages)

    def _fields(self, result: SePerResult) -> dict[str, Any]:
        return {
            "score": result.delta,
            "passing": result.delta > self.passing_above,
            "feedback": result.explain(),
            "references": result.references,
            "before": result.before.seper,
            "after": result.after.seper,
            "interval": tuple(result.interval),
            "answers_before": result.before.answers,
            "answers_after": result.after.answers,
            "weights": result.weights,
            "truncated": result.truncated,
            "unusable": result.unusable,
            "usage": result.usage,
        }
