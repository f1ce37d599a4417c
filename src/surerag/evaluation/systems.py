"""Systems to evaluate, and the answers that systems give to questions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

from surerag.calibration import scope_of
from surerag.certainty import Certainty
from surerag.component import AnsweringComponent, Component
from surerag.errors import ConfigurationError, InputError, kind_of
from surerag.evaluation.questions import Question
from surerag.messages import Usage


@dataclass(frozen=True)
class EvaluationAnswer:
    """The answer of a system to a question, with passages, costs and certainty if the system reports them.

    Attributes:
        text: The answer.
        contexts: Texts of the passages in the prompt, summaries first; empty if the system does not report
            them.
        usage: Numbers of calls and tokens; None if the system does not report them.
        finish: Why the answer ended: ``"length"`` if it was truncated.
        uncertainty: Uncertainty by which a method decided whether to retrieve or rewrite; None if the
            method decided without it. Then ``reason`` says why, such as "the first answer abstains".
        acted: Whether a method retrieved or rewrote; None for a system that does not decide this.
        scores: Scores that the system computes itself, by name.
        certainty: How sure the model was of this answer; None if the system does not report it.
        sources: Source of each context, such as a file name; empty if the sources are not known.
        gate: Name of the gate or metric by which a method decided; empty for other systems.
        reason: Why a method retrieved or rewrote, or did not, in words; empty for other systems.
        query: The query that found the passages; empty if the system does not report it.
        n_summaries: Number of summaries among the contexts.
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
    reason: str = ""
    query: str = ""
    n_summaries: int = 0


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
        """Hash of the settings; stored answers with the same hash are reused."""
        text = json.dumps(self.settings, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def as_system(name: str, target: Any) -> System:
    """Return a ``System`` for a component, a query engine, a runnable, a function or a coroutine function.

    If the target has a method ``to_dict()``, the values that the method returns are the system's settings, so
    that a run notices a change. The settings of a function are its code, and the numbers and texts in its
    closure and defaults. The settings of another object are only its type: if the object changes, use another
    name.

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
            f"the system {name!r} is {kind_of(target)}, which cannot answer questions",
            hint="pass a query engine, a runnable, a component, or a function from a question to an answer",
        )
    function = target if verb is None else getattr(target, verb)
    return System(name, lambda question: function(question.text), _settings_of(target))


def _settings_of(target: Any) -> dict[str, Any]:
    kind = target if hasattr(target, "__qualname__") else type(target)
    settings: dict[str, Any] = {"type": f"{kind.__module__}.{kind.__qualname__}"}
    if callable(getattr(target, "to_dict", None)):
        settings["options"] = target.to_dict()
        settings |= scope_setting(target)
    elif isinstance(code := getattr(target, "__code__", None), CodeType):
        values = [*(cell.cell_contents for cell in target.__closure__ or ()), *(target.__defaults__ or ())]
        settings["code"] = [*_code_parts(code), *(v for v in values if isinstance(v, str | int | float))]
    return settings


def scope_setting(component: Any) -> dict[str, Any]:
    """Return a setting with the scope of a component; see :func:`scope_of`.

    A component without uncertainty threshold has no scope; return an empty mapping for it.
    """
    return {"scope": scope_of(component)} if isinstance(component, AnsweringComponent) else {}


def as_answer(value: Any) -> EvaluationAnswer:
    """Return a system's answer as an ``EvaluationAnswer``.

    The answer is a text, a mapping, or a result of a component of surerag, LlamaIndex or LangChain.

    Raises:
        InputError: If the value contains no answer, or is an answer with a score that is not a finite number.
    """
    if isinstance(value, EvaluationAnswer) and isinstance(value.text, str):
        _check_scores(value.scores)
        return value
    if isinstance(value, str):
        return EvaluationAnswer(value)
    text = _first_value(value, _TEXTS, _is_text)
    if text is None:
        raise InputError(
            f"a system returned {kind_of(value)} without an answer: {ascii(value)[:80]}",
            hint="return a text, a mapping with 'answer' and 'contexts', or an EvaluationAnswer",
        )
    contexts = _contexts_of(value)
    sources = tuple(context.source for context in contexts)
    uncertainty = _first_value(value, _UNCERTAINTIES, _is_number)
    return EvaluationAnswer(
        text,
        tuple(context.text for context in contexts),
        _usage(_first_value(value, _USAGES, bool)),
        str(_first_value(value, _FINISHES, bool) or ""),
        None if uncertainty is None else float(uncertainty),
        _first_value(value, _ACTED, lambda one: isinstance(one, bool)),
        certainty=_certainty(value),
        gate=_first_value(value, _GATES, _is_text) or "",
        sources=sources if any(sources) else (),
        reason=_first_value(value, _REASONS, _is_text) or "",
        query=_first_value(value, _QUERIES, _is_text) or "",
        n_summaries=sum(context.is_summary for context in contexts),
    )


def _check_scores(scores: Mapping[str, float]) -> None:
    if not all(map(math.isfinite, scores.values())):
        raise InputError(
            f"expected finite numbers as scores of a system, got {scores}",
            hint="omit a score that is not known",
        )


class _Context(NamedTuple):
    text: str
    source: str
    is_summary: bool


def _contexts_of(value: Any) -> list[_Context]:
    contexts = []
    for name in _CONTEXTS:
        items = _value_at(value, name)
        for item in items if items and not _is_text(items) else ():
            text = item if _is_text(item) else _first_value(item, _PASSAGES, _is_text)
            if text is not None:
                source = _first_value(item, _SOURCES, _is_text) or ""
                is_summary = name == "summaries" or bool(_first_value(item, _SUMMARY_MARKS, bool))
                contexts.append(_Context(text, source, is_summary))
    return sorted(contexts, key=lambda context: not context.is_summary)


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
_REASONS = ("decision.reason", "reason", "metadata.reason")
_QUERIES = ("query", "metadata.query")
_SUMMARY_MARKS = ("node.metadata.is_summary", "metadata.is_summary")
_FINISHES = ("generation.finish", "finish", "metadata.finish")
_USAGES = ("usage", "usage_metadata", "metadata")


def _value_at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def _first_value(value: Any, paths: Sequence[str], holds: Callable[[Any], bool]) -> Any:
    return next((found for path in paths if holds(found := _value_at(value, path))), None)


def _certainty(value: Any) -> Certainty | None:
    for path in _CERTAINTIES:
        certainty = _value_at(value, path)
        if isinstance(certainty, Certainty):
            return certainty
        if isinstance(certainty, Mapping):
            with suppress(InputError):  # another library may use the key ``certainty`` for something else
                return Certainty.from_dict(certainty)
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _code_parts(code: CodeType) -> Iterator[str]:
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
    counted = (value.get(name) for name in ("thinking_tokens", "cached_tokens"))
    others = (number if isinstance(number, int) else 0 for number in counted)
    return Usage(int(value.get("requests", value.get("calls", 1))), read, written, *others)
