"""A probe: shows what a server can do by asking it about ten small questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from surerag.errors import ServiceError
from surerag.messages import Prompt, SamplingParams
from surerag.readers.hosted.answers import Draft
from surerag.readers.hosted.requests import THINKING_OFF, Scoring, TokenDetails
from surerag.readers.hosted.service import Service

_PROMPTS = (
    "Count from one to twenty in words, separated by single spaces.",
    "Answer the question.\nQuestion: Where does the river Rhine begin?\nAnswer:",
    "Once upon a time, there was",
)
"""Sent in turn until one is answered with more than silence."""

_TOPS = (20, 5, 1, 0)
_SHORT = SamplingParams(max_tokens=3)
_TEXT = TokenDetails(False, 0)
_SAME = 0.02
"""Log-probabilities nearer than this are the same: servers that batch differ in the last digits."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a server and its model can do.

    Attributes:
        name: The reader that asked.
        logprobs: Whether sampled tokens come with log-probabilities.
        top_logprobs: How many of the likeliest tokens it lists, of those that were requested.
        raw_logprobs: Whether they are those of the model, rather than those after temperature; None if
            that could not be seen.
        samples: Whether ``n`` is honoured.
        streams: Whether answers can be streamed.
        stream_logprobs: Whether streamed tokens come with log-probabilities.
        scoring: How given text can be scored; None if it cannot.
        thinks: Whether the model thinks before it answers, as it is asked by this reader.
        rejected: Parameters that requests go without, because the service rejects them.
        limits: The largest values that it takes of others.
        notes: What the server said where it refused.
    """

    name: str
    logprobs: bool
    top_logprobs: int
    raw_logprobs: bool | None
    samples: bool
    streams: bool
    stream_logprobs: bool
    scoring: Scoring | None
    thinks: bool
    rejected: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        raw = {True: "the model's own", False: "after temperature", None: "of unknown kind"}
        rows = [
            ("log-probabilities", f"yes, {raw[self.raw_logprobs]}" if self.logprobs else "no"),
            ("likeliest tokens listed", str(self.top_logprobs)),
            ("n samples a request", "yes" if self.samples else "no, requested one by one"),
            ("streaming", "yes" if self.streams else "no"),
            ("log-probabilities in streams", "yes" if self.stream_logprobs else "no"),
            ("scoring of given text", self.scoring or "no"),
            ("thinks before it answers", "yes; thinking=False may switch it off" if self.thinks else "no"),
            ("rejects", ", ".join(self.rejected) or "nothing that was sent"),
            *((f"largest {name}", str(most)) for name, most in self.limits),
        ]
        lines = [self.name, *(f"  {label:<30}{value}" for label, value in rows)]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


async def probe(service: Service, prompt: Prompt | None) -> Probe:
    """Ask one small question after another, and return what the answers show.

    Raises:
        CapabilityError: If the model thinks although thinking was switched off.
        ServiceError: If a plain question is not answered, or none with more than silence.
    """
    questions = _Questions(service, await _answered(service, _PROMPTS if prompt is None else (prompt,)))
    top = await questions.largest_top()
    details = TokenDetails(top is not None, top or 0)
    streamed = await questions.streamed(details)
    return Probe(
        name=service.name,
        logprobs=top is not None,
        top_logprobs=top or 0,
        raw_logprobs=await questions.raw(details) if top else None,
        samples=await questions.samples(),
        streams=streamed is not None,
        stream_logprobs=bool(streamed),
        scoring=await questions.scoring(details) if top is not None else None,
        thinks=service.thinks,
        rejected=tuple(sorted(service.supported.drop - set(THINKING_OFF))),
        limits=tuple(sorted(service.supported.cap.items())),
        notes=tuple(dict.fromkeys(questions.notes)),
    )


async def _answered(service: Service, prompts: Sequence[Prompt]) -> Prompt:
    """Return the first prompt that the model has something to say to; learn whether it thinks."""
    for prompt in prompts:
        # Long enough to see thoughts end whose beginning is not marked.
        ((answer,),) = await service.generate([prompt], SamplingParams(max_tokens=256, trace="none"))
        if answer.text:
            return prompt
    raise ServiceError(
        "the model says nothing to any of the probe's questions",
        hint="pass probe(prompt=…) one that it answers with a few words",
    )


class _Questions:
    """The questions, and what the server said where it refused."""

    def __init__(self, service: Service, prompt: Prompt) -> None:
        self.notes: list[str] = []
        self._service, self._prompt = service, prompt

    async def largest_top(self) -> int | None:
        """Return the most alternatives that the server lists; None if it has no log-probabilities."""
        for top in _TOPS:
            draft = await self._ask(_SHORT, TokenDetails(True, top))
            if draft is not None and draft.generation().trace:
                return min(top, max(len(entry.get("top_logprobs") or ()) for entry in draft.entries))
        return None

    async def streamed(self, details: TokenDetails) -> bool | None:
        """Stream a few tokens, and return whether log-probabilities came with them; None if nothing came."""
        for requested in dict.fromkeys((details, _TEXT)):
            try:
                opened = await self._service.open(self._prompt, _SHORT, requested)
                return (await opened.read(_SHORT.max_tokens + 1)).partial.trace is not None
            except ServiceError as error:
                self._note(error)
        return None

    async def samples(self) -> bool:
        """See whether two samples come to one request."""
        try:
            two = replace(_SHORT, n=2, temperature=1.0)
            return len(await self._service.ask(self._prompt, two, _TEXT, {"n"})) == 2
        except ServiceError as error:
            self._note(error)
            return False

    async def raw(self, details: TokenDetails) -> bool | None:
        """Compare the first token's alternatives at two temperatures, which should change nothing."""
        lists = []
        for temperature in (0.5, 2.0):
            draft = await self._ask(replace(_SHORT, temperature=temperature), details, "temperature")
            first = draft.entries[0].get("top_logprobs") if draft is not None and draft.entries else None
            if not first:
                return None
            lists.append(sorted((item["logprob"] for item in first), reverse=True)[: details.top])
        return not _differ(*lists)

    async def scoring(self, details: TokenDetails) -> Scoring | None:
        """Have the model's own words read back, in each way that the API may have.

        A way counts only if they are as likely read as they were when generated: a server may be off by one.
        """
        draft = await self._ask(_SHORT, details)
        if draft is None or (trace := draft.generation().trace) is None:
            return None
        ways: tuple[Scoring, ...] = ("prompt_logprobs",)
        if self._service.api == "completions":
            ways = ("echo", "prompt_logprobs")
        for how in ways:
            try:
                read = await self._service.read_back(how, self._prompt, "".join(trace.tokens), details)
            except ServiceError as error:
                self._note(error)
                continue
            if len(read) != len(trace):
                self.notes.append(f"{how} splits what the model said into other tokens")
            elif _differ(trace.logprobs, read.logprobs):
                self.notes.append(
                    f"{how} gives other log-probabilities than those of the same words when said"
                )
            else:
                return how
        return None

    async def _ask(self, sampling: SamplingParams, details: TokenDetails, *needed: str) -> Draft | None:
        """Ask once; return the answer if it came with what was requested of its tokens."""
        needed = ("model", "messages", "prompt", "logprobs", *needed)
        if details.top:
            needed += ("top_logprobs",)
        try:
            draft = (await self._service.ask(self._prompt, sampling, details, needed))[0]
            draft.generation()
        except ServiceError as error:
            self._note(error)
            return None
        return draft

    def _note(self, error: ServiceError) -> None:
        """Keep what the service said, without our advice."""
        advice = f". {error.hint[:1].upper()}{error.hint[1:]}." if error.hint else ""
        self.notes.append(str(error).removesuffix(advice))


def _differ(one: Sequence[float], other: Sequence[float]) -> bool:
    return any(abs(a - b) > _SAME for a, b in zip(one, other, strict=False))
