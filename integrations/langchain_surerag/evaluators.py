"""ΔSePer and DSE (the score of DENSE-RAG) as evaluators for LangSmith."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from langchain_core.documents import Document
from langchain_core.runnables import ensure_config

from langchain_surerag.base import Part, service_field
from langchain_surerag.documents import passage_of
from langchain_surerag.models import judge_of, reader_of
from langchain_surerag.runs import listener_of, run_program
from surerag import DenseEvaluator as CoreDense
from surerag import DenseOptions, DenseResult, Passage, SePer, SePerOptions, SePerResult
from surerag.drivers import run_blocking
from surerag.errors import MISCONFIGURED, InputError, SureragError, kind_of
from surerag.messages import Event
from surerag.readers import AWAITING, BLOCKING, Blocking, described

logger = logging.getLogger("surerag")

Json = Mapping[str, Any]
_QUESTIONS = ("question", "input", "query")
_CONTEXTS = ("documents", "contexts", "context", "source_documents", "output")
_REFERENCES = ("answers", "answer", "reference", "expected", "output")
_TEXTS = ("page_content", "text", "content")


class ExampleEvaluator(Part):
    """Base class of evaluators for ``langsmith.evaluate``; a method of surerag measures each example."""

    METHOD: ClassVar[str]
    """The method's name in events."""

    SUFFIX: ClassVar[str] = ""
    """Text that is appended to ``key`` to name an example's first piece of feedback."""

    NEEDS: ClassVar[tuple[str, ...]]
    """Parts of an example that the method takes, in the order of the method's arguments."""

    llm: Any = service_field("The reader: a chat model, an LLM or a reader of surerag.")
    entailer: Any = service_field(
        "An entailer of surerag, or a model that replies in words; it judges whether answers mean the same."
    )
    question_key: str | None = None
    """Key of the question in the inputs; by default ``question``, ``input`` or ``query``."""

    contexts_key: str | None = None
    """Key of the documents in the outputs, or else in the inputs. Its value may hold documents, texts, or
    documents as JSON. By default ``documents``, ``contexts``, ``context``, ``source_documents`` or
    ``output``."""

    key: str
    """Name of the feedback; if there are several pieces of feedback, all their names begin with this name."""

    @property
    def __name__(self) -> str:
        """Name of the evaluator in LangSmith's own traces."""
        return self.key

    def __call__(
        self,
        run: Any = None,
        example: Any = None,
        *,
        inputs: Json | None = None,
        outputs: Json | None = None,
        reference_outputs: Json | None = None,
    ) -> dict[str, Any]:
        """Measure one example; the keyword arguments take precedence over ``run`` and ``example``.

        Returns:
            ``{"results": [...]}``, the form that LangSmith expects.
        """
        return run_blocking(self._feedback(BLOCKING, run, example, inputs, outputs, reference_outputs))

    async def acall(
        self,
        run: Any = None,
        example: Any = None,
        *,
        inputs: Json | None = None,
        outputs: Json | None = None,
        reference_outputs: Json | None = None,
    ) -> dict[str, Any]:
        """Measure an example, with the arguments of :meth:`__call__`, without blocking the event loop."""
        return await self._feedback(AWAITING, run, example, inputs, outputs, reference_outputs)

    @abstractmethod
    def _results(self, result: Any) -> list[dict[str, Any]]:
        """Return the feedback for a result; raise an InputError if nothing was measured."""

    async def _feedback(
        self, calls: Blocking, run: Any, example: Any, inputs: Any, outputs: Any, references: Any
    ) -> dict[str, Any]:
        inputs = inputs or getattr(run, "inputs", None) or getattr(example, "inputs", None) or {}
        outputs = outputs or getattr(run, "outputs", None) or {}
        references = references or getattr(example, "outputs", None) or {}
        try:
            part_of: dict[str, Callable[[], Any]] = {
                "question": lambda: self._question(inputs),
                "references": lambda: self._references(references),
                "passages": lambda: self._passages(outputs, inputs),
            }
            program = self.core.program(*(part_of[name]() for name in self.NEEDS))
            return {
                "results": self._results(
                    await run_program(program, self.core.services, ensure_config(), calls)
                )
            }
        except MISCONFIGURED:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, SureragError) else described(error)
        logger.warning("%s.invalid: %s", self.METHOD, reason)
        data = {"inputs": sorted(map(str, inputs)), "reason": reason}
        listener_of(ensure_config())(Event(f"{self.METHOD}.invalid", data, warning=True))
        failed = {"score": None, "comment": reason, "extra": {"error": True}}
        return {"results": [{"key": f"{self.key}{self.SUFFIX}", **failed}]}

    def _question(self, inputs: Json) -> str:
        question = _value(self.question_key, _QUESTIONS, inputs)
        if not isinstance(question, str):
            raise _missing("question", "question_key", question, inputs)
        return question

    def _references(self, references: Json) -> list[str]:
        value = _value(getattr(self, "reference_key", None), _REFERENCES, references)
        answers = [value] if isinstance(value, str) else value
        if not isinstance(answers, list | tuple) or not all(isinstance(one, str) for one in answers):
            raise _missing("reference answer", "reference_key", value, references)
        return list(answers)

    def _passages(self, outputs: Json, inputs: Json) -> list[Passage]:
        value = self._contexts(outputs)
        value = self._contexts(inputs) if value is None else value
        items = [value] if isinstance(value, str | Document) else value
        if not isinstance(items, list | tuple):
            raise _missing("list of documents", "contexts_key", value, {**inputs, **outputs})
        passages = [passage for passage in map(_passage, items) if passage.text.strip()]
        if not passages:
            raise InputError("there is no document with text", hint="evaluate runs that retrieved something")
        return passages

    def _contexts(self, values: Json) -> Any:
        # A text under "output" is the pipeline's answer, not a document.
        lists = {name for name in _CONTEXTS if isinstance(values.get(name), list | tuple)}
        usual = [name for name in _CONTEXTS if name in lists | {"contexts", "context"}]
        return _value(self.contexts_key, usual, values)


