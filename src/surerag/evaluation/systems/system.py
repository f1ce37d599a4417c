"""A system: whatever answers a question."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from surerag.component import Component
from surerag.effects import Program
from surerag.errors import ConfigurationError, InputError
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.lazy_rag.component import LazyRAG
from surerag.prices import Costs
from surerag.readers.protocol import BaseReader, Reader
from surerag.services import Retriever, Services, as_reader
from surerag.types import Passage


@dataclass(frozen=True, slots=True)
class SystemAnswer:
    """What a system answered, and what that cost.

    Attributes:
        text: The answer.
        contexts: What its reader was shown; empty where nothing was, or nobody told.
        costs: Tokens, calls, seconds, and money where the system knows it; zeros where it does not tell.
        retrieved: Whether it retrieved; None where nobody told.
        model: Who was asked, for its price.
    """

    text: str
    contexts: tuple[Passage, ...] = ()
    costs: Costs = field(default_factory=Costs)
    retrieved: bool | None = None
    model: str = ""


Answering = Callable[[str], Any]
"""From a question to an answer: a text, a :class:`SystemAnswer`, a result of the core, a mapping with
``answer`` (and ``context``), or an awaitable of one of these."""


Wrap = Callable[[BaseReader], BaseReader]
"""From a reader to one that keeps its answers."""


@dataclass(frozen=True)
class ProgramSystem:
    """A system on the core's own parts: a program for each question, whose requests merge with others'.

    Attributes:
        program: Made anew for each question; it returns a result of the core.
        services: Who answers its effects.
        keeping: Builds it again on readers that keep their answers.
        about: Its settings: plain values.
    """

    program: Callable[[str], Program[Any]]
    services: Services
    keeping: Callable[[Wrap], ProgramSystem]
    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, component: LazyRAG | UncertaintyRewriter) -> ProgramSystem:
        """Return a component as a system."""

        def keeping(wrap: Wrap) -> ProgramSystem:
            more: dict[str, Any] = {"reader": wrap(as_reader(component.reader))}
            if isinstance(component, UncertaintyRewriter) and component.rewriter is not None:
                more["rewriter"] = wrap(as_reader(component.rewriter))
            return cls.of(component.with_options(**more))

        return cls(component.program, component.services, keeping, component.to_dict())

    @property
    def model(self) -> str:
        """Who answers."""
        return "" if self.services.reader is None else self.services.reader.name


@dataclass(frozen=True)
class CalledSystem:
    """A system that is called: a function, an engine, a chain.

    Attributes:
        answer: From a question to an answer, in any of the forms of :data:`Answering`.
        model: Who answers, for its price; an answer's own model goes before it.
        clocked: Whether the call takes as long as the answer does; not so of one that was recorded.
    """

    answer: Answering
    model: str = ""
    clocked: bool = True

    def asked(self, question: str, wait: Callable[[Awaitable[Any]], Any]) -> SystemAnswer:
        """Ask, and look at the clock.

        Args:
            question: What to ask.
            wait: Waits for an awaitable.

        Raises:
            InputError: If the answer has none of the known forms.
            Exception: What the system raises.
        """
        began = time.perf_counter()
        given = self.answer(question)
        if inspect.isawaitable(given):
            given = wait(given)
        found, seconds = answered(given), time.perf_counter() - began
        told = found.costs.seconds or not self.clocked
        costs = found.costs if told else replace(found.costs, seconds=seconds)
        return replace(found, costs=costs, model=found.model or self.model)


System = ProgramSystem | CalledSystem


def as_system(name: str, given: Any, *, reader: Reader | None = None, top_n: int = 3) -> System:
    """Return a system made of a user's own object.

    Taken are systems; components of the core that answer (``LazyRAG``, ``UncertaintyRewriter``) and what
    holds one of them as ``core``; functions and coroutine functions from a question to an answer; and
    retrievers, whose passages the reader answers from. Objects of a framework are adapted by the integration
    for it: those of a package ``foo`` or ``foo_…`` by the function ``as_system`` of ``foo_surerag.systems``.

    Of what holds a component, what its retriever asks of models by itself (a fusion of queries, a reranker)
    is counted as its framework reports it.

    Args:
        name: Of the system, for messages.
        given: The object.
        reader: Who answers from what retrievers find.
        top_n: Passages that a retriever is asked for.

    Raises:
        ConfigurationError: If it is nothing of the kind, or a retriever without a reader.
    """
    if isinstance(given, ProgramSystem | CalledSystem):
        return given
    core = given if isinstance(given, Component) else getattr(given, "core", None)
    if isinstance(core, LazyRAG | UncertaintyRewriter):
        return ProgramSystem.of(core)
    if isinstance(given, Component):
        raise ConfigurationError(
            f"the system {name!r} is a {type(given).__name__}, which answers no questions",
            hint="give the pipeline that it stands in",
        )
    adapted = _by_integration(given)
    if adapted is not None:
        given = adapted
    if isinstance(given, ProgramSystem | CalledSystem):
        return given
    if isinstance(given, Retriever):
        if reader is None:
            raise ConfigurationError(
                f"the system {name!r} is a retriever, and there is no one who answers",
                hint="pass reader=…: a TransformersReader, an OpenAIReader, or your framework's model by "
                "reader_from_llm or reader_from_model",
            )
        return ProgramSystem.of(LazyRAG(reader, given, mode="standard", top_n=top_n))
    if callable(given):
        return CalledSystem(given)
    raise ConfigurationError(
        f"the system {name!r} is a {type(given).__name__}, which answers no questions",
        hint="give a query engine, a chain, a retriever (with reader=…), a component, or a function from a "
        "question to an answer",
    )


def answered(given: Any) -> SystemAnswer:
    """Return an answer in any of the known forms as a :class:`SystemAnswer`.

    Raises:
        InputError: If it is none of them.

    Example:
        >>> answered("Velm").text, answered({"answer": "Velm", "context": ["Ada was born in Velm."]}).contexts
        ('Velm', (Passage(text='Ada was born in Velm.', id='', score=None, metadata={}),))
    """
    if isinstance(given, SystemAnswer):
        return given
    if isinstance(given, str):
        return SystemAnswer(given)
    if isinstance(given, Mapping):
        text = next((given[name] for name in _ANSWERS if isinstance(given.get(name), str)), None)
        context = next((given[name] for name in _CONTEXTS if given.get(name)), ())
        if text is not None:
            return SystemAnswer(text, passages_of(context), _costs(given.get("usage") or {}))
    elif isinstance(getattr(given, "answer", None), str):
        passages = (*getattr(given, "summaries", ()), *getattr(given, "passages", ()))
        return SystemAnswer(given.answer, passages, costs_of(given), _retrieved(given))
    raise InputError(
        f"a system answered with a {type(given).__name__}: {ascii(given)[:80]}",
        hint="return a text, a mapping with 'answer' (and 'context'), or a surerag.SystemAnswer",
    )


def passages_of(given: Any) -> tuple[Passage, ...]:
    """Return what was shown as passages: passages, texts, or a framework's documents by their text."""
    if isinstance(given, str):
        return (Passage(given),)
    if not isinstance(given, Sequence):
        return ()
    found = []
    for item in given:
        text = item if isinstance(item, str) else getattr(item, "text", getattr(item, "page_content", None))
        if isinstance(text, str):
            name = getattr(item, "id", None)
            found.append(item if isinstance(item, Passage) else Passage(text, id=str(name or "")))
    return tuple(found)


