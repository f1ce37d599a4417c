"""Builds pipelines by name, such as ``lazy+compressed``, for evaluations."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, TypeVar

from surerag import drivers
from surerag.component import AnsweringComponent, Component
from surerag.effects import Effect, Generate, Program, Retrieve, handled, perform
from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.questions import Question
from surerag.evaluation.systems import System, scope_setting
from surerag.messages import ANSWER_TOKENS, Passage, SamplingParams, TokenTrace
from surerag.methods.dense.component import DenseRefiner
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.edc2.component import ClusterCompressor
from surerag.methods.edc2.result import SENTENCES_KEY
from surerag.methods.lazy_rag.component import LazyRAG
from surerag.methods.shared import AnswerResult
from surerag.prompts import CLOSED_BOOK, FROM_CONTEXT, SELECT_ANSWER, format_passages, selected_answer
from surerag.readers.protocol import Reader, tokens_of_trace
from surerag.retrieval.index import DEFAULT_K
from surerag.services import Encoder, Entailer, Retriever, Services

R = TypeVar("R")


@dataclass(frozen=True)
class Pipeline:
    """The definition of a pipeline; :data:`PIPELINES` maps the name of each pipeline to its definition.

    Attributes:
        method: Class of the method; None for a pipeline without a method.
        services: Names of the services in :class:`PipelineSetup` that the method gets.
        options: Options of the method that differ from the method's defaults.
        options_of: Name of the pipeline whose options in ``PipelineSetup.options`` are used; empty if the
            pipeline uses options under its own name.
        is_step: Whether the method can also follow another pipeline, as in ``lazy+compressed``.
        limit: Meaning of a number after ``@`` in the name; empty if a number is not allowed.
        searches: Whether the pipeline calls the retriever for every question; None if the method decides.
        acted: Texts for reports: what the method did if it searched (or rewrote), and what it did otherwise.
        decides_by: Name of the option with the gate or metric that decides whether the method searches (or
            rewrites); empty for a pipeline that has neither gate nor metric.
        title: Name of the method in reports, such as L-RAG; empty if reports name no method.
        is_candidate: Whether a report may recommend the pipeline; False for a pipeline that needs contexts
            which only an evaluation has.
    """

    method: type[Component[Any]] | None = None
    services: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    options_of: str = ""
    is_step: bool = False
    limit: Literal["", "threshold", "passages"] = ""
    searches: bool | None = True
    acted: tuple[str, str] = ("searched", "answered without a search")
    decides_by: str = ""
    title: str = ""
    is_candidate: bool = True

    def takes(self, number: float | None) -> bool:
        """Return whether ``number`` is allowed after ``@`` in the pipeline's name; None means no number."""
        if number is None:
            return True
        if self.limit == "passages":
            return number.is_integer() and 1 <= number <= _MAX_PASSAGES
        return self.limit == "threshold" and not math.isnan(number)

    @property
    def default_of_decision(self) -> str:
        """Name of the default gate or metric of :attr:`method`; empty if the method has neither."""
        if self.method is None or not self.decides_by:
            return ""
        return str(self.method.model_fields[self.decides_by].default)


_TIERS = ("reader", "retriever", "summaries")
_VECTORS = ("reader", "encoder")
PIPELINES: Mapping[str, Pipeline] = {
    "plain": Pipeline(limit="passages"),
    "lazy": Pipeline(LazyRAG, _TIERS, limit="threshold", searches=None, decides_by="gate", title="L-RAG"),
    "rewritten": Pipeline(
        UncertaintyRewriter,
        ("reader", "retriever"),
        limit="threshold",
        acted=("rewrote the question", "did not rewrite the question"),
        decides_by="metric",
        title="DynQR",
    ),
    "compressed": Pipeline(ClusterCompressor, _VECTORS, {"variant": "copy"}, is_step=True, title="EDC²-RAG"),
    "refined": Pipeline(DenseRefiner, ("reader", "entailer"), is_step=True, title="DENSE-RAG"),
    "selected": Pipeline(ClusterCompressor, _VECTORS, title="EDC²-RAG"),
    "answered": Pipeline(ClusterCompressor, _VECTORS, {"task": "answer"}, title="EDC²-RAG"),
    "none": Pipeline(searches=False),
    "strong": Pipeline(LazyRAG, _TIERS, options_of="lazy", decides_by="gate"),
    "oracle": Pipeline(searches=False, is_candidate=False),
}
"""Pipelines by name; ``docs/compare.md`` explains each name. ``lazy@0.8`` and ``rewritten@inf`` set the
threshold, and ``plain@4`` sets the number of passages. ``strong`` is ``lazy@-inf``, which always searches."""
NAMES = tuple(PIPELINES)
STEPS = tuple(name for name, pipeline in PIPELINES.items() if pipeline.is_step)


