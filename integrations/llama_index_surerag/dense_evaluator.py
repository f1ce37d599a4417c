"""DENSE as a LlamaIndex evaluator: did the reader understand what was retrieved? No reference is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.evaluation import EvaluationResult

from llama_index_surerag.dense_postprocessor import JudgedPart
from llama_index_surerag.evaluating import Item, MethodEvaluator
from llama_index_surerag.events import dispatcher
from surerag import Costs, DenseOptions, DenseResult
from surerag import DenseEvaluator as Dense
from surerag.errors import InputError


class DenseEvaluationResult(EvaluationResult):
    """How far the reader understood its contexts, for one query.

    ``score`` grows with understanding, as scores of evaluators do: 1 − ``dense`` / log(contexts + 1), in
    [0, 1]; 1 is understood. ``passing`` is whether ``dense`` is within the threshold, ``feedback`` the result
    in words. An item that could not be measured has ``invalid_result`` and ``invalid_reason`` set, and
    neither score nor parts.

    Attributes:
        dense: The entropy of the answers in nats, as in the paper: **lower is better**, 0 is understood,
            log(contexts + 1) is not at all.
        answers: The answer under the contexts as they are, then those with each one rephrased.
        labels: One for each measured context; ``"necessary"`` and ``"unnecessary"`` only with ``mask=True``.
        outcomes: What became of each context's rephrasing; all but ``"rephrased"`` leave it as it is.
        calls: Calls of reader and entailer; what the cache knew is not in it.
        truncated: Answers that were cut at ``max_tokens``.
        tokens: Tokens of the reader's prompts and replies, as far as the reader tells.
        spent: Tokens, calls, seconds and money, where a price is known.
    """

    dense: float | None = None
    answers: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    calls: int = 0
    truncated: int = 0
    tokens: int = 0
    spent: Costs | None = None


class DenseEvaluator(MethodEvaluator[Dense, DenseEvaluationResult], JudgedPart[Dense], DenseOptions):  # type: ignore[misc]  # a frozen base; fields that are set are in force
    """Measures how far the reader understands its contexts (DENSE): no reference is needed.

    Each context is rephrased alone; a reader that understands them all gives the same answer whichever one
    is said in other words. ``score`` in [0, 1] grows with understanding; ``dense``, the entropy of the
    answers in nats, falls with it, and ``passing`` is whether it is within ``threshold``.

    Needs ``query`` and ``contexts`` for each item; the ``response`` is carried along and not looked at: the
    reader answers itself. For k contexts that costs at most k rephrasings (none that the cache knows),
    k + 1 answers and k (k + 1) judgements.

    Nothing is raised for a single item: one without query or contexts, one that could not be rephrased, or
    one for which a model fails, comes back with ``invalid_result`` and ``invalid_reason``, and a
    ``ProgressEvent`` is sent.

    ``evaluate`` works in the caller's thread, ``aevaluate`` on the running loop; one instance may serve
    several threads and loops. ``core.prepare`` rephrases a corpus ahead. Prompts are texts or LlamaIndex
    templates; ``query_str`` and ``context_str`` may stand for ``question`` and ``passages``.

    Attributes:
        llm: The reader whose understanding is measured: a LlamaIndex LLM, or a reader of surerag;
            ``Settings.llm`` if left out. An LLM that ``reader_from_llm`` cannot steer answers as it was
            built, so build it with temperature 0. Text is enough: for an OpenAI-compatible server without
            log-probabilities, pass ``reader_from_llm(llm, logprobs=False)``.
        entailer: Judges whether answers mean the same: an entailer of surerag, such as
            ``NLIEntailer.from_pretrained()``, or an LLM that is asked in words; the ``llm`` if left out.
        dense_cache: What is known already; give one to several components, and a context is rephrased once
            for all.
        window: Items that are measured at a time, over all callers.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM is none.
        PromptError: If a prompt is unknown, its slots do not fit, or nobody is asked with it.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.entailment import ExactEntailer
        >>> def reply(prompt):
        ...     if prompt.startswith("Rewrite"):
        ...         return "Velm is where Ada was born."
        ...     return "Velm" if "Ada was born in Velm" in prompt else "Orun"
        >>> evaluator = DenseEvaluator(FakeReader(reply), ExactEntailer())
        >>> result = evaluator.evaluate("Where was Ada born?", contexts=["Ada was born in Velm."])
        >>> result.answers, result.score, round(result.dense, 4), result.passing
        (('Velm', 'Orun'), 0.0, 0.6931, False)
    """

    METHOD = "dense"

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
        return self._evaluated(Item(query, response, contexts, kwargs))

    @dispatcher.span
    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> DenseEvaluationResult:
        """Like ``evaluate``, without blocking the event loop."""
        return await self._aevaluated(Item(query, response, contexts, kwargs))

    def _core(self) -> Dense:
        return Dense(**self._judged())

    def _case(self, item: Item) -> tuple[Any, ...]:
        return item.question(), item.passages()

    def _parts(self, found: DenseResult) -> dict[str, Any]:
        """Return what the method found, as fields of a result.

        Raises:
            InputError: If no context could be rephrased: equal contexts have equal answers.
        """
        outcomes = tuple(chunk.rephrased.outcome for chunk in found.chunks)
        if "rephrased" not in outcomes:
            raise InputError(
                f"no context could be rephrased ({', '.join(outcomes)}), so nothing was tested",
                hint="raise rephrase_tokens, use another LLM, or another prompt 'rephrase'",
            )
        return {
            "passing": found.certain,
            "feedback": _in_words(found),
            "score": 1 - found.score / _most(found),
            "dense": found.score,
            "answers": found.answers,
            "labels": found.labels,
            "outcomes": outcomes,
            "calls": found.calls.total,
            "truncated": found.truncated,
            "tokens": found.calls.prompt_tokens + found.calls.completion_tokens,
            "spent": found.spent,
        }

    def _result(self, item: Item, parts: Mapping[str, Any]) -> DenseEvaluationResult:
        return DenseEvaluationResult(**item.told(), **parts)


def _most(result: DenseResult) -> float:
    return math.log(len(result.answers))


def _in_words(result: DenseResult) -> str:
    changed = sum(chunk.link < 1 for chunk in result.chunks)
    understood = "understood" if result.certain else "not understood"
    return (
        f"Contexts {understood}: DENSE {result.score:.3f} of at most {_most(result):.3f} nats (lower is "
        f"better); rephrasing changed the answer for {changed} of {len(result.chunks)} contexts."
    )
