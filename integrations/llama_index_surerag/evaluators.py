"""LlamaIndex evaluators that measure ΔSePer (how much contexts help) and DSE (of DENSE-RAG)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Self

from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.evaluation import BaseEvaluator, EvaluationResult
from llama_index.core.llms import LLM
from llama_index.core.schema import MetadataMode
from pydantic import field_serializer, model_validator

from llama_index_surerag.engines import aread_to_end, read_to_end
from llama_index_surerag.events import dispatch, dispatcher, warn
from llama_index_surerag.llm import Judge, judge_of, reader_of
from llama_index_surerag.pickles import WithoutKeys
from llama_index_surerag.prompts import WithPrompts
from surerag import DenseEvaluator as CoreDenseEvaluator
from surerag import DenseOptions, DenseResult, Passage, SePer, SePerOptions, SePerResult
from surerag.component import Service
from surerag.drivers import arun, maybe_await, run, run_blocking
from surerag.errors import InputError
from surerag.options import CheckedFields
from surerag.readers import Reader, described

Texts = Sequence[str] | None


class MethodEvaluationResult(CheckedFields, EvaluationResult):
    """The result of measuring one item: a question with its contexts.

    If the item could not be measured, ``invalid_result`` is True, ``invalid_reason`` says why, and ``score``
    is None.

    Attributes:
        result: The method's whole result, with answers, calls and tokens: a :class:`surerag.SePerResult` or a
            :class:`surerag.DenseResult`; None if the item could not be measured.
    """

    result: Any = None

    @field_serializer("result")
    def _as_values(self, result: Any) -> Any:
        if result is None or isinstance(result, Mapping):
            return result
        return result.to_dict() if isinstance(result, DenseResult) else asdict(result)


class MethodEvaluator(WithoutKeys, WithPrompts, BaseEvaluator):
    """Base class of evaluators. A failure gives an invalid result, a log line and a ``MethodEvent``."""

    METHOD: ClassVar[str]
    """First part of the names of the method's events."""

    llm: Service[LLM | Reader | None] = None
    """A LlamaIndex LLM, or a reader of surerag; ``Settings.llm`` if None."""

    entailer: Service[Judge] = None
    """Judges whether two answers mean the same: an entailer of surerag, or an LLM with a prompt."""

    def __init__(self, llm: LLM | Reader | None = None, entailer: Judge = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "entailer": entailer, **options})

    def _case(self, query: str, passages: list[Passage], others: Mapping[str, Any]) -> tuple[Any, ...]:
        return query, passages

    @abstractmethod
    def _evaluation_fields(self, result: Any) -> dict[str, Any]:
        """Return the fields of an evaluation: ``score``, ``passing`` and ``feedback``."""

    @dispatcher.span
    def evaluate(
        self, query: str | None = None, response: str | None = None, contexts: Texts = None, **kwargs: Any
    ) -> MethodEvaluationResult:
        """Measure one item (a question with its contexts), in the caller's thread.

        Args:
            query: The question.
            response: The pipeline's answer; it is copied into the result, but not measured.
            contexts: Texts of the retrieved nodes; blank texts are ignored.
            **kwargs: ``reference``, the right answers, if the method needs them; other arguments are ignored.
        """
        return run_blocking(self._measure_item(query, response, contexts, kwargs, run))

    @dispatcher.span
    async def aevaluate(
        self, query: str | None = None, response: str | None = None, contexts: Texts = None, **kwargs: Any
    ) -> MethodEvaluationResult:
        """Measure one item as ``evaluate`` does, without blocking the event loop."""
        return await self._measure_item(query, response, contexts, kwargs, arun)

    def evaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> MethodEvaluationResult:
        """Evaluate a response; the contexts are the texts of its source nodes, as an LLM sees them."""
        return self.evaluate(query, *_parts(read_to_end(response)), **kwargs)

    async def aevaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> MethodEvaluationResult:
        """Measure a response as ``evaluate_response`` does, without blocking the event loop."""
        return await self.aevaluate(query, *_parts(await aread_to_end(response)), **kwargs)

    async def _measure_item(
        self, query: Any, response: Any, contexts: Any, others: Mapping[str, Any], run: Callable[..., Any]
    ) -> MethodEvaluationResult:
        try:
            program = self._core.program(*self._case(*_check_item(query, contexts), others))
            result = await maybe_await(run(program, self._core.services, on_event=dispatch))
            fields = {**self._evaluation_fields(result), "result": result}
        except Exception as error:
            reason = described(error)
            warn(f"{self.METHOD}.invalid", query=str(query), reason=reason)
            fields = {"invalid_result": True, "invalid_reason": reason, "feedback": reason}
        listed = None if contexts is None or isinstance(contexts, str) else [str(text) for text in contexts]
        response = response if isinstance(response, str) else None
        query = query if isinstance(query, str) else None
        return MethodEvaluationResult(query=query, response=response, contexts=listed, **fields)


