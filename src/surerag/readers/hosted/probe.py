"""A probe: finds out what a server can do by asking it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from surerag.errors import ServiceError, ThinkingBudgetError
from surerag.messages import Generation, Prompt, SamplingParams
from surerag.readers.hosted.knowledge import Knowledge
from surerag.readers.hosted.logprobs import Step, Wanted
from surerag.readers.hosted.parse import Api, Draft, choices_of, streamed_choice, usage_of
from surerag.readers.hosted.requests import Ask, answer_at_once, body_of
from surerag.readers.hosted.score import Scoring, score_ask, score_trace
from surerag.readers.hosted.text import Json
from surerag.readers.refusals import refusals_in

R = TypeVar("R")
Finding = Json | ServiceError
Inquiry = Generator[Ask, Finding, R]
"""Asks one question after another; a question that failed is answered by its error."""

PROBE_PROMPTS = (
    "Count from one to twenty in words, separated by single spaces.",
    "Answer the question.\nQuestion: Where does the river Rhine begin?\nAnswer:",
    "Once upon a time, there was",
)
"""Asked in turn until one is answered with more than silence."""

_TOPS = (20, 5, 1, 0)
_TOKENS = 3
_LONG = 24
_ENOUGH = 256
_WAYS: Mapping[Api, tuple[Scoring, ...]] = {
    "chat": ("prompt_logprobs",),
    "completions": ("echo", "prompt_logprobs"),
    "responses": (),
}
_SAME = 0.02
"""Log-probabilities nearer than this are the same: servers that batch differ in the last digits."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found out about a server and its model.

    Attributes:
        name: The reader that asked.
        logprobs: Whether sampled tokens come with log-probabilities.
        top_logprobs: How many of the likeliest tokens it lists, of those that were asked for.
        raw_logprobs: Whether they are those of the model, rather than those after temperature; None if
            that could not be told.
        greedy: Whether temperature 0 chose the likeliest token every time. Where it did not, the server
            changes probabilities before it samples; it may penalise repetition unless told not to.
        samples: Whether ``n`` is honoured.
        streams: Whether answers can be streamed.
        stream_logprobs: Whether streamed tokens come with log-probabilities.
        seeded: Whether the same seed gave the same sample.
        scoring: How given text can be scored; None if it cannot.
        thinks: Whether the model thinks before it answers, as it is asked by this reader.
        answers_at_once: Whether it stops thinking when told to by ``thinking=False``; None if it does not
            think as it is.
        refused: Parameters that the service refuses; requests that can do without go without them.
        limits: The largest values that it takes of others.
        notes: What the server said where it refused.
    """

    name: str
    logprobs: bool
    top_logprobs: int
    raw_logprobs: bool | None
    greedy: bool | None
    samples: bool
    streams: bool
    stream_logprobs: bool
    seeded: bool
    scoring: Scoring | None
    thinks: bool = False
    answers_at_once: bool | None = None
    refused: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        raw = {True: "the model's own", False: "after temperature", None: "of unknown kind"}
        greedy = {True: "the likeliest tokens", False: "not always the likeliest", None: "unknown"}
        rows = [
            ("log-probabilities", f"yes, {raw[self.raw_logprobs]}" if self.logprobs else "no"),
            ("likeliest tokens listed", str(self.top_logprobs)),
            ("temperature 0 chooses", greedy[self.greedy]),
            ("n samples a request", "yes" if self.samples else "no, asked for one by one"),
            ("streaming", "yes" if self.streams else "no"),
            ("log-probabilities in streams", "yes" if self.stream_logprobs else "no"),
            ("seeds", "yes" if self.seeded else "no"),
            ("scoring of given text", self.scoring or "no"),
            ("thinks before it answers", self._thinking),
            ("refuses", ", ".join(self.refused) or "nothing that was asked"),
            *((f"largest {name}", str(most)) for name, most in self.limits),
        ]
        lines = [self.name, *(f"  {label:<30}{value}" for label, value in rows)]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])

    @property
    def _thinking(self) -> str:
        if not self.thinks:
            return "no"
        return (
            "yes; thinking=False switches it off"
            if self.answers_at_once
            else "yes, and cannot be told not to"
        )


def probing(
    name: str, model: str, known: Knowledge, vocabulary_size: int, prompts: Sequence[Prompt]
) -> Inquiry[Probe]:
    """Ask one small question after another, and return what the answers show.

    Args:
        name: The reader that asks.
        model: Which model.
        known: What is known of it; it learns from the answers.
        vocabulary_size: Tokens that it can emit, or more.
        prompts: What to ask; the first that is answered with more than silence.

    Raises:
        CapabilityError: If the model thinks although it was told not to.
        ServiceError: If a plain question is not answered, or none with more than silence.
    """
    questions = _Questions(model, known, vocabulary_size)
    yield from questions.find_prompt(prompts)
    at_once = (yield from questions.answers_at_once()) if known.thinks else None
    top = yield from questions.largest_top()
    wanted = questions.wanted(top)
    samples = yield from questions.samples()
    streamed = yield from questions.streamed(wanted)
    raw = (yield from questions.raw(wanted)) if top else None
    greedy = (yield from questions.greedy(wanted)) if top else None
    seeded = yield from questions.seeded()
    scoring = (yield from questions.scoring(wanted)) if top is not None else None
    switches = answer_at_once(known.api)
    return Probe(
        name=name,
        logprobs=top is not None,
        top_logprobs=top or 0,
        raw_logprobs=raw,
        greedy=greedy,
        samples=samples,
        streams=streamed is not None,
        stream_logprobs=streamed is not None and streamed.trace is not None,
        seeded=seeded,
        scoring=scoring,
        thinks=known.thinks,
        answers_at_once=at_once,
        refused=tuple(sorted((known.understood.dropped | questions.refused) - set(switches))),
        limits=tuple(sorted(known.understood.most.items())),
        notes=tuple(dict.fromkeys(questions.notes)),
    )


class _Questions:
    """The questions, and what the server said where it refused."""

    def __init__(self, model: str, known: Knowledge, vocabulary_size: int) -> None:
        self.notes: list[str] = []
        self.refused: set[str] = set()
        self._api: Api = known.api
        self._model = model
        self._known = known
        self._vocabulary_size = vocabulary_size
        self._prompt: Prompt = ""

    def find_prompt(self, prompts: Sequence[Prompt]) -> Inquiry[None]:
        """Settle on a prompt that the model has something to say to."""
        for self._prompt in prompts:
            budget = self._known.budget
            # Long enough to see thoughts end whose beginning is not marked.
            plain = yield self.ask(
                patient=True, max_tokens=_TOKENS if self._api == "completions" else _ENOUGH
            )
            if isinstance(plain, ServiceError):
                raise plain
            draft = self._draft(plain, self.wanted(None), budget=budget)
            if draft is None and self._known.budget and not budget:
                draft = yield from self.answer()
            if draft is not None and draft.text.strip():
                return
        raise ServiceError(
            "the model says nothing to any of the probe's questions"
            + (f"; of the last one: {self.notes[-1]}" if self.notes else ""),
            hint="pass probe(prompt=…) one that it answers with a few words",
        )

    def wanted(self, top: int | None) -> Wanted:
        return Wanted(top is not None, top or 0, self._vocabulary_size)

    def ask(
        self, wanted: Wanted | None = None, *, kept: Sequence[str] = (), patient: bool = False, **fields: Any
    ) -> Ask:
        """Put the question, with fields in place of its usual ones; ``kept`` says what it is about."""
        asked = wanted or self.wanted(None)
        tokens = SamplingParams(max_tokens=fields.pop("max_tokens", _TOKENS))
        body = body_of(self._api, self._model, self._prompt, tokens, asked, self._known.budget)
        needed = {"logprobs", "include", *(["top_logprobs"] if asked.top else []), *kept}
        return Ask(self._api, body | fields, patient, kept=frozenset(needed))

    def answer(
        self, wanted: Wanted | None = None, *, kept: Sequence[str] = (), **fields: Any
    ) -> Inquiry[Draft | None]:
        """Put the question and read its answer; again, if only then it shows that the model thinks."""
        asked = wanted or self.wanted(None)
        for _ in range(2):
            budget = self._known.budget
            finding = yield self.ask(asked, kept=kept, **fields)
            draft = self._draft(finding, asked, budget=budget)
            if draft is not None or budget or not self._known.budget:
                break
        return draft

    def answers_at_once(self) -> Inquiry[bool]:
        """See whether a model that thinks stops it when told to."""
        switches = answer_at_once(self._api)
        if not switches or self._known.thinking is False:
            return False
        finding = yield self.ask(**switches)
        if isinstance(finding, ServiceError):
            self.notes.append(_bare(finding))
            return False
        draft = self._known.draft(self.wanted(None), SamplingParams(max_tokens=_TOKENS), budget=1)
        draft.usage = usage_of(finding)
        try:
            draft.feed(choices_of(finding)[0])
            draft.generation()
        except ServiceError as error:
            self.notes.append(_bare(error))
            return False
        return not draft.thought

    def largest_top(self) -> Inquiry[int | None]:
        """Find the most alternatives that the server lists; None if it has no log-probabilities."""
        for top in _TOPS:
            steps = yield from self._steps(self.wanted(top))
            if steps:
                return min(top, max(len(step.likeliest) for step in steps))
        return None

    def samples(self) -> Inquiry[bool]:
        """See whether two samples come to one request."""
        if self._api == "responses":
            return False
        finding = yield self.ask(n=2, temperature=1.0, kept=["n"])
        if isinstance(finding, ServiceError):
            self._note(finding, ["n"])
            return False
        return len(choices_of(finding)) == 2

    def streamed(self, wanted: Wanted) -> Inquiry[Generation | None]:
        """Stream a few tokens, without log-probabilities if it must be."""
        for asked in dict.fromkeys((wanted, self.wanted(None))):
            budget = self._known.budget
            answer = yield self.ask(asked, stream=True)
            if isinstance(answer, ServiceError):
                self.notes.append(_bare(answer))
                continue
            draft = self._known.draft(asked, SamplingParams(max_tokens=_TOKENS), budget=budget, streamed=True)
            try:
                for event in answer["events"]:
                    if isinstance(event.get("usage"), Mapping):
                        draft.usage = usage_of(event)
                    if not draft.full and (choice := streamed_choice(event)) is not None:
                        draft.feed(choice)
                generation = draft.generation()
            except ServiceError as error:
                self.notes.append(f"in a stream: {_bare(error)}")
                continue
            if draft.finish is not None and draft.tokens:
                return generation
        return None

    def raw(self, wanted: Wanted) -> Inquiry[bool | None]:
        """Compare the first token's alternatives at two temperatures, which should change nothing."""
        both = []
        for temperature in (0.5, 2.0):
            steps = yield from self._steps(wanted, temperature=temperature, seed=1, kept=["temperature"])
            both.append(steps)
        if not all(both):
            return None
        lists = [sorted(steps[0].likeliest, reverse=True)[: wanted.top] for steps in both]
        return not _differ(*lists)

    def greedy(self, wanted: Wanted) -> Inquiry[bool | None]:
        """See whether an answer of some length is made of the likeliest tokens."""
        steps = yield from self._steps(wanted, max_tokens=_LONG, kept=["temperature"])
        listed = [step for step in steps if step.likeliest]
        return all(step.logprob > max(step.likeliest) - _SAME for step in listed) if listed else None

    def seeded(self) -> Inquiry[bool]:
        """Sample three times with one seed."""
        if self._api == "responses":
            return False
        texts = []
        for _ in range(3):
            draft = yield from self.answer(
                temperature=1.5, seed=7, max_tokens=12, kept=["temperature", "seed"]
            )
            if draft is None:
                return False
            texts.append(draft.text)
        return len(set(texts)) == 1

    def scoring(self, wanted: Wanted) -> Inquiry[Scoring | None]:
        """Have the model's own words read back, in each way that the API may have.

        A way counts only if they are as likely read as they were said: a server may be off by one.
        """
        said = yield from self._steps(wanted)
        text = "".join(step.token for step in said)
        for how in _WAYS[self._api] if said else ():
            ask = score_ask(how, self._api, self._model, self._prompt, text, wanted)
            answer = yield ask._replace(patient=False)
            listed = self._known.listed(wanted)
            if isinstance(answer, ServiceError):
                self.notes.append(_bare(answer))
                continue
            try:
                trace = score_trace(how, answer, self._prompt, text, listed)
            except ServiceError as error:
                self.notes.append(f"{how}: {_bare(error)}")
                continue
            values = [step.logprob for step in said]
            if len(trace) != len(said):
                self.notes.append(f"{how} splits what the model said into other tokens")
            elif _differ(values, trace.logprobs):
                self.notes.append(
                    f"{how} gives other log-probabilities than those of the same words when said"
                )
            else:
                return how
        return None

    def _steps(self, wanted: Wanted, *, kept: Sequence[str] = (), **fields: Any) -> Inquiry[list[Step]]:
        draft = yield from self.answer(wanted, kept=kept, **fields)
        return draft.answer_steps if draft else []

    def _draft(self, finding: Finding, wanted: Wanted, *, budget: int) -> Draft | None:
        if isinstance(finding, ServiceError):
            self._note(finding, ["temperature", "seed", "logprobs"])
            return None
        draft = self._known.draft(
            wanted, SamplingParams(max_tokens=_ENOUGH), budget=budget, usage=usage_of(finding)
        )
        try:
            draft.feed(choices_of(finding)[0])
            self._known.saw(draft)
            draft.generation()
        except ThinkingBudgetError as error:
            if budget or not self._known.thinks:
                self.notes.append(_bare(error))
            return None
        except ServiceError as error:
            self.notes.append(_bare(error))
            return None
        return draft

    def _note(self, error: ServiceError, names: Sequence[str]) -> None:
        """Keep what the service said, and which of these parameters it refuses by that."""
        self.notes.append(_bare(error))
        self.refused |= {refusal.name for refusal in refusals_in(str(error), dict.fromkeys(names))}


def _bare(error: ServiceError) -> str:
    """Return what an error says without its advice, which is to probe."""
    advice = f". {error.hint[:1].upper()}{error.hint[1:]}." if error.hint else ""
    return str(error).removesuffix(advice)


def _differ(one: Sequence[float], other: Sequence[float]) -> bool:
    return any(abs(a - b) > _SAME for a, b in zip(one, other, strict=False))
