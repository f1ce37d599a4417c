"""DENSE as a LlamaIndex evaluator: did the reader understand what was retrieved? No reference is needed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.evaluation import BaseEvaluator
from llama_index.core.llms import LLM
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.settings import Settings

from llama_index_surerag._dense_prompts import DensePromptSet
from llama_index_surerag._dense_services import entailer_of, judges_in_words, reader_of, unparsed_of
from llama_index_surerag._fanout import Turns
from llama_index_surerag._responses import shown
from llama_index_surerag.dense_result import DenseCase, DenseEvaluationResult, DenseItem
from llama_index_surerag.events import dispatch, dispatcher
from surerag import Dense
from surerag.errors import ConfigurationError
from surerag.methods.dense_types import DenseResult
from surerag.readers import Reader
from surerag.services import Entailer
from surerag.types import Event

logger = logging.getLogger("surerag")

_PROMPTS = ("rephrase", "answer", "closed_book")


class DenseEvaluator(BaseEvaluator):
    """Measures how far the reader understands its contexts (DENSE): no reference is needed.

    Each context is rephrased alone; a reader that understands them all gives the same answer whichever one
    is said in other words. ``score`` is the entropy of the answers in nats: **lower is better**, 0 is
    understood. ``understanding`` in [0, 1] is the same the other way round, ``passing`` whether the score is
    within ``threshold``.

    Needs ``query`` and ``contexts`` for each item; the ``response`` is carried along and not looked at: the
    reader answers itself. For k contexts that costs at most k rephrasings (none that the cache knows),
    k + 1 answers and k (k + 1) judgements. Labels that tell necessary contexts from unnecessary ones cost up
    to 3 k calls more: ``mask=True``.

    Nothing is raised for a single item: one without query or contexts, one that could not be rephrased, or
    one for which a model fails, comes back with ``invalid_result`` and ``invalid_reason``, and a
    ``ProgressEvent`` is sent.

    ``evaluate`` works in the caller's thread, ``aevaluate`` on the running loop; one instance may serve
    several threads and loops.

    Args:
        llm: The reader whose understanding is measured: a LlamaIndex LLM, or a reader of surerag;
            ``Settings.llm`` if left out. An LLM that ``reader_from_llm`` cannot steer answers as it was
            built, so build it with temperature 0. Text is enough: for an OpenAI-compatible server without
            log-probabilities, pass ``reader_from_llm(llm, logprobs=False)``.
        entailer: Judges whether answers mean the same: an entailer of surerag, such as
            ``NLIEntailer.from_pretrained()``, or an LLM that is asked in words; the ``llm`` if left out.
        prompts: Prompts in place of ours, by the names that ``get_prompts`` gives: texts or LlamaIndex
            templates. ``query_str`` and ``context_str`` may stand for ``question`` and ``passages``.
        at_once: Items that are measured at a time, over all callers.
        **settings: Further settings of :class:`surerag.Dense`: ``threshold``, ``mask``, ``cache`` …

    Raises:
        ConfigurationError: If a setting is out of range, or the LLM is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import ScriptedReader
        >>> from surerag.entailment import ExactEntailer
        >>> def reply(prompt):
        ...     if prompt.startswith("Rewrite"):
        ...         return "Velm is where Ada was born."
        ...     return "Velm" if "Ada was born in Velm" in prompt else "Orun"
        >>> evaluator = DenseEvaluator(ScriptedReader(reply), ExactEntailer())
        >>> result = evaluator.evaluate("Where was Ada born?", contexts=["Ada was born in Velm."])
        >>> result.answers, round(result.score, 4), result.understanding, result.passing
        (('Velm', 'Orun'), 0.6931, 0.0, False)
    """

    def __init__(
        self,
        llm: LLM | Reader | None = None,
        entailer: Entailer | LLM | Reader | None = None,
        *,
        prompts: Mapping[str, BasePromptTemplate | str] | None = None,
        at_once: int = 16,
        **settings: Any,
    ) -> None:
        if at_once < 1:
            raise ConfigurationError(f"at_once must be at least 1, got {at_once!r}")
        model = Settings.llm if llm is None else llm
        names = (*_PROMPTS, "entailment") if judges_in_words(entailer) else _PROMPTS
        self._prompts = DensePromptSet(names, model if isinstance(model, LLM) else None).updated(
            prompts or {}
        )
        self._entailer = entailer
        reader = reader_of(model)
        self._dense = Dense(
            reader,
            entailer_of(entailer, reader, self._prompts.for_judge()),
            prompts=self._prompts.for_core(),
            **{"mask": False, **settings},
        )
        self._turns = Turns(at_once)

    def __repr__(self) -> str:
        dense = self._dense
        return (
            f"DenseEvaluator(reader={dense.reader.name!r}, entailer={dense.entailer.name!r}, "
            f"threshold={dense.threshold!r}, mask={dense.mask!r})"
        )

    @property
    def dense(self) -> Dense:
        """The method with its settings and services; ``dense.prepare`` rephrases a corpus ahead."""
        return self._dense

    @property
    def unparsed(self) -> int:
        """Replies of a judge in words, so far, that named no single label; each counts as no entailment."""
        return unparsed_of(self._dense.entailer)

    @dispatcher.span
    def evaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> DenseEvaluationResult:
        """Measure one item, in the caller's thread.

        Args:
            query: The question.
            response: The pipeline's answer; carried along.
            contexts: What was retrieved; blank ones are left out.
            **kwargs: What other evaluators of the same batch are for; ignored.
        """
        item = DenseItem(query, response, contexts)
        try:
            [result] = self._turns.map(self._measure, [item.case()])
            return item.measured(result)
        except Exception as error:
            return _marked(item, error)

    @dispatcher.span
    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> DenseEvaluationResult:
        """Like ``evaluate``, without blocking the event loop."""
        item = DenseItem(query, response, contexts)
        try:
            [result] = await self._turns.amap(self._ameasure, [item.case()])
            return item.measured(result)
        except Exception as error:
            return _marked(item, error)

    def evaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> DenseEvaluationResult:
        """Measure a response's source nodes, as they are shown to an LLM. A stream is left unread."""
        return self.evaluate(query, *shown(response), **kwargs)

    async def aevaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> DenseEvaluationResult:
        """Like ``evaluate_response``, without blocking the event loop."""
        return await self.aevaluate(query, *shown(response), **kwargs)

    def _measure(self, case: DenseCase) -> DenseResult:
        return self._dense.run(*case, on_event=dispatch)

    async def _ameasure(self, case: DenseCase) -> DenseResult:
        return await self._dense.arun(*case, on_event=dispatch)

    def _get_prompts(self) -> PromptDictType:
        return dict(self._prompts.templates)

    def _update_prompts(self, prompts: Mapping[str, BasePromptTemplate | str]) -> None:
        updated = self._prompts.updated(prompts)
        changes: dict[str, Any] = {"prompts": updated.for_core()}
        if "entailment" in prompts:
            changes["entailer"] = entailer_of(self._entailer, self._dense.reader, updated.for_judge())
        self._dense = self._dense.with_settings(**changes)
        self._prompts = updated


def _marked(item: DenseItem, error: Exception) -> DenseEvaluationResult:
    """Return an invalid result, and say so."""
    result = item.invalid(error)
    logger.warning("dense.invalid: %s", result.invalid_reason)
    data = {"question": result.query or "", "reason": result.invalid_reason or ""}
    dispatch(Event("dense.invalid", data, warning=True))
    return result