class DeltaSePerEvaluator(ExampleEvaluator, SePerOptions):
    """Measures how much the documents raise the probability that the reader answers right (ΔSePer).

    Use it as an evaluator of ``langsmith.evaluate`` and ``aevaluate``. It takes the question from an
    example's inputs, the retrieved documents from the run's outputs, and the right answers from the example's
    reference outputs. It returns three pieces of feedback: ``{key}`` is ΔSePer, with an explanation as the
    comment and the parts of the result as the value; ``{key}_before`` and ``{key}_after`` are the
    probabilities of a right answer (SePer) without and with the documents. If the reader returns no
    log-probabilities, sampled answers are weighted by their frequency, and the explanation says so.

    If an example lacks a question, documents or right answers, or a model fails, no error is raised: the
    feedback has no score, has the reason as its comment, and is marked as an error. Only a misconfiguration
    raises an error.

    Raises:
        ConfigurationError: If an option is out of bounds, or ``llm`` is not a model.
        MissingServiceError: If ``llm`` or ``entailer`` is missing.
    """

    METHOD = "seper"
    NEEDS = ("question", "references", "passages")

    reference_key: str | None = None
    """Key of the right answers (one text or a list) in the reference outputs. By default ``answers``,
    ``answer``, ``reference``, ``expected`` or ``output``."""

    key: str = "delta_seper"

    def __init__(self, llm: Any = None, entailer: Any = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "entailer": entailer, **options})

    def _make_core(self) -> SePer:
        return SePer(reader_of(self.llm), judge_of(self.entailer), **self.options())

    def _results(self, result: SePerResult) -> list[dict[str, Any]]:
        parts = {name: value for name, value in asdict(result).items() if name != "usage"}
        return [
            {"key": self.key, "score": result.delta, "comment": result.explain(), "value": parts},
            {"key": f"{self.key}_before", "score": result.before.seper},
            {"key": f"{self.key}_after", "score": result.after.seper},
        ]


class DenseEvaluator(ExampleEvaluator, DenseOptions):
    """Measures how much a reader's answer to a question varies when the documents are reworded (DSE).

    The score is the entropy of the answers, in nats. **Lower is better**: 0 nats means that the answer stays
    the same whichever document is reworded; the maximum for k documents is log(k + 1). No reference answer is
    needed. The run's own answer is not used, because the reader answers the question itself. Two pieces of
    feedback are returned: ``{key}_entropy``, with an explanation as the comment and the parts of the result
    as the value, and ``{key}_certain``, which is 1 if the entropy is at most ``threshold`` and no answer is
    empty or cut off, else 0. Failures are reported as in :class:`DeltaSePerEvaluator`; an example also counts
    as a failure if none of its documents could be rephrased.

    Raises:
        ConfigurationError: If an option is out of bounds, or ``llm`` is not a model.
    """

    METHOD, SUFFIX = "dense", "_entropy"
    NEEDS = ("question", "passages")

    key: str = "dense"

    def __init__(self, llm: Any = None, entailer: Any = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "entailer": entailer, **options})

    def _make_core(self) -> CoreDense:
        return CoreDense(reader_of(self.llm), judge_of(self.entailer), **self.options())

    def _results(self, result: DenseResult) -> list[dict[str, Any]]:
        outcomes = [chunk.outcome for chunk in result.chunks]
        if "rephrased" not in outcomes:
            # Without a rephrasing all answers are equal: DSE would be 0, as if the reader were certain.
            raise InputError(
                f"no document could be rephrased: the rephrasings are {', '.join(sorted({*outcomes}))}",
                hint="use a reader that can rephrase, or increase rephrase_max_tokens",
            )
        largest = math.log(len(result.answers))
        changed = [label for label in result.labels if label not in ("certain", "untested")]
        comment = (
            f"DSE is {result.score:.3f} of at most {largest:.3f} nats (lower is better): "
            f"{'certain' if result.certain else 'uncertain'}. Rephrasing changed the answer "
            f"{result.answer!r} for {len(changed)} of {len(result.labels)} documents."
        )
        parts = {**result.to_dict(), "largest": largest, "rephrasings": outcomes}
        return [
            {"key": f"{self.key}_entropy", "score": result.score, "comment": comment, "value": parts},
            {"key": f"{self.key}_certain", "score": int(result.certain)},
        ]


def _value(key: str | None, usual: Iterable[str], values: Json) -> Any:
    names = usual if key is None else (key,)
    return next((values[name] for name in names if values.get(name) is not None), None)


def _missing(what: str, setting: str, value: Any, values: Json) -> InputError:
    found = f"the keys {sorted(map(str, values))}" if value is None else f"{kind_of(value)}"
    return InputError(f"expected a {what}, found {found}", hint=f"pass the key of the {what}: {setting}=…")


def _passage(item: Any) -> Passage:
    if isinstance(item, str):
        return Passage(item)
    if isinstance(item, Document):
        return passage_of(item)
    fields = item.get("kwargs", item) if isinstance(item, Mapping) else {}
    text = _value(None, _TEXTS, fields)
    if not isinstance(text, str):
        raise InputError(
            f"{kind_of(item)} among the documents has no text",
            hint=f"pass documents, texts, or mappings with one of {list(_TEXTS)}",
        )
    return Passage(text, id=str(fields.get("id") or ""))
