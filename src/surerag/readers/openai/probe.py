"""A probe: finds out what a server can do by asking it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from surerag.errors import ServiceError
from surerag.readers.openai.parse import Api, Draft, Json, Step, Wanted, choices_of, streamed_choice
from surerag.readers.openai.requests import Ask, logprobs_body, prompt_body
from surerag.readers.openai.score import Scoring, score_ask, score_trace
from surerag.types import Generation, Prompt

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
_WAYS: Mapping[Api, tuple[Scoring, ...]] = {
    "chat": ("prompt_logprobs",),
    "completions": ("echo", "prompt_logprobs"),
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
        ]
        lines = [self.name, *(f"  {label:<30}{value}" for label, value in rows)]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


def probing(
    name: str, api: Api, model: str, vocabulary_size: int, prompts: Sequence[Prompt]
) -> Inquiry[Probe]:
    """Ask one small question after another, and return what the answers show.

    Args:
        name: The reader that asks.
        api: Where to ask.
        model: Which model.
        vocabulary_size: Tokens that it can emit, or more.
        prompts: What to ask; the first that is answered with more than silence.

    Raises:
        ServiceError: If a plain question is not answered, or none with more than silence.
    """
    questions = _Questions(api, model, vocabulary_size)
    yield from questions.find_prompt(prompts)
    top = yield from questions.largest_top()
    wanted = questions.wanted(top)
    samples = yield questions.ask(n=2, temperature=1.0)
    streamed = yield from questions.streamed(wanted)
    return Probe(
        name=name,
        logprobs=top is not None,
        top_logprobs=top or 0,
        raw_logprobs=(yield from questions.raw(wanted)) if top else None,
        greedy=(yield from questions.greedy(wanted)) if top else None,
        samples=not isinstance(samples, ServiceError) and len(choices_of(samples)) == 2,
        streams=streamed is not None,
        stream_logprobs=streamed is not None and streamed.trace is not None,
        seeded=(yield from questions.seeded()),
        scoring=(yield from questions.scoring(wanted)) if top is not None else None,
        notes=tuple(dict.fromkeys(questions.notes)),
    )


class _Questions:
    """The questions, and what the server said where it refused."""

    def __init__(self, api: Api, model: str, vocabulary_size: int) -> None:
        self.notes: list[str] = []
        self._api = api
        self._model = model
        self._vocabulary_size = vocabulary_size
        self._prompt: Prompt = ""

    def find_prompt(self, prompts: Sequence[Prompt]) -> Inquiry[None]:
        """Settle on a prompt that the model has something to say to."""
        for self._prompt in prompts:
            plain = yield self.ask(patient=True)
            if isinstance(plain, ServiceError):
                raise plain
            if (draft := self._draft(plain, self.wanted(None))) and draft.text.strip():
                return
        raise ServiceError(
            "the model says nothing to any of the probe's questions",
            hint="pass probe(prompt=…) one that it answers with a few words",
        )

    def wanted(self, top: int | None) -> Wanted:
        return Wanted(top is not None, top or 0, self._vocabulary_size)

    def ask(self, wanted: Wanted | None = None, *, patient: bool = False, **fields: Any) -> Ask:
        body = {
            "model": self._model,
            **prompt_body(self._api, self._prompt),
            "max_tokens": 3,
            "temperature": 0.0,
            **(logprobs_body(self._api, wanted) if wanted else {}),
            **fields,
        }
        return Ask(self._api, body, patient)

    def largest_top(self) -> Inquiry[int | None]:
        """Find the most alternatives that the server lists; None if it has no log-probabilities."""
        for top in _TOPS:
            wanted = self.wanted(top)
            steps = self._steps((yield self.ask(wanted)), wanted)
            if steps:
                return min(top, max(len(step.likeliest) for step in steps))
        return None

    def streamed(self, wanted: Wanted) -> Inquiry[Generation | None]:
        """Stream a few tokens, without log-probabilities if it must be."""
        for asked in dict.fromkeys((wanted, self.wanted(None))):
            answer = yield self.ask(asked, stream=True)
            if isinstance(answer, ServiceError):
                self.notes.append(str(answer))
                continue
            draft = Draft(asked)
            try:
                for event in answer["events"]:
                    if (choice := streamed_choice(event)) is not None:
                        draft.feed(choice)
                generation = draft.generation()
            except ServiceError as error:
                self.notes.append(f"in a stream: {error}")
                continue
            if draft.finish is not None and draft.tokens:
                return generation
        return None

    def raw(self, wanted: Wanted) -> Inquiry[bool | None]:
        """Compare the first token's alternatives at two temperatures, which should change nothing."""
        cold = yield self.ask(wanted, temperature=0.5, seed=1)
        hot = yield self.ask(wanted, temperature=2.0, seed=1)
        both = [self._steps(answer, wanted) for answer in (cold, hot)]
        if not all(both):
            return None
        lists = [sorted(steps[0].likeliest, reverse=True)[: wanted.top] for steps in both]
        return not _differ(*lists)

    def greedy(self, wanted: Wanted) -> Inquiry[bool | None]:
        """See whether an answer of some length is made of the likeliest tokens."""
        steps = self._steps((yield self.ask(wanted, max_tokens=24)), wanted)
        listed = [step for step in steps if step.likeliest]
        return all(step.logprob > max(step.likeliest) - _SAME for step in listed) if listed else None

    def seeded(self) -> Inquiry[bool]:
        """Sample three times with one seed."""
        texts = []
        for _ in range(3):
            answer = yield self.ask(temperature=1.5, seed=7, max_tokens=12)
            draft = self._draft(answer, self.wanted(None))
            texts.append(draft.text if draft else None)
        return texts[0] is not None and len(set(texts)) == 1

    def scoring(self, wanted: Wanted) -> Inquiry[Scoring | None]:
        """Have the model's own words read back, in each way that the API may have.

        A way counts only if they are as likely read as they were said: a server may be off by one.
        """
        said = self._steps((yield self.ask(wanted)), wanted)
        text = "".join(step.token for step in said)
        for how in _WAYS[self._api] if said else ():
            ask = score_ask(how, self._api, self._model, self._prompt, text, wanted)
            answer = yield ask._replace(patient=False)
            if isinstance(answer, ServiceError):
                self.notes.append(str(answer))
                continue
            try:
                trace = score_trace(how, answer, self._prompt, text, wanted)
            except ServiceError as error:
                self.notes.append(f"{how}: {error}")
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

    def _steps(self, answer: Finding, wanted: Wanted) -> list[Step]:
        draft = self._draft(answer, wanted)
        return draft.steps if draft else []

    def _draft(self, answer: Finding, wanted: Wanted) -> Draft | None:
        if isinstance(answer, ServiceError):
            self.notes.append(str(answer))
            return None
        draft = Draft(wanted)
        try:
            draft.feed(choices_of(answer)[0])
            draft.generation()
        except ServiceError as error:
            self.notes.append(str(error))
            return None
        return draft


def _differ(one: Sequence[float], other: Sequence[float]) -> bool:
    return any(abs(a - b) > _SAME for a, b in zip(one, other, strict=False))
