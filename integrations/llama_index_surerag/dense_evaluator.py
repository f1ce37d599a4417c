"""DENSE as a LlamaIndex evaluator: did the reader understand its contexts?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from llama_index.core.evaluation import EvaluationResult
from pydantic import PrivateAttr, model_validator

from llama_index_surerag.evaluating import MethodEvaluator
from llama_index_surerag.llm import reader_of
from surerag import DenseEvaluator as CoreDenseEvaluator
from surerag import DenseOptions, DenseResult
from surerag.effects import Program
from surerag.errors import InputError
from surerag.messages import Passage, Usage


class DenseEvaluationResult(EvaluationResult):
    """Whether the reader understood its contexts, for one query.

    ``score`` is 1 − DENSE / log(k + 1), in [0, 1], higher is better; ``passing`` whether the contexts are
    certain; ``feedback`` says both in words. An item that could not be measured has ``invalid_result`` and
    ``invalid_reason`` set, and no score.

    Attributes:
        dense: The DENSE score in nats, lower is better.
        answers: The answer to the contexts as they are, then those with each one rephrased.
        labels: One for each context.
        outcomes: What became of each rephrasing.
        truncated: Answers that were cut at ``max_tokens``.
        unusable: Judgements that could not be used.
        usage: Calls, tokens and seconds.
    """

    dense: float | None = None
    answers: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    truncated: int = 0
    unusable: int = 0
    usage: Usage = Usage()


class DenseEvaluator(MethodEvaluator[DenseResult, DenseEvaluationResult], DenseOptions):
    """Rephrases one context at a time, and measures whether the reader's answer stays the same (DENSE).

    Needs ``query`` and ``contexts``, no reference. Without an ``entailer`` the LLM itself judges in words
    whether answers mean the same. Prompts are texts or LlamaIndex templates.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = FakeReader(lambda prompt: "It rained." if prompt.startswith("Rewrite") else "Velm")
        >>> evaluator = DenseEvaluator(reader, ExactEntailer())
        >>> result = evaluator.evaluate("Where?", contexts=["In Velm it rains."])
        >>> result.score, result.passing, result.answers
        (1.0, True, ('Velm', 'Velm'))
    """

    METHOD = "dense"
    RESULT: ClassVar[type[EvaluationResult]] = DenseEvaluationResult

    _core: CoreDenseEvaluator = PrivateAttr()

    @model_validator(mode="after")
    def _connect(self) -> Self:
        self._core = CoreDenseEvaluator(reader_of(self.llm), self.judge(), **self.options())
        return self

    def _program(
        self, query: str, passages: list[Passage], others: Mapping[str, Any]
    ) -> Program[DenseResult]:
        return self._core.program(query, passages)

    def _fields(self, result: DenseResult) -> dict[str, Any]:
        outcomes = tuple(chunk.outcome for chunk in result.chunks)
        if "rephrased" not in outcomes:
            raise InputError(
                f"no context could be rephrased ({', '.join(outcomes)}), so nothing was tested",
                hint="raise rephrase_max_tokens, or use another LLM or another prompt 'rephrase'",
            )
        largest = math.log(len(result.answers))
        changed = sum(chunk.link < 1 for chunk in result.chunks)
        return {
            "score": 1 - result.score / largest,
            "passing": result.certain,
            "feedback": f"Contexts {'' if result.certain else 'not '}understood: DENSE {result.score:.3f} "
            f"of at most {largest:.3f} nats (lower is better); rephrasing changed the answer for {changed} "
            f"of {len(result.chunks)} contexts.",
            "dense": result.score,
            "answers": result.answers,
            "labels": result.labels,
            "outcomes": outcomes,
            "truncated": result.truncated,
            "unusable": result.unusable,
            "usage": result.usage,
        }
