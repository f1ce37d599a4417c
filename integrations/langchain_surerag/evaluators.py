"""ΔSePer and DENSE as evaluators for LangSmith."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, cast

from langchain_core.documents import Document
from langchain_core.runnables import Runnable, ensure_config

from langchain_surerag.base import Part, service_field
from langchain_surerag.calls import Awaiting, Blocking, Calls
from langchain_surerag.documents import passage_of
from langchain_surerag.models import reader_of
from langchain_surerag.runs import listen
from surerag import DenseEvaluator as CoreDense
from surerag import DenseOptions, DenseResult, Passage, SePer, SePerOptions, SePerResult
from surerag.drivers import complete
from surerag.effects import Program
from surerag.entailment import JudgeEntailer
from surerag.errors import MISCONFIGURED, InputError, SureragError
from surerag.messages import Event

logger = logging.getLogger("surerag")

Key = str | Callable[[Mapping[str, Any]], Any]
"""Where something is in a mapping: its key, or a function of the mapping."""

_QUESTIONS = ("question", "input", "query")
_CONTEXTS = ("documents", "contexts", "context", "source_documents", "output")
_REFERENCES = ("answers", "answer", "reference", "expected", "output")
_TEXTS = ("page_content", "text", "content")


class Example(NamedTuple):
    """One example as LangSmith passes it: inputs, the system's outputs, reference outputs."""

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    references: Mapping[str, Any]

    @classmethod
    def of(cls, run: Any, example: Any, inputs: Any, outputs: Any, references: Any) -> Self:
        """Return an example of LangSmith's objects; the mappings win over what these hold."""
        return cls(
            inputs or getattr(run, "inputs", None) or getattr(example, "inputs", None) or {},
            outputs or getattr(run, "outputs", None) or {},
            references or getattr(example, "outputs", None) or {},
        )

    def question(self, key: Key | None) -> str:
        """Return the question, from the inputs."""
        value = _value(key, _QUESTIONS, self.inputs)
        if not isinstance(value, str):
            raise _missing("question", "question_key", value, self.inputs)
        return value

    def reference_answers(self, key: Key | None) -> list[str]:
        """Return the right answers, from the reference outputs."""
        value = _value(key, _REFERENCES, self.references)
        answers = [value] if isinstance(value, str) else value
        if not isinstance(answers, list | tuple) or not all(isinstance(one, str) for one in answers):
            raise _missing("reference answer", "reference_key", value, self.references)
        return list(answers)

    def passages(self, key: Key | None) -> list[Passage]:
        """Return the documents that have text, from the outputs, or under a key from the inputs."""
        value = _contexts(key, self.outputs)
        if value is None and not callable(key):
            value = _contexts(key, self.inputs)
        items = [value] if isinstance(value, str | Document) else value
        if not isinstance(items, list | tuple):
            raise _missing("list of documents", "contexts_key", value, {**self.inputs, **self.outputs})
        passages = [passage for passage in map(_passage, items) if passage.text.strip()]
        if not passages:
            raise InputError("there is no document with text", hint="evaluate runs that retrieved something")
        return passages


