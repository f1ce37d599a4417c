"""DENSE as LlamaIndex's evaluation result, with everything that it was computed from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from llama_index.core.evaluation import EvaluationResult

from llama_index_surerag._items import texts, texts_or_none
from surerag.errors import InputError, SureragError
from surerag.methods.dense_types import DenseResult, Label
from surerag.types import Passage


class DenseEvaluationResult(EvaluationResult):
    """How far the reader understood its contexts, for one query.

    ``score`` is DENSE in nats: **lower is better**, 0 is understood, log(contexts + 1) is not at all.
    ``understanding`` is the same the other way round. ``passing`` is whether the score is within the
    threshold, ``feedback`` the result in words. An item that could not be measured has ``invalid_result``
    and ``invalid_reason`` set, and neither score nor parts.

    Attributes:
        understanding: 1 − score / log(contexts + 1), in [0, 1]: higher is better.
        answers: The answer under the contexts as they are, then those with each one rephrased.
        labels: One for each measured context; ``"necessary"`` and ``"unnecessary"`` only with ``mask=True``.
        outcomes: What became of each context's rephrasing; all but ``"rephrased"`` leave it as it is.
        calls: Calls of reader and entailer; what the cache knew is not in it.
        tokens: Tokens of the reader's prompts and replies, as far as the reader tells.
    """

    understanding: float | None = None
    answers: tuple[str, ...] = ()
    labels: tuple[Label, ...] = ()
    outcomes: tuple[str, ...] = ()
    calls: int = 0
    tokens: int = 0


class DenseCase(NamedTuple):
    """What the method measures."""

    question: str
    passages: Sequence[Passage]


class DenseItem(NamedTuple):
    """What an evaluator was handed, whatever it is.

    Attributes:
        query: The question.
        response: The pipeline's answer; carried along, not measured.
        contexts: What was retrieved.
    """

    query: Any
    response: Any
    contexts: Any

    def case(self) -> DenseCase:
        """Return what the method measures; contexts without text are left out.

        Raises:
            InputError: If the query or the contexts are missing, or no text.
        """
        if not isinstance(self.query, str):
            raise InputError("there is no query", hint="pass query=…")
        passages = [Passage(text) for text in texts("contexts", self.contexts) if text.strip()]
        if not passages:
            raise InputError(
                "there are no contexts with text",
                hint="pass contexts=…, or a response whose source nodes have text",
            )
        return DenseCase(self.query, passages)

    def measured(self, result: DenseResult) -> DenseEvaluationResult:
        """Return a measurement as LlamaIndex's result.

        Raises:
            InputError: If no context could be rephrased: equal contexts have equal answers.
        """
        outcomes = tuple(chunk.rephrased.outcome for chunk in result.chunks)
        if "rephrased" not in outcomes:
            raise InputError(
                f"no context could be rephrased ({', '.join(outcomes)}), so nothing was tested",
                hint="raise rephrase_tokens, use another LLM, or another prompt 'rephrase'",
            )
        return self._result(
            passing=result.certain,
            feedback=_in_words(result),
            score=result.score,
            understanding=1 - result.score / _most(result),
            answers=result.answers,
            labels=result.labels,
            outcomes=outcomes,
            calls=result.calls.total,
            tokens=result.calls.prompt_tokens + result.calls.completion_tokens,
        )

    def invalid(self, error: Exception) -> DenseEvaluationResult:
        """Return a result that says why there is none."""
        # Errors of ours say what to do; of others, the class says more than the message.
        reason = str(error) if isinstance(error, SureragError) else f"{type(error).__name__}: {error}"
        return self._result(invalid_result=True, invalid_reason=reason)

    def _result(self, **parts: Any) -> DenseEvaluationResult:
        return DenseEvaluationResult(
            query=self.query if isinstance(self.query, str) else None,
            response=self.response if isinstance(self.response, str) else None,
            contexts=texts_or_none("contexts", self.contexts),
            **parts,
        )


def _most(result: DenseResult) -> float:
    return math.log(len(result.answers))


def _in_words(result: DenseResult) -> str:
    changed = sum(chunk.link < 1 for chunk in result.chunks)
    understood = "understood" if result.certain else "not understood"
    return (
        f"Contexts {understood}: DENSE {result.score:.3f} of at most {_most(result):.3f} nats (lower is "
        f"better); rephrasing changed the answer for {changed} of {len(result.chunks)} contexts."
    )
