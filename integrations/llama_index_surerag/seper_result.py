"""ΔSePer as LlamaIndex's evaluation result, with everything that it was computed from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llama_index.core.evaluation import EvaluationResult

from llama_index_surerag._items import texts, texts_or_none
from surerag.components.seper import Case
from surerag.errors import InputError, SureragError
from surerag.measures.seper import Weights
from surerag.methods.seper_types import Drawn, Interval, Kernel, SampledAnswer, SePerResult
from surerag.types import Passage


class DeltaSePerResult(EvaluationResult):
    """What retrieval was worth to the reader, for one query.

    ``score`` is ΔSePer, ``passing`` whether it is above the evaluator's bar, ``feedback`` the result in
    words. An item that could not be measured has ``invalid_result`` and ``invalid_reason`` set, and
    neither score nor parts.

    Attributes:
        reference: The gold answers.
        before: SePer without contexts, in [0, 1].
        after: SePer with them, in [0, 1].
        delta: ΔSePer = after − before, in [−1, 1]; the same as ``score``.
        interval: 95 % bootstrap interval of ``delta`` over the samples.
        answers_before: The samples without contexts: text, log-likelihood, weight, cluster, entailment.
        answers_after: The samples with contexts.
        weights: The weighting used; ``"frequency"`` where the reader has no log-probabilities.
        kernel: The kernel used.
        calls: Prompts that the reader answered, N samples each.
        judged: Pairs of statements that the entailer was asked about.
        tokens: Tokens of the prompts and of all samples, as far as the reader tells.
        drawn: How far adaptive sampling went; None where all samples were drawn at once.
    """

    reference: tuple[str, ...] = ()
    before: float | None = None
    after: float | None = None
    delta: float | None = None
    interval: Interval | None = None
    answers_before: tuple[SampledAnswer, ...] = ()
    answers_after: tuple[SampledAnswer, ...] = ()
    weights: Weights | None = None
    kernel: Kernel | None = None
    calls: int = 0
    judged: int = 0
    tokens: int = 0
    drawn: Drawn | None = None


class Item(NamedTuple):
    """What an evaluator was handed, whatever it is.

    Attributes:
        query: The question.
        response: The pipeline's answer; carried along, not measured.
        contexts: What was retrieved.
        reference: One gold answer, or several.
        others: Names of further arguments, which mean nothing to this evaluator.
    """

    query: Any
    response: Any
    contexts: Any
    reference: Any
    others: Sequence[str] = ()

    def case(self) -> Case:
        """Return what the method measures; contexts without text are left out.

        Raises:
            InputError: If the query, the reference or the contexts are missing, or no text.
        """
        if not isinstance(self.query, str):
            raise InputError("there is no query", hint="pass query=…")
        golds = texts("reference", self.reference)
        if not golds:
            found = f", only {sorted(self.others)}" if self.others else ""
            raise InputError(
                f"there is no reference{found}", hint="pass reference=…, one gold answer or a list of them"
            )
        passages = [Passage(text) for text in texts("contexts", self.contexts) if text.strip()]
        if not passages:
            raise InputError(
                "there are no contexts with text",
                hint="pass contexts=…, or a response whose source nodes have text",
            )
        return Case(self.query, golds, passages)

    def measured(self, result: SePerResult, passing_above: float) -> DeltaSePerResult:
        """Return a measurement as LlamaIndex's result."""
        return self._result(
            passing=result.delta > passing_above,
            feedback=result.explain(),
            score=result.delta,
            before=result.before.seper,
            after=result.after.seper,
            delta=result.delta,
            interval=result.interval,
            answers_before=result.before.answers,
            answers_after=result.after.answers,
            weights=result.weights,
            kernel=result.kernel,
            calls=result.calls,
            judged=result.judged,
            tokens=result.tokens,
            drawn=result.drawn,
        )

    def invalid(self, error: Exception) -> DeltaSePerResult:
        """Return a result that says why there is none."""
        # Errors of ours say what to do; of others, the class says more than the message.
        ours = isinstance(error, SureragError)
        reason = str(error) if ours else f"{type(error).__name__}: {error}"
        return self._result(invalid_result=True, invalid_reason=reason)

    def _result(self, **parts: Any) -> DeltaSePerResult:
        return DeltaSePerResult(
            query=self.query if isinstance(self.query, str) else None,
            response=self.response if isinstance(self.response, str) else None,
            contexts=texts_or_none("contexts", self.contexts),
            reference=tuple(texts_or_none("reference", self.reference) or ()),
            **parts,
        )