def pipeline_of(settings: Mapping[str, Any]) -> Pipeline | None:
    """Return the pipeline that is named in a system's settings; None for a user's own system.

    Example:
        >>> pipeline_of({"system": "lazy@0.8"}) is PIPELINES["lazy"]
        True
    """
    return PIPELINES.get(str(settings.get("system", "")).partition("+")[0].partition("@")[0])


@dataclass(frozen=True)
class PipelineSetup:
    """The models, retrievers and options from which :func:`build_system` builds pipelines.

    ``docs/compare.md`` explains the names of pipelines, such as ``lazy``.

    Attributes:
        reader: The model that answers.
        retriever: Finds passages.
        summaries: Finds summaries; needed for ``lazy`` and ``strong``.
        encoder: Embeds texts; needed for ``compressed``, ``selected`` and ``answered``.
        entailer: Judges pairs of statements for ``refined``; with None, the reader judges.
        top_n: Number of passages in a prompt. None means all passages that the retriever returns, but five
            for ``selected``.
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
        takers = [name for name, one in PIPELINES.items() if one.method and not one.options_of]
        if wrong := sorted(set(self.options) - set(takers)):
            raise ConfigurationError(
                f"there are options for {', '.join(wrong)}, which cannot have options",
                hint=f"choose from {', '.join(takers)}",
            )


def needs_summaries(name: str) -> bool:
    """Return whether a pipeline, such as ``lazy+compressed``, needs summaries of the documents."""
    base, _, steps = parse_system(name)
    return any("summaries" in PIPELINES[one].services for one in (base, *steps))


_CANDIDATES_PER_PASSAGE = 3
"""Number of candidates that ``selected`` retrieves for each passage in the prompt."""
_NUMBER = re.compile(r"-?([0-9]+(\.[0-9]+)?(e-?[0-9]+)?|inf)")
_MAX_PASSAGES = 10_000
"""Largest number of passages in a name such as ``plain@4``; a larger number is refused as a typo."""


def parse_system(name: str) -> tuple[str, float | None, list[str]]:
    """Return the parts of a system's name: pipeline, number after ``@`` (or None), steps after ``+``.

    Raises:
        ConfigurationError: If the name is not valid.

    Example:
        >>> parse_system("lazy@0.8+compressed")
        ('lazy', 0.8, ['compressed'])
    """
    base, *steps = name.split("+")
    if base in STEPS:
        base, steps = "plain", [base, *steps]
    base, at, number = base.partition("@")
    pipeline = PIPELINES.get(base)
    limit = (float(number) if _NUMBER.fullmatch(number) else math.nan) if at else None
    if pipeline is None or not set(steps) <= set(STEPS) or not pipeline.takes(limit):
        raise ConfigurationError(
            f"there is no system {name!r}",
            hint=f"choose from {', '.join(NAMES)}, or combine: lazy+compressed, lazy@0.8 or plain@4",
        )
    if len(set(steps)) < len(steps):
        raise ConfigurationError(f"{name!r} has a step twice", hint="name each step once")
    if steps and pipeline.searches is False:
        raise ConfigurationError(
            f"{name!r}: {base} retrieves no passages for the step {steps[0]}", hint="remove the step"
        )
    return base, limit, steps


def build_system(name: str, setup: PipelineSetup) -> System:
    """Build a pipeline by its name.

    Args:
        name: A name of :data:`NAMES`. A threshold or a number of passages may follow after ``@``, and a
            further step after ``+``, as in ``"plain@5"`` and ``"lazy+compressed"``.
        setup: The models, retrievers and options of the pipeline.

    Raises:
        ConfigurationError: If the name is unknown.
        MissingServiceError: If ``setup`` lacks a service that the pipeline needs.
        CapabilityError: If the reader lacks a capability that the method needs.
    """
    base, limit, steps = parse_system(name)
    if base == "plain" and limit is not None:
        setup = replace(setup, top_n=int(limit))
    settings: dict[str, Any] = {"top_n": setup.top_n, "max_tokens": setup.max_tokens}
    method: Component[Any] | None = None
    if base == "selected":
        steps = [base, *steps]
    elif PIPELINES[base].method:
        method = _build_component(base, setup, -math.inf if base == "strong" else limit)
    if method is None:
        settings["reader"] = setup.reader.name
    elif base == "answered":
        settings = {**method.to_dict(), **settings}
    else:
        settings = {**method.to_dict(), **scope_setting(method)}
        if "scope" in settings:  # the index belongs to this run, and a policy serves the user's own retriever
            settings["scope"]["retriever"] = ""
    further = {step: _build_component(step, setup) for step in steps}
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


def _build_component(name: str, setup: PipelineSetup, threshold: float | None = None) -> Component[Any]:
    pipeline = PIPELINES[name]
    method: Any = pipeline.method
    options = {**method.options_for(setup.reader.capabilities), **pipeline.options}
    if issubclass(method, AnsweringComponent):
        options |= {"top_n": setup.top_n, "max_tokens": setup.max_tokens}
    elif name == "selected":
        options["top_n"] = setup.top_n or DEFAULT_K
    options |= setup.options.get(pipeline.options_of or name, {})
    if threshold is not None:
        options["threshold"] = threshold
    component: Component[Any] = method(**{one: getattr(setup, one) for one in pipeline.services}, **options)
    return component


def _merge(services: Sequence[Services], setup: PipelineSetup) -> Services:
    names = ("reader", "encoder", "retriever", "entailer", "summaries", "rewriter")
    own = Services(reader=setup.reader, retriever=setup.retriever)
    merged = {
        name: next((s for one in (*services, own) if (s := getattr(one, name)) is not None), None)
        for name in names
    }
    return Services(**merged)


def _answer(
    question: Question, base: str, setup: PipelineSetup, max_tokens: int | None
) -> Program[AnswerResult]:
    passages: Sequence[Passage] = []
    if base in ("plain", "selected"):
        k = (setup.top_n or DEFAULT_K) * _CANDIDATES_PER_PASSAGE if base == "selected" else setup.top_n
        passages = yield from perform(Retrieve(question.text, k))
    elif base == "oracle":
        if not question.contexts:
            raise InputError("the system 'oracle' needs contexts for every question")
        passages = [Passage(text) for text in question.contexts]
    return (yield from _answer_from(question, passages, max_tokens))


def _answer_from(
    question: Question, passages: Sequence[Passage], max_tokens: int | None
) -> Program[AnswerResult]:
    texts = format_passages(passage.text for passage in passages)
    prompt = (
        FROM_CONTEXT.render(context=texts, question=question.text)
        if passages
        else CLOSED_BOOK.render(question=question.text)
    )
    sampling = SamplingParams(max_tokens=max_tokens, trace="optional_entropy")
    [[answer]] = yield from perform(Generate([prompt], sampling))
    return AnswerResult(answer.text, tuple(passages), answer)


def _select(
    question: Question, compressor: Component[Any], setup: PipelineSetup, max_tokens: int | None
) -> Program[AnswerResult]:
    # This is the selection of an answer in appendix C.2 of EDC²-RAG.
    passages = yield from perform(Retrieve(question.text, setup.top_n))
    answered = yield from compressor.program(question.text, passages)
    if all(report.outcome != "compressed" for report in answered.clusters):
        return (yield from _answer_from(question, answered.passages, max_tokens))
    # Passages that replaced the unusable answer of a cluster are not candidates for the final answer.
    candidates = format_passages(item.text for item in answered.passages if SENTENCES_KEY in item.metadata)
    prompt = SELECT_ANSWER.render(answers=candidates, question=question.text)
    # The limit also allows for the reasons, which the model writes before the answer.
    length = (max_tokens or ANSWER_TOKENS) + ANSWER_TOKENS
    sampling = SamplingParams(max_tokens=length, trace="optional_entropy")
    [[reply]] = yield from perform(Generate([prompt], sampling))
    answer = selected_answer(reply.text)
    if reply.trace is not None and answer != reply.text:
        reply = replace(reply, trace=_trace_of_end(reply.trace, answer))
    return AnswerResult(answer, answered.passages, reply)


def _trace_of_end(trace: TokenTrace, text: str) -> TokenTrace | None:
    start = "".join(trace.tokens).rfind(text)
    if start < 0:
        return None
    ends = list(accumulate(map(len, trace.tokens)))
    first, last = bisect_right(ends, start), bisect_left(ends, start + len(text))
    return tokens_of_trace(trace, slice(first, last + 1))


def after_retrieval(program: Program[R], step: Component[Any]) -> Program[R]:
    """Return the generator ``program``, changed so that the component ``step`` edits retrieved passages."""

    def handle(effect: Effect[Any]) -> Program[Any]:
        reply = yield effect
        if isinstance(effect, Retrieve) and effect.tier == "passages" and reply:
            changed = yield from step.program(effect.query, reply)
            reply = list(changed.passages)
        return reply

    return handled(program, handle)