class ExampleEvaluator(Part):
    """An evaluator for ``langsmith.evaluate`` around a method."""

    METHOD: ClassVar[str]
    """The method's name in events."""

    llm: Any = service_field("The reader: a chat model, an LLM or a reader of surerag.")
    entailer: Any = service_field(
        "Judges whether answers mean the same: an entailer of surerag, or a model that judges in words."
    )
    question_key: Key | None = None
    """Where the question is, in the inputs; by default under ``question``, ``input`` or ``query``."""

    contexts_key: Key | None = None
    """Where the documents are, in the outputs or, under a key, in the inputs: documents, texts or their JSON.
    By default under ``documents``, ``contexts``, ``context``, ``source_documents`` or ``output``."""

    key: str
    """Name of the feedback, or its beginning."""

    @property
    def __name__(self) -> str:
        """Name of the evaluator in LangSmith's own traces."""
        return self.key

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
            inputs: Inputs of the system.
            outputs: What it returned, documents among it.
            reference_outputs: Right answers, for evaluators that need them.

        Returns:
            ``{"results": [...]}``, as LangSmith takes it.
        """
        one = Example.of(run, example, inputs, outputs, reference_outputs)
        return complete(self._feedback(one, Blocking()))

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
        one = Example.of(run, example, inputs, outputs, reference_outputs)
        return await self._feedback(one, Awaiting())

    @abstractmethod
    def _program(self, example: Example) -> Program[Any]:
        """Return the method at work on an example."""

    @abstractmethod
    def _results(self, result: Any) -> list[dict[str, Any]]:
        """Return feedback on a measurement, or raise an error if it means nothing."""

    @property
    def _main_key(self) -> str:
        return self.key

    async def _feedback(self, example: Example, calls: Calls) -> dict[str, Any]:
        """Measure an example; a failure is marked as LangSmith marks its own."""
        try:
            result = await calls.run(ensure_config(), self._program(example), self.core.services)
            return {"results": self._results(result)}
        except MISCONFIGURED:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, SureragError) else f"{type(error).__name__}: {error}"
        logger.warning("%s.invalid: %s", self.METHOD, reason)
        data = {"inputs": sorted(map(str, example.inputs)), "reason": reason}
        listen(Event(f"{self.METHOD}.invalid", data, warning=True))
        failed = {"key": self._main_key, "score": None, "comment": reason, "extra": {"error": True}}
        return {"results": [failed]}


class DeltaSePerEvaluator(ExampleEvaluator, SePerOptions):
    """Measures the reader's belief in the right answers with the documents, minus that without (ΔSePer).

    An evaluator for ``langsmith.evaluate`` (``langsmith.aevaluate`` takes it, too, or its ``acall``)::

        evaluate(chain, data=examples, evaluators=[DeltaSePerEvaluator(model, entailer)])

    It reads the question from an example's inputs, what was retrieved from the run's outputs, and the right
    answers from the example's reference outputs, and returns three pieces of feedback: ΔSePer under ``key``,
    with the result in words as its comment and its parts as its value, and SePer without and with documents
    under ``{key}_before`` and ``{key}_after``. The run's answer is not read. Without log-probabilities
    answers are weighed by their frequency, and the result says so.

    Nothing is raised for a single example: one that lacks something, or for which a model fails, has no
    score, the reason as its comment, and is marked as an error.

    Raises:
        ConfigurationError: If an option is out of bounds, or the model is none.
        MissingServiceError: If there is no model or no entailer.

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

    reference_key: Key | None = None
    """Where the right answers are, in the reference outputs: one text or a list. By default under
    ``answers``, ``answer``, ``reference``, ``expected`` or ``output``."""

    key: str = "delta_seper"

    def __init__(self, llm: Any = None, entailer: Any = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "entailer": entailer, **options})

    def _make_core(self) -> SePer:
        judge = self.entailer
        if isinstance(judge, Runnable):
            judge = JudgeEntailer(reader_of(judge))
        return SePer(reader_of(self.llm), judge, **self.options())

    def _program(self, example: Example) -> Program[SePerResult]:
        question = example.question(self.question_key)
        references = example.reference_answers(self.reference_key)
        passages = example.passages(self.contexts_key)
        return cast("Program[SePerResult]", self.core.program(question, references, passages))

    def _results(self, result: SePerResult) -> list[dict[str, Any]]:
        parts = {
            "before": result.before.seper,
            "after": result.after.seper,
            "delta": result.delta,
            "interval": list(result.interval),
            "weights": result.weights,
            "kernel": result.kernel,
            "judgements": result.judgements,
            "unusable": result.unusable,
            "truncated": result.truncated,
            "answers_before": [answer.text for answer in result.before.answers],
            "answers_after": [answer.text for answer in result.after.answers],
        }
        return [
            {"key": self.key, "score": result.delta, "comment": result.explain(), "value": parts},
            {"key": f"{self.key}_before", "score": result.before.seper},
            {"key": f"{self.key}_after", "score": result.after.seper},
        ]