def costs_of(result: Any) -> Costs:
    """Return what a result of the core says of its costs; zeros for what it does not tell."""
    told = getattr(result, "costs", result)
    timings = getattr(result, "timings", None)
    seconds = sum(timings.values()) if isinstance(timings, Mapping) else 0.0
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "calls")
    return replace(_costs({name: getattr(told, name, 0) for name in names}), seconds=seconds)


def _costs(told: Mapping[str, Any]) -> Costs:
    read, wrote, cached, calls = (
        value if isinstance(value := told.get(name), int) else 0
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "calls")
    )
    return Costs(read, wrote, cached, calls)


_ANSWERS = ("answer", "output", "result", "response", "text")
_CONTEXTS = ("context", "contexts", "passages", "source_documents", "documents")


def _retrieved(result: Any) -> bool | None:
    decision = getattr(result, "decision", None)
    found = getattr(decision, "retrieve", None)
    return found if isinstance(found, bool) else None


def _by_integration(given: Any) -> Any:
    """Ask the integration for an object's framework, by its name: the core knows none."""
    roots = dict.fromkeys(kind.__module__.partition(".")[0] for kind in type(given).__mro__)
    for root in roots:
        for package in dict.fromkeys((f"{root}_surerag", f"{root.partition('_')[0]}_surerag")):
            try:
                module = importlib.import_module(f"{package}.systems")
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] != package:
                    raise
                continue
            found = module.as_system(given)
            if found is not None:
                return found
    return None
