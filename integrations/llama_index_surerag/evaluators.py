"""ΔSePer and DENSE as LlamaIndex evaluators: one item at a time, and no failure that ends a batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.evaluation import BaseEvaluator, EvaluationResult
from llama_index.core.llms import LLM
from llama_index.core.schema import MetadataMode
from pydantic import PrivateAttr, model_validator

from llama_index_surerag.engines import aread_to_end, read_to_end
from llama_index_surerag.events import dispatch, dispatcher, warn
from llama_index_surerag.llm import Judge, judge_of, reader_of
from llama_index_surerag.pickles import WithoutKeys
from llama_index_surerag.prompts import WithPrompts
from surerag import DenseEvaluator as CoreDenseEvaluator
from surerag import DenseOptions, DenseResult, SePer, SePerOptions, SePerResult
from surerag.component import Component, Service
from surerag.drivers import arun, run
from surerag.effects import Program
from surerag.entailment import JudgeEntailer
from surerag.errors import InputError
from surerag.messages import Passage, Usage
from surerag.readers import Reader

R = TypeVar("R")
E = TypeVar("E", bound=EvaluationResult)


class MethodEvaluator(WithoutKeys, WithPrompts, BaseEvaluator, Generic[R, E]):
    """An evaluator around a method that measures what was retrieved.

    An item that cannot be measured (without contexts, or because a model fails) comes back with
    ``invalid_result`` and ``invalid_reason``, with a warning and a ``ProgressEvent``; nothing is raised, as
    that would end a batch.
    """

    METHOD: ClassVar[str]
    """The method's name in events."""

    RESULT: ClassVar[type[EvaluationResult]]
    """Class of the results."""

    llm: Service[LLM | Reader | None] = None
    """The reader: a LlamaIndex LLM, or a reader of surerag; ``Settings.llm`` if None."""

    entailer: Service[Judge] = None
    """Judges whether answers mean the same: an entailer of surerag, or a model that is asked in words."""

    _core: Any = PrivateAttr()

    def __init__(self, llm: LLM | Reader | None = None, entailer: Judge = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "entailer": entailer, **options})

    @property
    def core(self) -> Component[R]:
        """The method with its options and services."""
        core: Component[R] = self._core
        return core

    @abstractmethod
    def _program(self, query: str, passages: list[Passage], others: Mapping[str, Any]) -> Program[R]:
        """Return the method at work on one item."""

    @abstractmethod
    def _fields(self, result: R) -> dict[str, Any]:
        """Return the fields of an evaluation result, ``score``, ``passing`` and ``feedback`` among them."""

    @dispatcher.span
    def evaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> E:
        """Measure one item, in the caller's thread.

        Args:
            query: The question.
            response: The pipeline's answer; carried along.
            contexts: What was retrieved; blank ones are left out.
            **kwargs: ``reference``, where the method takes one; arguments of other evaluators are ignored.
        """
        try:
            program = self._program(*_checked(query, contexts), kwargs)
            fields = self._fields(run(program, self._core.services, on_event=dispatch))
        except Exception as error:
            fields = self._invalid(query, error)
        return self._result(query, response, contexts, fields)

    @dispatcher.span
    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> E:
        """Like ``evaluate``, without blocking the event loop."""
        try:
            program = self._program(*_checked(query, contexts), kwargs)
            fields = self._fields(await arun(program, self._core.services, on_event=dispatch))
        except Exception as error:
            fields = self._invalid(query, error)
        return self._result(query, response, contexts, fields)

    def evaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> E:
        """Measure what a response was given from: its source nodes as an LLM is shown them."""
        return self.evaluate(query, *_parts(read_to_end(response)), **kwargs)

    async def aevaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> E:
        """Like ``evaluate_response``."""
        return await self.aevaluate(query, *_parts(await aread_to_end(response)), **kwargs)

    def _invalid(self, query: Any, error: Exception) -> dict[str, Any]:
        reason = f"{type(error).__name__}: {error}"
        warn(f"{self.METHOD}.invalid", query=str(query), reason=reason)
        return {"invalid_result": True, "invalid_reason": reason}

    def _result(self, query: Any, response: Any, contexts: Any, fields: Mapping[str, Any]) -> E:
        listed = None if contexts is None or isinstance(contexts, str) else [str(one) for one in contexts]
        response = response if isinstance(response, str) else None
        query = query if isinstance(query, str) else None
        return cast("E", self.RESULT(query=query, response=response, contexts=listed, **fields))


def _checked(query: Any, contexts: Any) -> tuple[str, list[Passage]]:
    """Return a question and its contexts with text.

    Raises:
        InputError: If one of them is missing, or something else.
    """
    if not isinstance(query, str):
        raise InputError("there is no query", hint="pass query=…")
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
        self._core = CoreDenseEvaluator(reader_of(self.llm), judge_of(self.entailer), **self.options())
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
        judge = judge_of(self.entailer)
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