class DenseEvaluator(ExampleEvaluator, DenseOptions):
    """Measures how far a reader understood the documents: the entropy of its answers to rewordings (DENSE).

    **Lower is better**: 0 nats means that the answer stays the same whichever document is said in other
    words; with k documents the most is log(k + 1). It needs no reference answer, and does not read the run's
    own answer: the reader answers anew. An evaluator for ``langsmith.evaluate``::

        evaluate(chain, data=examples, evaluators=[DenseEvaluator(model)])

    It returns two pieces of feedback: the entropy under ``{key}_entropy``, with the result in words as its
    comment and all parts as its value, and under ``{key}_certain`` 1 where it is within the threshold, else
    0. Failures are those of :class:`DeltaSePerEvaluator`; an example none of whose documents could be
    rephrased is one.

    Raises:
        ConfigurationError: If an option is out of bounds, or the model is none.

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

    def __init__(self, llm: Any = None, entailer: Any = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "entailer": entailer, **options})

    @property
    def _main_key(self) -> str:
        return f"{self.key}_entropy"

    def _make_core(self) -> CoreDense:
        judge = self.entailer
        return CoreDense(
            reader_of(self.llm), reader_of(judge) if isinstance(judge, Runnable) else judge, **self.options()
        )

    def _program(self, example: Example) -> Program[DenseResult]:
        question, passages = example.question(self.question_key), example.passages(self.contexts_key)
        return cast("Program[DenseResult]", self.core.program(question, passages))

    def _results(self, result: DenseResult) -> list[dict[str, Any]]:
        outcomes = {chunk.outcome for chunk in result.chunks}
        if "rephrased" not in outcomes:
            # Equal contexts have equal answers, which as a score would look like perfect understanding.
            raise InputError(
                f"no document could be tested, their rephrasings are {', '.join(sorted(outcomes))}",
                hint="use a reader that can rephrase, or raise rephrase_max_tokens",
            )
        largest = math.log(len(result.answers))
        parts = {
            **result.to_dict(),
            "largest": largest,
            "rephrasings": [chunk.outcome for chunk in result.chunks],
        }
        changed = [label for label in result.labels if label not in ("certain", "untested")]
        comment = (
            f"DENSE {result.score:.3f} nats of {largest:.3f}, lower is better: "
            f"{'certain' if result.certain else 'uncertain'}. Rephrasing one document changes the answer "
            f"{result.answer!r} for {len(changed)} of {len(result.labels)}."
        )
        return [
            {"key": self._main_key, "score": result.score, "comment": comment, "value": parts},
            {"key": f"{self.key}_certain", "score": int(result.certain)},
        ]


def _contexts(key: Key | None, values: Mapping[str, Any]) -> Any:
    if key is not None:
        return _value(key, (), values)
    # A text under "output" is an answer.
    lists = {name for name in _CONTEXTS if isinstance(values.get(name), list | tuple)}
    return _value(None, [name for name in _CONTEXTS if name in lists | {"contexts", "context"}], values)


def _value(key: Key | None, usual: Iterable[str], values: Mapping[str, Any]) -> Any:
    if callable(key):
        return key(values)
    names = usual if key is None else (key,)
    return next((values[name] for name in names if values.get(name) is not None), None)


def _missing(what: str, setting: str, value: Any, values: Mapping[str, Any]) -> InputError:
    where = f"among {sorted(map(str, values))}" if value is None else f"but a {type(value).__name__}"
    return InputError(f"there is no {what} {where}", hint=f"name its key with {setting}=…")


def _passage(item: Any) -> Passage:
    """Read a document, its text, or its JSON."""
    if isinstance(item, str):
        return Passage(item)
    if isinstance(item, Document):
        return passage_of(item)
    fields = item.get("kwargs", item) if isinstance(item, Mapping) else {}
    text = _value(None, _TEXTS, fields)
    if not isinstance(text, str):
        raise InputError(
            f"a {type(item).__name__} among the documents has no text",
            hint=f"pass documents, texts, or mappings with one of {list(_TEXTS)}",
        )
    return Passage(text, id=str(fields.get("id") or ""))
