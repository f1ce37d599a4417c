"""Systems to evaluate: a user's own pipelines, and pipelines by name, such as ``lazy+compressed``."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from types import CodeType
from typing import Any, TypeVar

from surerag import drivers
from surerag.calibration import scope_of
from surerag.certainty import Certainty, certainty_of
from surerag.component import AnsweringComponent, Component
from surerag.effects import Effect, Generate, Program, Retrieve, handled, perform
from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.questions import Question
from surerag.messages import ANSWER_TOKENS, Generation, Passage, Result, SamplingParams, TokenTrace, Usage
from surerag.methods.dense.component import DenseRefiner
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.edc2.component import ClusterCompressor
from surerag.methods.edc2.result import SENTENCES_KEY
from surerag.methods.lazy_rag.component import LazyRAG
from surerag.prompts import CLOSED_BOOK, FROM_CONTEXT, SELECT_ANSWER, format_passages, selected_answer
from surerag.readers.protocol import Reader, tokens_of_trace
from surerag.retrieval.index import DEFAULT_K
from surerag.services import Encoder, Entailer, Retriever, Services

R = TypeVar("R")

STEPS = ("compressed", "refined")
NAMES = ("plain", "lazy", "rewritten", *STEPS, "selected", "answered", "none", "strong", "oracle")
"""Names of pipelines, which ``docs/compare.md`` explains. ``compressed`` and ``refined`` can be added to
other pipelines, as in ``lazy+compressed``. ``lazy@0.8`` and ``rewritten@inf`` set a threshold, and
``plain@4`` sets the number of passages."""


@dataclass(frozen=True)
class EvaluationAnswer:
    """The answer of a system to a question, with passages, costs and certainty if the system reports them.

    Attributes:
        text: The answer.
        contexts: Texts of the passages in the prompt; empty if the system does not report them.
        usage: Numbers of calls and tokens; None if the system does not report them.
        finish: Why the answer ended: ``"length"`` if it was truncated.
        uncertainty: Uncertainty by which a method decided whether to retrieve or rewrite; None without it.
        acted: Whether a method retrieved or rewrote; None for a system that makes no such decision.
        scores: Scores that the system computes itself, by name.
        certainty: How sure the model was of this answer; None if the system does not report it.
        sources: Source of each context, such as a file name; empty if the sources are not known.
        gate: Name of the gate or metric by which a method decided; empty for other systems.
    """

    text: str
    contexts: tuple[str, ...] = ()
    usage: Usage | None = None
    finish: str = ""
    uncertainty: float | None = None
    acted: bool | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    certainty: Certainty | None = None
    sources: tuple[str, ...] = ()
    gate: str = ""


@dataclass(frozen=True)
class System:
    """A system to evaluate.

    Attributes:
        name: Name of the system.
        answer: Function that takes a question and returns an answer, or an awaitable of an answer.
        settings: Settings of the system; stored answers are reused only if the settings are the same.
    """

    name: str
    answer: Callable[[Question], Any]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Hash of the settings, by which stored answers are reused."""
        text = json.dumps(self.settings, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def as_system(name: str, target: Any) -> System:
    """Return a ``System`` for a component, a query engine, a runnable, a function or a coroutine function.

    Its settings are the target's ``to_dict()`` if it has this method, so that a run notices a change. For a
    function, they are the code and the numbers and texts in its closure. For another object, they are only
    the type; if such an object changes, use another name.

    Raises:
        ConfigurationError: If the target cannot answer questions.
    """
    if isinstance(target, System):
        return System(name, target.answer, target.settings)
    verbs = ("run",) if isinstance(target, Component) else ("query", "invoke", "aquery", "ainvoke")
    verb = next((verb for verb in verbs if callable(getattr(target, verb, None))), None)
    answers = isinstance(target, AnsweringComponent) or not isinstance(target, Component)
    if not answers or isinstance(target, type) or (verb is None and not callable(target)):
        raise ConfigurationError(
            f"the system {name!r} is a {type(target).__name__}, which answers no questions",
            hint="pass a query engine, a runnable, a component, or a function from a question to an answer",
        )
    function = target if verb is None else getattr(target, verb)
    return System(name, lambda question: function(question.text), _settings_of(target))


def _settings_of(target: Any) -> dict[str, Any]:
    kind = target if hasattr(target, "__qualname__") else type(target)
    settings: dict[str, Any] = {"type": f"{kind.__module__}.{kind.__qualname__}"}
    if callable(getattr(target, "to_dict", None)):
        settings["options"] = target.to_dict()
        settings |= _scope(target)
    elif isinstance(code := getattr(target, "__code__", None), CodeType):
        values = [*(cell.cell_contents for cell in target.__closure__ or ()), *(target.__defaults__ or ())]
        settings["code"] = [*_code_parts(code), *(v for v in values if isinstance(v, str | int | float))]
    return settings


def as_answer(value: Any) -> EvaluationAnswer:
    """Convert the value that a system returned: a text, a result of surerag or a framework, or a mapping.

    Raises:
        InputError: If the value contains no answer, or scores are not finite numbers.
    """
    if isinstance(value, EvaluationAnswer) and isinstance(value.text, str):
        _check_scores(value.scores)
        return value
    if isinstance(value, str):
        return EvaluationAnswer(value)
    text = _first_value(value, _TEXTS, _is_text)
    if text is None:
        raise InputError(
            f"a system returned a {type(value).__name__} without an answer: {ascii(value)[:80]}",
            hint="return a text, a mapping with 'answer' and 'contexts', or an EvaluationAnswer",
        )
    contexts, sources = _passages_and_sources(value)
    uncertainty = _first_value(value, _UNCERTAINTIES, _is_number)
    return EvaluationAnswer(
        text,
        contexts,
        _usage(_first_value(value, _USAGES, bool)),
        str(_first_value(value, _FINISHES, bool) or ""),
        None if uncertainty is None else float(uncertainty),
        _first_value(value, _ACTED, lambda one: isinstance(one, bool)),
        certainty=_certainty(value),
        gate=_first_value(value, _GATES, _is_text) or "",
        sources=sources if any(sources) else (),
    )


def _check_scores(scores: Mapping[str, float]) -> None:
    if not all(map(math.isfinite, scores.values())):
        raise InputError(
            f"expected finite numbers as scores of a system, got {scores}",
            hint="leave out a score that is not known",
        )


def _passages_and_sources(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the texts of the passages in an answer's prompt, and the source of each passage."""
    lists = [items for name in _CONTEXTS if (items := _value_at(value, name)) and not _is_text(items)]
    passages, sources = [], []
    for item in chain(*lists):
        passage = item if _is_text(item) else _first_value(item, _PASSAGES, _is_text)
        if passage is not None:
            passages.append(passage)
            sources.append(_first_value(item, _SOURCES, _is_text) or "")
    return tuple(passages), tuple(sources)


# Paths of attributes and keys to answers, contexts and decisions. Query engines of LlamaIndex put decisions
# and costs into the response's metadata; ``content`` is the text of a chat message.
_TEXTS = [
    path
    for name in ("answer", "response", "output", "result", "content", "text")
    for path in (name, f"{name}.content")
]
_CONTEXTS = ("summaries", "passages", "contexts", "context", "source_nodes", "source_documents", "documents")
_PASSAGES = ("node.text", "text", "page_content")
_SOURCES = [
    f"{place}metadata.{name}"
    for place in ("", "node.")
    for name in ("path", "file_name", "filename", "source", "file_path", "url")
]
_CERTAINTIES = ("certainty", "metadata.certainty", "response_metadata.certainty")
_UNCERTAINTIES = (
    "decision.score", "original.uncertainty", "metadata.original_uncertainty",
    "metadata.score", "uncertainty",
)  # fmt: skip
_ACTED = ("decision.retrieve", "acted", "metadata.retrieve", "metadata.acted")
_GATES = ("decision.gate", "metadata.gate")
_FINISHES = ("generation.finish", "finish", "metadata.finish")
_USAGES = ("usage", "usage_metadata", "metadata")


def _value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path of keys and attributes; None if there is no value."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def _first_value(value: Any, paths: Sequence[str], holds: Callable[[Any], bool]) -> Any:
    """Return the first value at one of the paths for which ``holds`` is true; None without such a value."""
    return next((found for path in paths if holds(found := _value_at(value, path))), None)


def _certainty(value: Any) -> Certainty | None:
    """Return the certainty in the value that a system returned; None if there is none."""
    for path in _CERTAINTIES:
        certainty = _value_at(value, path)
        if isinstance(certainty, Certainty):
            return certainty
        if isinstance(certainty, Mapping):
            with suppress(InputError):  # another object of this name
                return Certainty.from_dict(certainty)
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _code_parts(code: CodeType) -> Iterator[str]:
    """Yield texts that identify the code of a function, and are the same in each process."""
    yield code.co_code.hex()
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        else:
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _usage(value: Any) -> Usage | None:
    if isinstance(value, Usage):
        return value
    if not isinstance(value, Mapping):
        return None
    read = value.get("input_tokens", value.get("prompt_tokens"))
    written = value.get("output_tokens", value.get("completion_tokens"))
    if not isinstance(read, int) or not isinstance(written, int):
        return None
    return Usage(int(value.get("requests", value.get("calls", 1))), read, written)


@dataclass(frozen=True)
class PipelineSetup:
    """The models, retrievers and options from which :func:`build_system` builds pipelines.

    Attributes:
        reader: The model that answers.
        retriever: Finds passages.
        summaries: Finds summaries; needed for ``lazy`` and ``strong``.
        encoder: Embeds texts; needed for ``compressed``, ``selected`` and ``answered``.
        entailer: Judges pairs of statements for ``refined``; None means the reader.
        top_n: Number of passages in a prompt. None means all that the retriever returns, or five for
            ``selected``.
        max_tokens: Maximum length of an answer in tokens; None means the reader's own limit.
        options: Options of each pipeline by the pipeline's name, such as
            ``{"lazy": {"n_tokens": 4}, "compressed": {"token_limit": 500}}``. The default gate and metric are
            chosen by the reader's capabilities.
    """

    reader: Reader
    retriever: Retriever
    summaries: Retriever | None = None
    encoder: Encoder | None = None
    entailer: Entailer | None = None
    top_n: int | None = None
    max_tokens: int | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if wrong := sorted(set(self.options) - set(_CONFIGURABLE)):
            raise ConfigurationError(
                f"there are options for {', '.join(wrong)}, which take none",
                hint=f"choose from {', '.join(_CONFIGURABLE)}",
            )


_CONFIGURABLE = ("lazy", "rewritten", "compressed", "selected", "answered", "refined")
_CANDIDATES_PER_PASSAGE = 3
"""Number of passages that the system ``selected`` retrieves, as a multiple of ``top_n``."""


@dataclass(frozen=True)
class PipelineResult(Result):
    """The answer of a pipeline without a gate, and the passages in the answer's prompt."""

    answer: str
    passages: tuple[Passage, ...]
    generation: Generation

    @property
    def certainty(self) -> Certainty:
        """How sure the reader was of the answer, by all measures of its log-probabilities."""
        return certainty_of(self.generation.trace, is_cut=self.generation.is_cut)


def parse_system(name: str) -> tuple[str, float | None, list[str]]:
    """Split a system's name, such as ``lazy@0.8+compressed``, into base, number after ``@``, and steps.

    Raises:
        ConfigurationError: If the name is not valid.
    """
    base, *steps = name.split("+")
    if base in STEPS:
        base, steps = "plain", [base, *steps]
    base, at, number = base.partition("@")
    try:
        limit = float(number) if at else None
    except ValueError:
        limit = math.nan
    if limit is None or base in ("lazy", "rewritten"):
        wrong_limit = limit is not None and math.isnan(limit)
    else:
        wrong_limit = base != "plain" or not (limit >= 1 and limit.is_integer())
    if base not in NAMES or not set(steps) <= set(STEPS) or wrong_limit:
        raise ConfigurationError(
            f"there is no system {name!r}",
            hint=f"choose from {', '.join(NAMES)}, or combine: lazy+compressed, lazy@0.8 or plain@4",
        )
    if steps and base in ("none", "oracle"):
        raise ConfigurationError(
            f"{name!r}: {base} retrieves no passages for the step {steps[0]}", hint="leave the step out"
        )
    return base, limit, steps


def build_system(name: str, setup: PipelineSetup) -> System:
    """Build a pipeline by its name.

    Args:
        name: A name of :data:`NAMES`. After ``@`` follows a threshold or a number of passages, and after
            ``+`` another step, as in ``"plain@5"`` and ``"lazy+compressed"``.
        setup: The models, retrievers and options of the pipeline.

    Raises:
        ConfigurationError: If the name is unknown.
        MissingServiceError: If a service is missing.
        CapabilityError: If the reader lacks a capability that the method needs.
    """
    base, limit, steps = parse_system(name)
    if base == "plain" and limit is not None:
        setup = replace(setup, top_n=int(limit))
    settings: dict[str, Any] = {"top_n": setup.top_n, "max_tokens": setup.max_tokens}
    method: Component[Any] | None = None
    if base in ("lazy", "strong", "rewritten"):
        method = _build_method(base, setup, limit)
        settings = {**method.to_dict(), **_scope(method)}
    elif base == "answered":
        method = _build_step(base, setup)
        settings = {**method.to_dict(), **settings}
    else:
        settings["reader"] = setup.reader.name
    steps = [base, *steps] if base == "selected" else steps
    further = {step: _build_step(step, setup) for step in steps}
    components = [*filter(None, [method]), *further.values()]
    services = _merge([component.services for component in components], setup)
    max_tokens = services.answer_tokens(setup.max_tokens)

    def answer(question: Question) -> Any:
        work: Program[Any]
        if method is None:
            work = _answer(question, base, setup, max_tokens)
        elif base == "answered":
            work = _select(question, method, setup, max_tokens)
        else:
            work = method.program(question.text)
        for step in further.values():
            work = after_retrieval(work, step)
        return drivers.run(work, services)

    settings["retriever"] = str(getattr(setup.retriever, "name", type(setup.retriever).__name__))
    settings |= {step: component.to_dict() for step, component in further.items()}
    return System(name, answer, {"system": name, **settings})


def _scope(component: Any) -> dict[str, Any]:
    """Return the component's scope as a setting; empty for a component that cannot use a policy."""
    return {"scope": scope_of(component)} if isinstance(component, AnsweringComponent) else {}


def _build_method(base: str, setup: PipelineSetup, threshold: float | None) -> Component[Any]:
    can = setup.reader.capabilities
    settings: dict[str, Any] = {"top_n": setup.top_n, "max_tokens": setup.max_tokens}
    if base == "rewritten":
        settings["metric"] = "perplexity" if can.logprobs else "semantic_entropy"
    else:
        settings["gate"] = "entropy" if can.entropy else "margin" if can.logprobs else "abstention"
    settings |= setup.options.get("rewritten" if base == "rewritten" else "lazy", {})
    if base == "strong":
        threshold = -math.inf
    if threshold is not None:
        settings["threshold"] = threshold
    if base == "rewritten":
        return UncertaintyRewriter(setup.reader, setup.retriever, **settings)
    return LazyRAG(setup.reader, setup.retriever, setup.summaries, **settings)


def _build_step(step: str, setup: PipelineSetup) -> Component[Any]:
    settings = setup.options.get(step, {})
    if step == "refined":
        return DenseRefiner(setup.reader, entailer=setup.entailer, **settings)
    options: dict[str, dict[str, Any]] = {
        "compressed": {"variant": "copy"},
        "answered": {"task": "answer"},
        "selected": {"top_n": setup.top_n or DEFAULT_K},
    }
    own = options[step]
    return ClusterCompressor(setup.reader, setup.encoder, **{**own, **settings})


def _merge(services: Sequence[Services], setup: PipelineSetup) -> Services:
    """Merge the services of a pipeline's components; of equal kinds of services, the first is used."""
    names = ("reader", "encoder", "retriever", "entailer", "summaries", "rewriter")
    own = Services(reader=setup.reader, retriever=setup.retriever)
    merged = {
        name: next((s for one in (*services, own) if (s := getattr(one, name)) is not None), None)
        for name in names
    }
    return Services(**merged)


def _answer(
    question: Question, base: str, setup: PipelineSetup, max_tokens: int | None
) -> Program[PipelineResult]:
    """Answer from retrieved passages, for ``oracle`` from the question's contexts, or without passages."""
    passages: Sequence[Passage] = []
    if base in ("plain", "selected"):
        k = (setup.top_n or DEFAULT_K) * _CANDIDATES_PER_PASSAGE if base == "selected" else setup.top_n
        passages = yield from perform(Retrieve(question.text, k))
    elif base == "oracle":
        if not question.contexts:
            raise InputError("the system 'oracle' needs the contexts of every question")
        passages = [Passage(text) for text in question.contexts]
    return (yield from _answer_from(question, passages, max_tokens))


def _answer_from(
    question: Question, passages: Sequence[Passage], max_tokens: int | None
) -> Program[PipelineResult]:
    texts = format_passages(passage.text for passage in passages)
    prompt = (
        FROM_CONTEXT.render(context=texts, question=question.text)
        if passages
        else CLOSED_BOOK.render(question=question.text)
    )
    sampling = SamplingParams(max_tokens=max_tokens, trace="optional_entropy")
    [[answer]] = yield from perform(Generate([prompt], sampling))
    return PipelineResult(answer.text, tuple(passages), answer)


def _select(
    question: Question, compressor: Component[Any], setup: PipelineSetup, max_tokens: int | None
) -> Program[PipelineResult]:
    """Answer from each cluster of passages, and select one answer (EDC²-RAG, appendix C.2).

    If no cluster yields an answer, answer from the passages.
    """
    passages = yield from perform(Retrieve(question.text, setup.top_n))
    answered = yield from compressor.program(question.text, passages)
    if all(report.outcome != "compressed" for report in answered.clusters):
        return (yield from _answer_from(question, answered.passages, max_tokens))
    # Passages without sentences in their metadata are not answers of clusters.
    candidates = format_passages(one.text for one in answered.passages if SENTENCES_KEY in one.metadata)
    prompt = SELECT_ANSWER.render(answers=candidates, question=question.text)
    # The reply has reasons before the answer, so it may be longer.
    length = (max_tokens or ANSWER_TOKENS) + ANSWER_TOKENS
    sampling = SamplingParams(max_tokens=length, trace="optional_entropy")
    [[reply]] = yield from perform(Generate([prompt], sampling))
    answer = selected_answer(reply.text)
    if reply.trace is not None and answer != reply.text:
        reply = replace(reply, trace=_trace_of_end(reply.trace, answer))
    return PipelineResult(answer, answered.passages, reply)


def _trace_of_end(trace: TokenTrace, text: str) -> TokenTrace | None:
    """Return the part of a trace whose tokens are the last occurrence of a text; None if it is missing."""
    start = "".join(trace.tokens).rfind(text)
    if start < 0:
        return None
    ends = list(accumulate(map(len, trace.tokens)))
    first, last = bisect_right(ends, start), bisect_left(ends, start + len(text))
    return tokens_of_trace(trace, slice(first, last + 1))


def after_retrieval(program: Program[R], step: Component[Any]) -> Program[R]:
    """Return a program in which the component ``step`` changes the passages after each retrieval."""

    def handle(effect: Effect[Any]) -> Program[Any]:
        reply = yield effect
        if isinstance(effect, Retrieve) and effect.tier == "passages" and reply:
            changed = yield from step.program(effect.query, reply)
            reply = list(changed.passages)
        return reply

    return handled(program, handle)
