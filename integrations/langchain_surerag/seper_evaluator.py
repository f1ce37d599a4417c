"""ΔSePer as an evaluator for LangSmith and langchain-classic: what was retrieval worth to this reader?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import Runnable
from surerag.adapting import shared

from langchain_surerag._evaluating import ExampleEvaluator, Given, Key
from langchain_surerag.services import reader_of
from surerag import SePer, SePerOptions, SePerResult
from surerag.effects import Program
from surerag.entailment import JudgeEntailer
from surerag.extras import extra
from surerag.readers import Reader

if TYPE_CHECKING:
    from langchain_classic.evaluation.schema import StringEvaluator


class DeltaSePerEvaluator(ExampleEvaluator[SePer, SePerResult], SePerOptions):  # type: ignore[misc]  # a frozen base; fields that are set are in force
    """Measures the reader's belief in the gold answers with the documents, minus that without (ΔSePer).

    An evaluator for ``langsmith.evaluate`` (``langsmith.aevaluate`` takes it, too, or its ``acall``)::

        evaluate(chain, data=examples, evaluators=[DeltaSePerEvaluator(model, entailer)])

    It reads the question from an example's inputs, what was retrieved from the run's outputs, and the gold
    answers from the example's reference outputs, and returns three pieces of feedback: ΔSePer under
    ``key``, with the result in words as its comment and all parts as its value, and SePer without and with
    documents under ``{key}_before`` and ``{key}_after``. The run's answer is not looked at.

    Nothing is raised for a single example: one that lacks something, or for which a model fails, has no
    score, the reason as its comment, and is marked as an error as LangSmith marks its own.

    Samples bypass LangChain's global LLM cache, which would answer all of them with one. Prompts are texts
    or PromptTemplates.

    Attributes:
        llm: The reader whose belief is measured: a chat model or LLM, with bindings, retries and fallbacks
            around it if any; or a reader of surerag. Without log-probabilities answers are weighted by
            their frequency, and the result says so.
        entailer: Judges whether answers mean the same: an entailer of surerag, such as
            ``NLIEntailer.from_pretrained()``, or a model that is asked in words.
        question_key: Where the question is, in the inputs: a key, or a function of the mapping. By default
            under ``question``, ``input`` or ``query``.
        contexts_key: Where the documents are, in the outputs (or, under a key, in the inputs): a list of
            documents, texts or their JSON. By default under ``documents``, ``contexts``, ``context``,
            ``source_documents`` or ``output``.
        gold_key: Where the gold answers are, in the reference outputs: one text or a list. By default under
            ``answers``, ``answer``, ``reference``, ``expected`` or ``output``.
        key: Name of the feedback.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the model is none.
        MissingServiceError: If there is no entailer.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = FakeReader(lambda prompt: "Velm" if "born in Velm" in prompt else "Orun")
        >>> evaluator = DeltaSePerEvaluator(reader, ExactEntailer())
        >>> feedback = evaluator(
        ...     inputs={"question": "Where was Ada born?"},
        ...     outputs={"documents": ["Ada was born in Velm."]},
        ...     reference_outputs={"answer": "Velm"},
        ... )
        >>> {item["key"]: item["score"] for item in feedback["results"]}
        {'delta_seper': 1.0, 'delta_seper_before': 0.0, 'delta_seper_after': 1.0}
    """

    METHOD = "seper"

    gold_key: Key | None = None
    key: str = "delta_seper"

    def as_string_evaluator(self) -> StringEvaluator:
        """Return the same as a string evaluator of langchain-classic.

        ``evaluate_strings(prediction=…, input=question, reference=gold, contexts=documents)`` returns
        ``score``, ``reasoning`` and the parts; ``reference`` may be a list of gold answers, and a
        ``prediction`` that is a mapping may hold the documents.

        Raises:
            MissingExtraError: If langchain-classic is not installed.
        """
        return _string_evaluator(self.model_copy(update={"question_key": "question", "gold_key": "gold"}))

    def _core(self) -> SePer:
        judge = shared(_judge, self.entailer) if isinstance(self.entailer, Runnable) else self.entailer
        return SePer(_reader(self.llm), judge, **self.chosen())

    def _program(self, given: Given) -> Program[SePerResult]:
        question, golds = given.question(self.question_key), given.golds(self.gold_key)
        return self.core.program(question, golds, given.passages(self.contexts_key))

    def _results(self, found: SePerResult) -> list[dict[str, Any]]:
        return [
            {"key": self.key, "score": found.delta, "comment": found.explain(), "value": _parts(found)},
            {"key": f"{self.key}_before", "score": found.before.seper},
            {"key": f"{self.key}_after", "score": found.after.seper},
        ]


def _reader(model: Any) -> Reader:
    # The sampled tokens' own log-probabilities suffice: no alternatives are asked for.
    return reader_of(model, top_logprobs=0)


def _judge(model: Runnable[Any, Any]) -> JudgeEntailer:
    return JudgeEntailer(_reader(model))


def _parts(found: SePerResult) -> dict[str, Any]:
    """Return what a measurement consists of, as plain values."""
    return {
        "before": found.before.seper,
        "after": found.after.seper,
        "delta": found.delta,
        "interval": list(found.interval),
        "weights": found.weights,
        "kernel": found.kernel,
        "calls": found.calls,
        "judged": found.judged,
        "tokens": found.tokens,
        **found.spent_dict(),
        "drawn": None if found.drawn is None else asdict(found.drawn),
        "truncated": found.truncated,
        "answers_before": [asdict(answer) for answer in found.before.answers],
        "answers_after": [asdict(answer) for answer in found.after.answers],
    }


def _string_evaluator(evaluator: DeltaSePerEvaluator) -> StringEvaluator:
    """Return an evaluator in the form of langchain-classic, which is imported here alone."""
    with extra("langchain-classic"):
        from langchain_classic.evaluation.schema import StringEvaluator

    class DeltaSePerStringEvaluator(StringEvaluator):
        """Needs ``input`` (the question), ``reference`` (one gold answer or several) and ``contexts``.

        The contexts are a keyword of their own, or stand in ``prediction`` where that is a mapping. The
        prediction is not measured.
        """

        evaluation_name = evaluator.key
        requires_input = True
        requires_reference = True

        def _evaluate_strings(
            self, *, prediction: Any, reference: Any = None, input: Any = None, **kwargs: Any
        ) -> dict[str, Any]:
            return _verdict(evaluator._found(_given(prediction, reference, input, kwargs)))

        async def _aevaluate_strings(
            self, *, prediction: Any, reference: Any = None, input: Any = None, **kwargs: Any
        ) -> dict[str, Any]:
            return _verdict(await evaluator._afound(_given(prediction, reference, input, kwargs)))

    return DeltaSePerStringEvaluator()


def _given(prediction: Any, reference: Any, question: Any, others: Mapping[str, Any]) -> Given:
    outputs = {**(prediction if isinstance(prediction, Mapping) else {}), **others}
    return Given({"question": question}, outputs, {"gold": reference})


def _verdict(found: SePerResult | str) -> dict[str, Any]:
    """Return a measurement as langchain-classic's evaluators do."""
    if isinstance(found, str):
        return {"score": None, "reasoning": found, "error": True}
    return {"score": found.delta, "reasoning": found.explain(), **_parts(found)}
