"""ΔSePer as a string evaluator of langchain-classic; importing this module needs that package."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from langchain_classic.evaluation.schema import StringEvaluator

Verdict = dict[str, Any]


class DeltaSePerStringEvaluator(StringEvaluator):
    """Needs ``input`` (the question), ``reference`` (one gold answer or several) and ``contexts``.

    The contexts are a keyword of their own, or stand in ``prediction`` where that is a mapping. The
    prediction is not measured.

    Args:
        name: What LangChain calls the metric.
        evaluate: Measures inputs, outputs and reference outputs.
        aevaluate: The same, without blocking.
    """

    def __init__(
        self,
        name: str,
        evaluate: Callable[[Any, Mapping[str, Any], Any], Verdict],
        aevaluate: Callable[[Any, Mapping[str, Any], Any], Coroutine[Any, Any, Verdict]],
    ) -> None:
        self._name = name
        self._evaluate = evaluate
        self._aevaluate = aevaluate

    @property
    def evaluation_name(self) -> str:
        """Name of the metric."""
        return self._name

    @property
    def requires_input(self) -> bool:
        """The question is needed."""
        return True

    @property
    def requires_reference(self) -> bool:
        """A gold answer is needed."""
        return True

    def _evaluate_strings(
        self,
        *,
        prediction: str | Any,
        reference: str | Any | None = None,
        input: str | Any | None = None,
        **kwargs: Any,
    ) -> Verdict:
        return self._evaluate(input, _outputs(prediction, kwargs), reference)

    async def _aevaluate_strings(
        self,
        *,
        prediction: str | Any,
        reference: str | Any | None = None,
        input: str | Any | None = None,
        **kwargs: Any,
    ) -> Verdict:
        return await self._aevaluate(input, _outputs(prediction, kwargs), reference)


def _outputs(prediction: Any, others: Mapping[str, Any]) -> dict[str, Any]:
    return {**(prediction if isinstance(prediction, Mapping) else {}), **others}