def _check_item(query: Any, contexts: Any) -> tuple[str, list[Passage]]:
    if not isinstance(query, str):
        raise InputError(f"query must be a text, got {type(query).__name__}", hint="pass query=…")
    if isinstance(contexts, str) or not all(isinstance(text, str) for text in contexts or ()):
        raise InputError("contexts must be a list of texts", hint="pass contexts=[…]")
    passages = [Passage(text) for text in contexts or () if text.strip()]
    if not passages:
        raise InputError(
            "there are no contexts with text",
            hint="pass contexts=…, or a response whose source nodes have text",
        )
    return query, passages


def _parts(response: Any) -> tuple[str | None, list[str] | None]:
    if response is None:
        return None, None
    nodes = response.source_nodes
    return str(response), [node.node.get_content(metadata_mode=MetadataMode.LLM) for node in nodes]


class DenseEvaluator(MethodEvaluator, DenseOptions):
    """Rephrases one context at a time, and measures whether the LLM's answer stays the same.

    Each item needs ``query`` and ``contexts``, but no reference. For k contexts, the evaluation's ``score``
    is 1 − DSE / log(k + 1), where DSE is the degree semantic entropy of the answers: 1 means that no
    rephrasing changed the answer, and 0 that all answers differ. The evaluation's ``result`` is the method's
    own result, whose ``score`` is DSE in nats. ``passing`` is True if DSE is at most ``threshold`` and no
    answer is empty or cut off. Without an ``entailer``, the LLM judges whether two answers mean the same.
    Prompts are texts or LlamaIndex templates.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or ``llm`` is no LLM.
        PromptError: If a prompt is unknown or its slots do not fit.
    """

    METHOD = "dense"

    @model_validator(mode="after")
    def _connect(self) -> Self:
        self._core = CoreDenseEvaluator(reader_of(self.llm), judge_of(self.entailer), **self.options())
        return self

    def _evaluation_fields(self, result: DenseResult) -> dict[str, Any]:
        outcomes = [chunk.outcome for chunk in result.chunks]
        if "rephrased" not in outcomes:
            raise InputError(
                f"no context could be rephrased ({', '.join(outcomes)}), so DSE could not be measured",
                hint="raise rephrase_max_tokens, or use another LLM or another prompt 'rephrase'",
            )
        largest, changed = math.log(len(result.answers)), sum(chunk.link < 1 for chunk in result.chunks)
        return {
            "score": 1 - result.score / largest,
            "passing": result.certain,
            "feedback": f"The LLM is {'certain' if result.certain else 'uncertain'} with these contexts: "
            f"DSE is {result.score:.3f} of at most {largest:.3f} nats (lower is better). Rephrasing "
            f"changed the answer for {changed} of {len(result.chunks)} contexts.",
        }


class DeltaSePerEvaluator(MethodEvaluator, SePerOptions):
    """Measures how much the contexts raise the LLM's probability of a right answer (ΔSePer).

    Each item needs ``query``, ``contexts`` and ``reference`` (one right answer or several). ``response`` is
    only copied into the result. ``score`` is ΔSePer in [−1, 1]: the probability of a right answer with the
    contexts, minus the probability without contexts. ``feedback`` explains the result in several lines, and
    ``result`` has all numbers. If the LLM returns no log-probabilities, sampled answers are weighted by their
    frequency. Prompts are texts or LlamaIndex templates.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or ``llm`` is no LLM.
        MissingServiceError: If there is no entailer.
        PromptError: If a prompt is unknown or its slots do not fit.
    """

    METHOD = "seper"

    passing_above: float = 0.0
    """``passing`` is True if ΔSePer is greater than this number."""

    @model_validator(mode="after")
    def _connect(self) -> Self:
        self._core = SePer(reader_of(self.llm), judge_of(self.entailer), **self.options())
        return self

    def _case(self, query: str, passages: list[Passage], others: Mapping[str, Any]) -> tuple[Any, ...]:
        reference = others.get("reference")
        references = list(reference) if isinstance(reference, list | tuple | set) else [reference]
        if not references or not all(isinstance(text, str) and text.strip() for text in references):
            raise InputError(
                "reference must be a right answer or a list of right answers", hint="pass reference=…"
            )
        return query, references, passages

    def _evaluation_fields(self, result: SePerResult) -> dict[str, Any]:
        passing = result.delta > self.passing_above
        return {"score": result.delta, "passing": passing, "feedback": result.explain()}
