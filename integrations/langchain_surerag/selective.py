"""A chain that answers where its risk was certified, and says otherwise that it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig

from surerag import AnswerPolicy
from surerag import SelectiveAnswer as Core
from surerag.errors import InputError


class SelectiveAnswer(Runnable[Any, dict[str, Any]]):
    """Asks another chain, and shows its answer only where the policy answers.

    Its output is that chain's, with ``abstained``, ``probability`` (that the answer is right) and, where it
    abstains, ``withheld`` (the answer that is not shown).

    Args:
        chain: A ``LazyRetrievalChain``, or any runnable whose output is a mapping with an answer and, under
            ``decision``, its signal.
        policy: From :func:`surerag.calibrate_answers`, on that signal.
        refusal: Shown in place of an answer.
        answer: Key of the answer.
        signal: Keys that lead to the signal.

    Raises:
        ConfigurationError: If the refusal is empty.
    """

    def __init__(
        self,
        chain: Runnable[Any, Any],
        policy: AnswerPolicy,
        *,
        refusal: str = "I do not know.",
        answer: str = "answer",
        signal: tuple[str, ...] = ("decision", "signal"),
    ) -> None:
        self._chain = chain
        self._core = Core(policy, refusal)
        self._answer = answer
        self._signal = signal

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        """Answer one input, or say that there is no answer."""
        return self._selected(self._chain.invoke(input, config, **kwargs))

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Like :meth:`invoke`, without blocking the event loop."""
        return self._selected(await self._chain.ainvoke(input, config, **kwargs))

    def batch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Answer many inputs; the chain batches them as it does."""
        found = self._chain.batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return [one if isinstance(one, Exception) else self._selected(one) for one in found]  # type: ignore[misc]  # as LangChain returns them

    async def abatch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Like :meth:`batch`, without blocking the event loop."""
        found = await self._chain.abatch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return [one if isinstance(one, Exception) else self._selected(one) for one in found]  # type: ignore[misc]  # as LangChain returns them

    def _selected(self, output: Any) -> dict[str, Any]:
        signal = output
        for name in self._signal:
            if not isinstance(signal, Mapping) or name not in signal:
                raise InputError(
                    f"the chain's output has no {'.'.join(self._signal)}",
                    hint="name the keys with signal=(…), or wrap a LazyRetrievalChain",
                )
            signal = signal[name]
        found = self._core.select(str(output[self._answer]), signal)
        more: dict[str, Any] = {"abstained": found.abstained, "probability": found.probability}
        if found.abstained:
            more |= {self._answer: found.text, "withheld": found.answer}
        return {**output, **more}
