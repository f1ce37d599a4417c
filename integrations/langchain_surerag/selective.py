"""A chain that answers where its risk was certified, and abstains otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config

from langchain_surerag.base import Part
from langchain_surerag.runs import without_streaming
from surerag.errors import InputError

if TYPE_CHECKING:
    from surerag.calibration import AbstentionPolicy


class SelectiveAnswer(Runnable[Any, dict[str, Any]]):
    """Runs another chain, and shows its answer only where the policy answers.

    The output is that chain's, with ``abstained`` and ``probability`` (that the answer is right). Where it
    abstains, the abstention stands in the answer's place, and in that of a message's text: the answer itself
    is in neither output nor stream, and no handler that streams (LangGraph's ``stream_mode="messages"``,
    ``astream_events``) sees the inner chain at work. Tracers do.

    Args:
        chain: A ``LazyRetrievalChain``, or any runnable whose output is a mapping with an answer and, under
            ``decision``, its uncertainty.
        policy: From :func:`surerag.calibrate_abstention`, on that uncertainty.
        abstention: Text in place of an answer.
        answer: Key of the answer.
        score: Keys that lead to the uncertainty.

    Raises:
        ConfigurationError: If the policy was calibrated for another reader, gate, retriever or prompt.
    """

    def __init__(
        self,
        chain: Runnable[Any, Any],
        policy: AbstentionPolicy,
        *,
        abstention: str = "I do not know.",
        answer: str = "answer",
        score: tuple[str, ...] = ("decision", "score"),
    ) -> None:
        if isinstance(chain, Part):
            policy.check(chain.core)
        self._chain = chain
        self._policy = policy
        self._abstention = abstention
        self._answer = answer
        self._score = score

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        """Answer one input, or abstain."""
        return self._call_with_config(self._select, input, config, **kwargs)

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Like :meth:`invoke`, without blocking the event loop."""
        return await self._acall_with_config(self._aselect, input, config, **kwargs)

    def _select(self, value: Any, **kwargs: Any) -> dict[str, Any]:
        return self._selected(self._chain.invoke(value, without_streaming(ensure_config()), **kwargs))

    async def _aselect(self, value: Any, **kwargs: Any) -> dict[str, Any]:
        config = without_streaming(ensure_config())
        return self._selected(await self._chain.ainvoke(value, config, **kwargs))

    def _selected(self, output: Any) -> dict[str, Any]:
        score = output
        for name in self._score:
            if not isinstance(score, Mapping) or name not in score:
                raise InputError(
                    f"the chain's output has no {'.'.join(self._score)}",
                    hint="name the keys with score=(…), or wrap a LazyRetrievalChain",
                )
            score = score[name]
        if output.get("finish", "stop") != "stop":
            score = None  # an answer that was cut or withheld is not the one that was measured
        selected = self._policy.select(str(output[self._answer]), score, self._abstention)
        messages = {
            name: value.model_copy(update={"content": selected.text})
            for name, value in output.items()
            if isinstance(value, AIMessage)
        }
        return {
            **output,
            **messages,
            self._answer: selected.text,
            "abstained": selected.abstained,
            "probability": selected.probability,
        }
