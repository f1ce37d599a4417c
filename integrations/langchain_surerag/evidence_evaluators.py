"""EDC²-RAG's checks as evaluators for LangSmith: an answer against documents, and the better of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from langchain_surerag._evaluating import ExampleEvaluator, Given, Key
from langchain_surerag.cluster_compressor import compressor_over
from surerag import Choice, ClusterCompressor, EDC2Options, Judgement
from surerag.effects import Program
from surerag.errors import InputError

_ANSWERS = ("answer", "output", "response", "result")


class FactCheckEvaluator(ExampleEvaluator[ClusterCompressor, Judgement], EDC2Options):  # type: ignore[misc]  # a frozen base; fields that are set are in force
    r"""Judges whether a run's answer has factual errors, by evidence compressed for it (EDC²-RAG, 6.2).

    The answer is the statement: the run's documents are clustered, each cluster is compressed to what
    supports, refutes or explains it, and the model says Factual or Nonfactual. Feedback under ``key`` is 1
    where it found no error, else 0, its reasons the comment, and all parts the value::

        evaluate(chain, data=examples, evaluators=[FactCheckEvaluator(model, embeddings)])

    Nothing is raised for a single example: one that lacks something, for which the model fails, or whose
    reply names no verdict has no score, the reason as its comment, and is marked as an error.

    Attributes:
        llm: Compresses and judges: a chat model or LLM, or a reader of surerag.
        embeddings: Clusters the documents: an embedding model, or an encoder of surerag.
        entailer: For ``guard="entailment"``.
        answer_key: Where the statement is, in the outputs: a key, or a function of the mapping. By default
            under ``answer``, ``output``, ``response`` or ``result``.
        subject_key: Where it stands whom the statement is about, in the inputs; None for nowhere.
        contexts_key: Where the documents are; see :class:`DenseEvaluator`.
        key: Name of the feedback.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the model is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = FakeReader(["Reasoning: [1] says Velm.\nAnswer: Nonfactual"])
        >>> evaluator = FactCheckEvaluator(reader, HashingEncoder())
        >>> outputs = {"answer": "Ada was born in Orun.", "documents": ["Ada was born in Velm."]}
        >>> [feedback] = evaluator(inputs={"question": "Where?"}, outputs=outputs)["results"]
        >>> feedback["score"], feedback["comment"]
        (0, '[1] says Velm.')
    """

    METHOD = "fact_check"

    embeddings: Any = Field(default=None, exclude=True, repr=False, kw_only=False)
    answer_key: Key | None = None
    subject_key: Key | None = None
    key: str = "factual"

    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __init__(
            self, llm: Any = None, embeddings: Any = None, entailer: Any = None, **options: Any
        ) -> None:
            super().__init__(llm, entailer, embeddings=embeddings, **options)

    def _core(self) -> ClusterCompressor:
        return compressor_over(self.llm, self.embeddings, self.entailer, None, self.chosen())

    def _program(self, given: Given) -> Program[Judgement]:
        statement = said(given.outputs, self.answer_key)
        subject = _at(given.inputs, self.subject_key) if self.subject_key is not None else None
        return self.core.judge_program(statement, given.passages(self.contexts_key), subject)

    def _checked(self, found: Judgement) -> Judgement:
        """Return a judgement that names a verdict.

        Raises:
            InputError: If it does not.
        """
        if found.label == "unclear":
            raise InputError(
                f"the reply names no verdict: {found.generation.text[:80]!r}",
                hint="raise max_tokens, or use another model or prompt 'judge_statement'",
            )
        return found

    def _results(self, found: Judgement) -> list[dict[str, Any]]:
        parts = {
            "label": found.label,
            "statement": found.statement,
            "sources": list(found.sources),
            "evidence": [passage.text for passage in found.evidence],
            "calls": found.compression.calls + 1,
            **found.spent_dict(),
        }
        comment = found.reasoning or found.generation.text
        return [{"key": self.key, "score": int(found.label == "factual"), "comment": comment, "value": parts}]


class AnswerChoiceEvaluator(ExampleEvaluator[ClusterCompressor, Choice], EDC2Options):  # type: ignore[misc]  # as above
    """Chooses between two runs' answers by evidence compressed for the question (EDC²-RAG, C.1.1).

    An evaluator for ``langsmith.evaluate_comparative`` of two experiments::

        evaluate_comparative((first, second), evaluators=[AnswerChoiceEvaluator(model, embeddings)])

    It returns ``{"key": …, "scores": …, "comment": …}``: 1 for the chosen run and 0 for the other, ½ for both
    where the replies to both orders disagree. Documents are those of the example's reference outputs or
    inputs if it has some under ``contexts_key``, else of both runs' outputs, each once.

    Where something is missing or a model fails, both scores are None and the reason is the comment.

    Attributes:
        llm: Compresses and chooses: a chat model or LLM, or a reader of surerag.
        embeddings: Clusters the documents: an embedding model, or an encoder of surerag.
        entailer: For ``guard="entailment"``.
        answer_key: Where the answer is, in each run's outputs; see :class:`FactCheckEvaluator`.
        both_orders: Whether to ask with the answers in either order: models prefer a place. The paper does
            not.
        question_key: Where the question is, in the inputs; see :class:`DenseEvaluator`.
        contexts_key: Where the documents are.
        key: Name of the feedback.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the model is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> evaluator = AnswerChoiceEvaluator(FakeReader(["Choice: Answer 2"]), HashingEncoder())
        >>> outputs = [{"answer": "Orun", "documents": ["Ada was born in Velm."]}, {"answer": "Velm"}]
        >>> evaluator(inputs={"question": "Where was Ada born?"}, outputs=outputs)["scores"]
        [0.0, 1.0]
    """

    METHOD = "answer_choice"

    embeddings: Any = Field(default=None, exclude=True, repr=False, kw_only=False)
    answer_key: Key | None = None
    both_orders: bool = False
    key: str = "answer_choice"

    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __init__(
            self, llm: Any = None, embeddings: Any = None, entailer: Any = None, **options: Any
        ) -> None:
            super().__init__(llm, entailer, embeddings=embeddings, **options)

    def __call__(  # type: ignore[override]  # comparative evaluators are handed several runs
        self,
        runs: Sequence[Any] | None = None,
        example: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        outputs: Sequence[Mapping[str, Any]] | None = None,
        reference_outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Choose between two runs; the mappings win over what runs and example hold.

        Scores are by the runs' ids, as LangSmith takes them; in the order of ``outputs`` where no runs came.

        Args:
            runs: LangSmith's two runs, with their outputs.
            example: LangSmith's example, with inputs.
            inputs: What both systems were asked.
            outputs: What each returned.
            reference_outputs: What they should have returned; documents may be among it.

        Returns:
            A mapping as LangSmith takes it.
        """
        given = _Pair.of(runs, example, inputs, outputs, reference_outputs)
        return self._compared(self._found(given), runs)  # type: ignore[arg-type]  # a pair is given where one run was

    async def acall(  # type: ignore[override]  # as above
        self,
        runs: Sequence[Any] | None = None,
        example: Any = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        outputs: Sequence[Mapping[str, Any]] | None = None,
        reference_outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Like :meth:`__call__`, without blocking the event loop."""
        given = _Pair.of(runs, example, inputs, outputs, reference_outputs)
        return self._compared(await self._afound(given), runs)  # type: ignore[arg-type]  # as above

    def _compared(self, found: Choice | str, runs: Sequence[Any] | None = None) -> dict[str, Any]:
        if isinstance(found, str):
            scores: list[float | None] = [None, None]
            comment = found
        else:
            chosen = found.chosen
            scores = [0.5, 0.5] if chosen is None else [float(chosen == at) for at in (0, 1)]
            comment = found.reasoning or found.generations[0].text
        if not runs:
            return {"key": self.key, "scores": scores, "comment": comment}
        by_run = {run.id: score for run, score in zip(runs, scores, strict=True)}
        return {"key": self.key, "scores": by_run, "comment": comment}

    def _core(self) -> ClusterCompressor:
        return compressor_over(self.llm, self.embeddings, self.entailer, None, self.chosen())

    def _program(self, given: Any) -> Program[Choice]:
        return self.core.choose_program(
            given.question(self.question_key),
            given.answers(self.answer_key),
            given.passages(self.contexts_key),
            both_orders=self.both_orders,
        )

    def _checked(self, found: Choice) -> Choice:
        """Return a choice, or a draw of two orders.

        Raises:
            InputError: If the one reply names neither answer.
        """
        if found.chosen is None and len(found.generations) == 1:
            raise InputError(
                f"the reply chooses no answer: {found.generations[0].text[:80]!r}",
                hint="raise max_tokens, or use another model or prompt 'choose_answer'",
            )
        return found

    def _results(self, found: Choice) -> list[dict[str, Any]]:
        return [self._compared(found)]


class _Pair:
    """What two systems returned for one question, read as :class:`Given` reads one of them."""

    def __init__(self, sides: Sequence[Given]) -> None:
        self.sides = sides
        self.inputs = sides[0].inputs

    @classmethod
    def of(
        cls,
        runs: Sequence[Any] | None,
        example: Any,
        inputs: Mapping[str, Any] | None,
        outputs: Sequence[Mapping[str, Any]] | None,
        reference_outputs: Mapping[str, Any] | None,
    ) -> _Pair:
        found = list(runs or ()) or [None] * len(outputs or ())
        if len(found) != 2:
            raise InputError(f"expected two runs, got {len(found)}", hint="compare two experiments")
        texts = list(outputs or (None, None))
        return cls(
            [
                Given.of(run, example, inputs, own, reference_outputs)
                for run, own in zip(found, texts, strict=True)
            ]
        )

    def question(self, key: Key | None) -> str:
        return self.sides[0].question(key)

    def answers(self, key: Key | None) -> tuple[str, str]:
        first, second = (said(side.outputs, key) for side in self.sides)
        return first, second

    def passages(self, key: Key | None) -> list[Any]:
        first = self.sides[0]
        told = Given(first.inputs, first.reference_outputs, {})
        found: list[Any] = []
        for side in (told, *self.sides):
            try:
                found += side.passages(key)
            except InputError:
                continue
            if side is told:
                break
        if not found:
            first.passages(key)  # says what is missing
        return list({passage.text: passage for passage in found}.values())


def said(outputs: Mapping[str, Any], key: Key | None) -> str:
    """Return the answer among a run's outputs.

    Raises:
        InputError: If there is none.
    """
    if key is None:
        found: Any = next((outputs[one] for one in _ANSWERS if isinstance(outputs.get(one), str)), None)
    else:
        found = _at(outputs, key)
    if not isinstance(found, str) or not found.strip():
        raise InputError(
            f"there is no answer among {sorted(map(str, outputs))}", hint="say where it is with answer_key=…"
        )
    return found


def _at(given: Mapping[str, Any], key: Key) -> Any:
    return key(given) if callable(key) else given.get(key)
