"""A probe: shows what a server can do by asking it about a dozen small questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from surerag.errors import ServiceError
from surerag.messages import Generation, Prompt, SamplingParams
from surerag.readers.hosted.answers import choices_of
from surerag.readers.hosted.requests import THINKING_OFF, Scoring, TokenDetails, body_of, scoring_body
from surerag.readers.hosted.scoring import score_trace

if TYPE_CHECKING:
    from surerag.readers.hosted.reader import OpenAIReader

PROBE_PROMPTS = (
    "Count from one to twenty in words, separated by single spaces.",
    "Answer the question.\nQuestion: Where does the river Rhine begin?\nAnswer:",
    "Once upon a time, there was",
)
"""Sent in turn until one is answered with more than silence."""

_TOPS = (20, 5, 1, 0)
_SHORT = SamplingParams(max_tokens=3)
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
        seeded: Whether the same seed gave the same sample.
        scoring: How given text can be scored; None if it cannot.
        thinks: Whether the model thinks before it answers, as it is asked by this reader.
        thinking_off: Whether ``thinking=False`` stops that; None if it does not think as it is.
        rejected: Parameters that the service rejects; requests that can do without go without them.
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
    seeded: bool
    scoring: Scoring | None
    thinks: bool = False
    thinking_off: bool | None = None
    rejected: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        raw = {True: "the model's own", False: "after temperature", None: "of unknown kind"}
        off = "thinking=False switches it off" if self.thinking_off else "and it cannot be switched off"
        rows = [
            ("log-probabilities", f"yes, {raw[self.raw_logprobs]}" if self.logprobs else "no"),
            ("likeliest tokens listed", str(self.top_logprobs)),
            ("n samples a request", "yes" if self.samples else "no, requested one by one"),
            ("streaming", "yes" if self.streams else "no"),
            ("log-probabilities in streams", "yes" if self.stream_logprobs else "no"),
            ("seeds", "yes" if self.seeded else "no"),
            ("scoring of given text", self.scoring or "no"),
            ("thinks before it answers", f"yes, {off}" if self.thinks else "no"),
            ("rejects", ", ".join(self.rejected) or "nothing that was sent"),
            *((f"largest {name}", str(most)) for name, most in self.limits),
        ]
        lines = [self.name, *(f"  {label:<30}{value}" for label, value in rows)]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


async def probe(reader: OpenAIReader, prompts: Sequence[Prompt]) -> Probe:
    """Ask one small question after another, and return what the answers show.

    Raises:
        CapabilityError: If the model thinks although thinking was switched off.
        ServiceError: If a plain question is not answered, or none with more than silence.
    """
    questions = _Questions(reader)
    await questions.settle_prompt(prompts)
    top = await questions.largest_top()
    details = TokenDetails(top is not None, top or 0)
    streamed = await questions.streamed(details)
    supported = reader._supported
    return Probe(
        name=reader.name,
        logprobs=top is not None,
        top_logprobs=top or 0,
        raw_logprobs=await questions.raw(details) if top else None,
        samples=await questions.samples(),
        streams=streamed is not None,
        stream_logprobs=streamed is not None and streamed.trace is not None,
        seeded=await questions.seeded(),
        scoring=await questions.scoring(details) if top is not None else None,
        thinks=reader._thinks,
        thinking_off=await questions.thinking_off() if reader._thinks else None,
        rejected=tuple(sorted((supported.drop | questions.rejected) - set(THINKING_OFF))),
        limits=tuple(sorted(supported.cap.items())),
        notes=tuple(dict.fromkeys(questions.notes)),
    )


class _Questions:
    """The questions, and what the server said where it refused."""

    def __init__(self, reader: OpenAIReader) -> None:
        self.notes: list[str] = []
        self.rejected: set[str] = set()
        self._reader = reader
        self._prompt: Prompt = ""

    async def settle_prompt(self, prompts: Sequence[Prompt]) -> None:
        """Choose a prompt that the model has something to say to; learn whether it thinks."""
        for self._prompt in prompts:
            # Long enough to see thoughts end whose beginning is not marked.
            answers = await self._reader._samples(self._prompt, SamplingParams(max_tokens=256, trace="none"))
            if answers[0].text:
                return
        raise ServiceError(
            "the model says nothing to any of the probe's questions",
            hint="pass probe(prompt=…) one that it answers with a few words",
        )

    async def largest_top(self) -> int | None:
        """Return the most alternatives that the server lists; None if it has no log-probabilities."""
        for top in _TOPS:
            answer = await self._answer(TokenDetails(True, top))
            if answer is not None and answer[0].trace:
                return min(top, max(answer[1], default=0))
        return None

    async def streamed(self, details: TokenDetails) -> Generation | None:
        """Stream a few tokens, without log-probabilities if it must be."""
        for requested in dict.fromkeys((details, TokenDetails(False, 0))):
            try:
                opened = await self._reader._open(self._prompt, _SHORT, requested)
                try:
                    while await opened.next() is not None:
                        pass
                    return opened.whole()
                finally:
                    await opened.aclose()
            except ServiceError as error:
                self._note(error, ["stream"])
        return None

    async def samples(self) -> bool:
        """See whether two samples come to one request."""
        body = body_of(
            self._reader._api,
            self._reader._model,
            self._prompt,
            replace(_SHORT, n=2, temperature=1.0),
            TokenDetails(False, 0),
        )
        try:
            return len(choices_of(await self._reader._post(body, {"n"}))) == 2
        except ServiceError as error:
            self._note(error, ["n"])
            return False

    async def raw(self, details: TokenDetails) -> bool | None:
        """Compare the first token's alternatives at two temperatures, which should change nothing."""
        lists = []
        for temperature in (0.5, 2.0):
            answer = await self._answer(details, temperature=temperature)
            if answer is None or not answer[2]:
                return None
            lists.append(answer[2][: details.top])
        return not _differ(*lists)

    async def seeded(self) -> bool:
        """Sample three times with one seed."""
        texts = set()
        for _ in range(3):
            answer = await self._answer(
                TokenDetails(False, 0), needed={"seed", "temperature"}, temperature=1.5, max_tokens=12
            )
            if answer is None:
                return False
            texts.add(answer[0].text)
        return len(texts) == 1

    async def scoring(self, details: TokenDetails) -> Scoring | None:
        """Have the model's own words read back, in each way that the API may have.

        A way counts only if they are as likely read as they were when generated: a server may be off by one.
        """
        answer, reader = await self._answer(details), self._reader
        trace = answer[0].trace if answer else None
        ways: tuple[Scoring, ...] = (
            ("echo", "prompt_logprobs") if reader._api == "completions" else ("prompt_logprobs",)
        )
        if trace is None:
            return None
        for how in ways:
            text = "".join(trace.tokens)
            body = scoring_body(how, reader._api, reader._model, self._prompt, text, details)
            try:
                read = score_trace(how, await reader._post(body, set(body)), self._prompt, text, details)
            except ServiceError as error:
                self._note(error, [how])
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

    async def thinking_off(self) -> bool:
        """See whether a model that thinks stops it when thinking is switched off."""
        reader = self._reader
        body = (
            body_of(reader._api, reader._model, self._prompt, _SHORT, TokenDetails(False, 0)) | THINKING_OFF
        )
        try:
            draft = reader._draft(TokenDetails(False, 0), _SHORT, budget=1)
            draft.feed(choices_of(await reader._post(body, set(body)))[0])
        except ServiceError as error:
            self._note(error, [])
            return False
        return not draft.thought

    async def _answer(
        self, details: TokenDetails, *, needed: set[str] | None = None, **sampling: Any
    ) -> tuple[Generation, list[int], list[float]] | None:
        """Ask once; return the answer, how many alternatives each token has, and those of the first."""
        reader, params = self._reader, replace(_SHORT, **sampling)
        body = body_of(reader._api, reader._model, self._prompt, params, details, reader._budget)
        keep = {
            "model",
            "messages",
            "prompt",
            "logprobs",
            *(["top_logprobs"] if details.top else []),
            *(needed or ()),
        }
        try:
            draft = reader._read(await reader._post(body, keep), details, params, reader._budget)[0]
            generation = draft.generation()
        except ServiceError as error:
            self._note(error, ["temperature", "seed", "logprobs", "top_logprobs"])
            return None
        rows = [entry.get("top_logprobs") or [] for entry in draft.entries]
        first = sorted((item["logprob"] for item in rows[0]), reverse=True) if rows and details.top else []
        return generation, [len(row) for row in rows], first

    def _note(self, error: ServiceError, names: Sequence[str]) -> None:
        """Keep what the service said without our advice, and which of these parameters it rejects by that."""
        advice = f". {error.hint[:1].upper()}{error.hint[1:]}." if error.hint else ""
        self.notes.append(str(error).removesuffix(advice))
        self.rejected |= {name for name in names if f"'{name}'" in str(error)}


def _differ(one: Sequence[float], other: Sequence[float]) -> bool:
    return any(abs(a - b) > _SAME for a, b in zip(one, other, strict=False))
