"""DENSE as an evaluator for LangSmith, without gold answers: did the reader understand its documents?"""

from __future__ import annotations

import math
from typing import Any

from langchain_surerag._evaluating import ExampleEvaluator, Given
from langchain_surerag.dense_refiner import JudgedPart
from surerag import DenseEvaluator as Dense
from surerag import DenseOptions, DenseResult
from surerag.effects import Program
from surerag.errors import InputError


class DenseEvaluator(ExampleEvaluator[Dense, DenseResult], JudgedPart[Dense], DenseOptions):  # type: ignore[misc]  # a frozen base; fields that are set are in force
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
    at most k (k + 1) judgements. ``core.prepare`` rephrases a corpus ahead.

    Nothing is raised for a single example: one that lacks something, for which a model fails, or none of
    whose documents the reader could rephrase, has no score, the reason as its comment, and is marked as an
    error as LangSmith marks its own.

    Prompts are texts or PromptTemplates.

    Attributes:
        llm: The reader: a chat model or LLM, with bindings, retries and fallbacks around it if any; or a
            reader of surerag.
        entailer: Judges whether answers mean the same: an entailer of surerag (``NLIEntailer`` is fast), or a
            model that is asked in words; by default ``llm`` itself, as in the paper.
        dense_cache: What is known already; give one to several components, and a document is rephrased once
            for all.
        question_key: Where the question is, in the inputs: a key, or a function of the mapping. By default
            under ``question``, ``input`` or ``query``.
        contexts_key: Where the documents are, in the outputs (or, under a key, in the inputs): a list of
            documents, texts or their JSON. By default under ``documents``, ``contexts``, ``context``,
            ``source_documents`` or ``output``.
        key: Beginning of the feedback's names.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the model is none.
        PromptError: If a prompt is unknown, its slots do not fit, or nobody is asked with it.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.entailment import ExactEntailer
        >>> def reply(prompt):
        ...     if prompt.startswith("Rewrite"):
        ...         return "Velm is where Ada was born."
        ...     return "Velm" if "Ada was born in Velm" in prompt else "Orun"
        >>> evaluator = DenseEvaluator(FakeReader(reply), ExactEntailer())
        >>> feedback = evaluator(
        ...     inputs={"question": "Where was Ada born?"}, outputs={"documents": ["Ada was born in Velm."]}
        ... )
        >>> {item["key"]: round(item["score"], 4) for item in feedback["results"]}
        {'dense_entropy': 0.6931, 'dense_certain': 0}
    """

    METHOD = "dense"

    key: str = "dense"

    @property
    def _main_key(self) -> str:
        return f"{self.key}_entropy"

    def _core(self) -> Dense:
        return Dense(**self._judged())

    def _program(self, given: Given) -> Program[DenseResult]:
        return self.core.program(given.question(self.question_key), given.passages(self.contexts_key))

    def _checked(self, found: DenseResult) -> DenseResult:
        """Return a measurement that tells something.

        Raises:
            InputError: If no document could be rephrased: equal contexts have equal answers, which as a score
                would look like perfect understanding.
        """
        outcomes = _outcomes(found)
        if "rephrased" not in outcomes:
            raise InputError(
                f"no document could be tested, their rephrasings are {', '.join(sorted(set(outcomes)))}",
                hint="use a reader that can rephrase, or raise rephrase_tokens",
            )
        return found

    def _results(self, found: DenseResult) -> list[dict[str, Any]]:
        largest = math.log(len(found.answers))
        parts = {**found.to_dict(), **found.spent_dict(), "largest": largest, "rephrasings": _outcomes(found)}
        return [
            {"key": self._main_key, "score": found.score, "comment": _in_words(found), "value": parts},
            {"key": f"{self.key}_certain", "score": int(found.certain)},
        ]


def _outcomes(found: DenseResult) -> list[str]:
    return [chunk.rephrased.outcome for chunk in found.chunks]


def _in_words(found: DenseResult) -> str:
    changed = [label for label in found.labels if label != "certain"]
    shares = ", ".join(f"{changed.count(label)} {label}" for label in dict.fromkeys(changed))
    how_many = f"{len(changed)} of {len(found.labels)}{f' ({shares})' if shares else ''}"
    return (
        f"DENSE {found.score:.3f} nats of {math.log(len(found.answers)):.3f}, lower is better: "
        f"{'certain' if found.certain else 'uncertain'}. Saying one document in other words changes the "
        f"answer {found.answer!r} for {how_many}."
    )
