"""DENSE as an evaluator for LangSmith, without gold answers: did the reader understand its documents?"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import Runnable, ensure_config

from langchain_surerag._cases import CaseKeys, Key
from langchain_surerag._dense_parts import parts_of
from langchain_surerag._events import Announcing, announcer
from langchain_surerag._given import Given
from langchain_surerag.prompts import PromptLike
from surerag import Dense
from surerag.errors import InputError, SureragError
from surerag.methods.dense_types import DenseResult
from surerag.readers import Reader
from surerag.services import Entailer
from surerag.types import Event

logger = logging.getLogger("surerag")


class DenseEvaluator:
    """Measures how far a reader understood the documents: the entropy of its answers to rewordings (DENSE).

    **Lower is better**: 0 nats means that the answer stays the same whichever document is said in other
    words; with k documents the most is log(k + 1). It needs no gold answer, and says nothing of the run's own
    answer: the reader answers anew. An evaluator for ``langsmith.evaluate`` (``langsmith.aevaluate`` takes
    it, too, or its ``acall``)::

        evaluate(chain, data=examples, evaluators=[DenseEvaluator(model)])

    It reads the question from an example's inputs and what was retrieved from the run's outputs, and returns
    two pieces of feedback: the entropy under ``{key}_entropy``, with the result in words as its comment and
    all parts as its value, and under ``{key}_certain`` 1 where it is within the threshold, else 0 (there,
    higher is better).

    For k documents it costs k rephrasings (none for documents that the cache knows), k + 1 answers and
    at most k (k + 1) judgements. ``mask=True`` asks further to tell necessary documents from unnecessary
    ones; the score does not need it.

    Nothing is raised for a single example: one that lacks something, for which a model fails, or none of
    whose documents the reader could rephrase, has no score, the reason as its comment, and is marked as an
    error as LangSmith marks its own.

    Args:
        llm: The reader: a chat model or LLM, with bindings, retries and fallbacks around it if any; or a
            reader of surerag.
        entailer: Judges whether answers mean the same: an entailer of surerag (``NLIEntailer`` is fast), or a
            model that is asked in words; by default ``llm`` itself, as in the paper.
        question_key: Where the question is, in the inputs: a key, or a function of the mapping. By default
            under ``question``, ``input`` or ``query``.
        contexts_key: Where the documents are, in the outputs (or, under a key, in the inputs): a list of
            documents, texts or their JSON. By default under ``documents``, ``contexts``, ``context``,
            ``source_documents`` or ``output``.
        key: Beginning of the feedback's names.
        prompts: Prompts in place of ours, texts or PromptTemplates: ``rephrase`` (slot ``passage``),
            ``answer`` (``question``, ``passages``), ``closed_book`` (``question``), ``entailment``
            (``question``, ``premise``, ``hypothesis``).
        **settings: Further settings of :class:`surerag.Dense`: ``threshold``, ``mask`` (False here),
            ``max_tokens``, ``cache`` and so on.

    Raises:
        ConfigurationError: If a setting is out of range, or the model is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import ScriptedReader
        >>> from surerag.entailment import ExactEntailer
        >>> def reply(prompt):
        ...     if prompt.startswith("Rewrite"):
        ...         return "Velm is where Ada was born."
        ...     return "Velm" if "Ada was born in Velm" in prompt else "Orun"
        >>> evaluator = DenseEvaluator(ScriptedReader(reply), ExactEntailer())
        >>> feedback = evaluator(
        ...     inputs={"question": "Where was Ada born?"}, outputs={"documents": ["Ada was born in Velm."]}
        ... )
        >>> {item["key"]: round(item["score"], 4) for item in feedback["results"]}
        {'dense_entropy': 0.6931, 'dense_certain': 0}
    """

    def __init__(
        self,
        llm: Runnable[Any, Any] | Reader,
        entailer: Entailer | Runnable[Any, Any] | None = None,
        *,
        question_key: Key | None = None,
        contexts_key: Key | None = None,
        key: str = "dense",
        prompts: Mapping[str, PromptLike] | None = None,
        **settings: Any,
    ) -> None:
        reader, judge, chosen = parts_of(llm, entailer, prompts or {})
        self._dense = Dense(reader, judge, prompts=chosen, **{"mask": False, **settings})
        # Nobody looks for gold answers, so that an example need not have any.
        self._keys = CaseKeys(question_key, contexts_key, gold=lambda _: ())
        self._key = key
        # LangSmith names the evaluator's own traces by it.
        self.__name__ = key

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
            example: LangSmith's example, with inputs.
            inputs: What the system was asked.
            outputs: What it returned, documents among it.
            reference_outputs: Not looked at.

        Returns:
            ``{"results": [...]}``, as LangSmith takes it.
        """
        given = Given.of(run, example, inputs, outputs, reference_outputs)
        on_event = announcer(ensure_config())
        try:
            question, _, passages = self._keys.case(*given)
            return self._feedback(self._dense.run(question, passages, on_event=on_event))
        except Exception as error:
            reason = _reason(error)
            on_event(_invalid(given, reason))
            return self._failed(reason)

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
        async with Announcing(ensure_config()) as on_event:
            try:
                question, _, passages = self._keys.case(*given)
                return self._feedback(await self._dense.arun(question, passages, on_event=on_event))
            except Exception as error:
                reason = _reason(error)
                on_event(_invalid(given, reason))
                return self._failed(reason)

    def _feedback(self, found: DenseResult) -> dict[str, Any]:
        """Return a measurement as LangSmith takes it."""
        outcomes = [chunk.rephrased.outcome for chunk in found.chunks]
        if "rephrased" not in outcomes:
            # Equal contexts have equal answers; as a score, that would look like perfect understanding.
            raise InputError(
                f"no document could be tested, their rephrasings are {', '.join(sorted(set(outcomes)))}",
                hint="use a reader that can rephrase, or raise rephrase_tokens",
            )
        parts = {**found.to_dict(), "largest": math.log(len(found.answers)), "rephrasings": outcomes}
        whole = {
            "key": f"{self._key}_entropy",
            "score": found.score,
            "comment": _in_words(found),
            "value": parts,
        }
        return {"results": [whole, {"key": f"{self._key}_certain", "score": int(found.certain)}]}

    def _failed(self, reason: str) -> dict[str, Any]:
        """Return a failure as LangSmith marks it."""
        failed = {"key": f"{self._key}_entropy", "score": None, "comment": reason, "extra": {"error": True}}
        return {"results": [failed]}


def _in_words(found: DenseResult) -> str:
    changed = [label for label in found.labels if label != "certain"]
    shares = ", ".join(f"{changed.count(label)} {label}" for label in dict.fromkeys(changed))
    how_many = f"{len(changed)} of {len(found.labels)}{f' ({shares})' if shares else ''}"
    return (
        f"DENSE {found.score:.3f} nats of {math.log(len(found.answers)):.3f}, lower is better: "
        f"{'certain' if found.certain else 'uncertain'}. Saying one document in other words changes the "
        f"answer {found.answer!r} for {how_many}."
    )


def _reason(error: Exception) -> str:
    # Errors of ours say what to do; of others, the class says more than the message.
    reason = str(error) if isinstance(error, SureragError) else f"{type(error).__name__}: {error}"
    logger.warning("dense.invalid: %s", reason)
    return reason


def _invalid(given: Given, reason: str) -> Event:
    return Event("dense.invalid", {"inputs": sorted(map(str, given.inputs)), "reason": reason}, warning=True)
