"""ΔSePer as an evaluator for LangSmith and langchain-classic: what was retrieval worth to this reader?"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import Runnable, ensure_config

from langchain_surerag._cases import CaseKeys, Key
from langchain_surerag._events import Announcing, announcer
from langchain_surerag._given import Given
from langchain_surerag.prompts import PromptLike, prompt_from
from langchain_surerag.readers import reader_from_model
from surerag import SePer
from surerag.entailment import JudgeEntailer
from surerag.errors import PromptError, SureragError
from surerag.extras import extra
from surerag.methods.seper_types import SePerPrompts, SePerResult
from surerag.readers import Reader
from surerag.services import Entailer
from surerag.types import Event

if TYPE_CHECKING:
    from langchain_classic.evaluation.schema import StringEvaluator

logger = logging.getLogger("surerag")

_PROMPTS = ("closed_book", "from_passages")


class DeltaSePerEvaluator:
    """Measures the reader's belief in the gold answers with the documents, minus that without (ΔSePer).

    An evaluator for ``langsmith.evaluate`` (``langsmith.aevaluate`` takes it, too, or its ``acall``)::

        evaluate(chain, data=examples, evaluators=[DeltaSePerEvaluator(model, entailer)])

    It reads the question from an example's inputs, what was retrieved from the run's outputs, and the gold
    answers from the example's reference outputs, and returns three pieces of feedback: ΔSePer under
    ``key``, with the result in words as its comment and all parts as its value, and SePer without and with
    documents under ``{key}_before`` and ``{key}_after``. The run's answer is not looked at.

    Nothing is raised for a single example: one that lacks something, or for which a model fails, has no
    score, the reason as its comment, and is marked as an error as LangSmith marks its own.

    Samples bypass LangChain's global LLM cache, which would answer all of them with one.

    Args:
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
        prompts: Prompts in place of ours, texts or PromptTemplates: ``closed_book`` with the slot
            ``question``, ``from_passages`` with ``passages`` and ``question``.
        **settings: Further settings of :class:`surerag.SePer`: ``n_samples``, ``kernel``, ``weights``,
            ``seed`` and so on.

    Raises:
        ConfigurationError: If a setting is out of range, or the model is none.
        MissingServiceError: If there is no entailer.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import ScriptedReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = ScriptedReader(lambda prompt: "Velm" if "born in Velm" in prompt else "Orun")
        >>> evaluator = DeltaSePerEvaluator(reader, ExactEntailer())
        >>> feedback = evaluator(
        ...     inputs={"question": "Where was Ada born?"},
        ...     outputs={"documents": ["Ada was born in Velm."]},
        ...     reference_outputs={"answer": "Velm"},
        ... )
        >>> {item["key"]: item["score"] for item in feedback["results"]}
        {'delta_seper': 1.0, 'delta_seper_before': 0.0, 'delta_seper_after': 1.0}
    """

    def __init__(
        self,
        llm: Runnable[Any, Any] | Reader,
        entailer: Entailer | Runnable[Any, Any] | None = None,
        *,
        question_key: Key | None = None,
        contexts_key: Key | None = None,
        gold_key: Key | None = None,
        key: str = "delta_seper",
        prompts: Mapping[str, PromptLike] | None = None,
        **settings: Any,
    ) -> None:
        judge: Any = JudgeEntailer(_reader(entailer)) if isinstance(entailer, Runnable) else entailer
        self._seper = SePer(_reader(llm), judge, prompts=_prompts(prompts or {}), **settings)
        self._keys = CaseKeys(question_key, contexts_key, gold_key)
        self._key = key
        # LangSmith names the evaluator's own traces by it.
        self.__name__ = key

    def __repr__(self) -> str:
        seper = self._seper
        return (
            f"DeltaSePerEvaluator(reader={seper.reader.name!r}, entailer={seper.entailer.name!r}, "
            f"n_samples={seper.n_samples!r}, kernel={seper.kernel!r})"
        )

    @property
    def seper(self) -> SePer:
        """The method with its settings and services; ``seper.utilities`` measures single passages."""
        return self._seper

    def __call__(
        self,
        run: Any = None,
        example: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        reference_outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Measure one example; the mappings win over what run and example hold.

        Args:
            run: LangSmith's run, with inputs and outputs.
            example: LangSmith's example, with inputs and reference outputs.
            inputs: What the system was asked.
            outputs: What it returned, documents among it.
            reference_outputs: Gold answers.

        Returns:
            ``{"results": [...]}``, as LangSmith takes it.
        """
        given = Given.of(run, example, inputs, outputs, reference_outputs)
        return _feedback(self._key, self._measured(self._keys, given))

    async def acall(
        self,
        run: Any = None,
        example: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        reference_outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Measure one example without blocking the event loop; see :meth:`__call__`."""
        given = Given.of(run, example, inputs, outputs, reference_outputs)
        return _feedback(self._key, await self._ameasured(self._keys, given))

    def as_string_evaluator(self) -> StringEvaluator:
        """Return the same as a string evaluator of langchain-classic.

        ``evaluate_strings(prediction=…, input=question, reference=gold, contexts=documents)`` returns
        ``score``, ``reasoning`` and the parts; ``reference`` may be a list of gold answers, and a
        ``prediction`` that is a mapping may hold the documents.

        Raises:
            MissingExtraError: If langchain-classic is not installed.
        """
        with extra("langchain-classic"):
            from langchain_surerag._string_evaluator import DeltaSePerStringEvaluator

        keys = CaseKeys("question", self._keys.contexts, "gold")

        def given(question: Any, outputs: Mapping[str, Any], gold: Any) -> Given:
            return Given({"question": question}, outputs, {"gold": gold})

        def evaluate(*strings: Any) -> dict[str, Any]:
            return _verdict(self._measured(keys, given(*strings)))

        async def aevaluate(*strings: Any) -> dict[str, Any]:
            return _verdict(await self._ameasured(keys, given(*strings)))

        return DeltaSePerStringEvaluator(self._key, evaluate, aevaluate)

    def _measured(self, keys: CaseKeys, given: Given) -> SePerResult | str:
        """Return the measurement, or why there is none."""
        on_event = announcer(ensure_config())
        try:
            return self._seper.run(*keys.case(*given), on_event=on_event)
        except Exception as error:
            reason = _reason(error)
            on_event(_invalid(given, reason))
            return reason

    async def _ameasured(self, keys: CaseKeys, given: Given) -> SePerResult | str:
        async with Announcing(ensure_config()) as on_event:
            try:
                return await self._seper.arun(*keys.case(*given), on_event=on_event)
            except Exception as error:
                reason = _reason(error)
                on_event(_invalid(given, reason))
                return reason


def _reader(model: Any) -> Reader:
    # The sampled tokens' own log-probabilities suffice: no alternatives are asked for.
    return model if isinstance(model, Reader) else reader_from_model(model, top_logprobs=0)


def _prompts(given: Mapping[str, PromptLike]) -> SePerPrompts:
    unknown = sorted(given.keys() - set(_PROMPTS))
    if unknown:
        raise PromptError(f"there is no prompt {unknown}", hint=f"choose among {list(_PROMPTS)}")
    ours = SePerPrompts()
    return SePerPrompts(**{name: prompt_from(given.get(name), getattr(ours, name)) for name in _PROMPTS})


def _reason(error: Exception) -> str:
    # Errors of ours say what to do; of others, the class says more than the message.
    reason = str(error) if isinstance(error, SureragError) else f"{type(error).__name__}: {error}"
    logger.warning("seper.invalid: %s", reason)
    return reason


def _invalid(given: Given, reason: str) -> Event:
    return Event("seper.invalid", {"inputs": sorted(map(str, given.inputs)), "reason": reason}, warning=True)


def _feedback(key: str, found: SePerResult | str) -> dict[str, Any]:
    """Return a measurement as LangSmith takes it; what failed is marked as LangSmith marks it."""
    if isinstance(found, str):
        return {"results": [{"key": key, "score": None, "comment": found, "extra": {"error": True}}]}
    whole = {"key": key, "score": found.delta, "comment": found.explain(), "value": _parts(found)}
    before = {"key": f"{key}_before", "score": found.before.seper}
    return {"results": [whole, before, {"key": f"{key}_after", "score": found.after.seper}]}


def _verdict(found: SePerResult | str) -> dict[str, Any]:
    """Return a measurement as langchain-classic's evaluators do."""
    if isinstance(found, str):
        return {"score": None, "reasoning": found, "error": True}
    return {"score": found.delta, "reasoning": found.explain(), **_parts(found)}


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
        "drawn": None if found.drawn is None else asdict(found.drawn),
        "answers_before": [asdict(answer) for answer in found.before.answers],
        "answers_after": [asdict(answer) for answer in found.after.answers],
    }
