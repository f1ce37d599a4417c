"""A probe, which finds out what a server can do by sending about ten small questions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from surerag.errors import ServiceError
from surerag.messages import SamplingParams
from surerag.readers.calls import AWAITING
from surerag.readers.client_reader import CLOSES_THOUGHTS, ClientReader, Request
from surerag.readers.failures import masked
from surerag.readers.hosted.wire import THINKING_OFF
from surerag.readers.reading import Reading

_PROMPTS = (
    "Count from one to twenty in words, separated by single spaces.",
    "Answer the question.\nQuestion: Where does the river Rhine begin?\nAnswer:",
    "Once upon a time, there was",
)
"""Prompts that are sent in turn until the model's answer to a prompt is not empty."""

_TOPS = (20, 5, 1)
_SHORT = SamplingParams(max_tokens=3)
_EQUAL_LOGPROBS = 0.02
"""Log-probabilities [nats] that differ by at most this number count as equal, because a server's batches
change the last digits."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a probe: what a server and its model can do.

    Attributes:
        top_logprobs: How many of the requested likeliest tokens the server lists.
        raw_logprobs: Whether log-probabilities are the model's own, before the temperature is applied; None
            if the probe could not tell.
        rejected: Parameters that requests omit, because the service rejects them.
        limits: The largest accepted value of each parameter that the service limits.
        notes: Messages with which the server refused requests.
    """

    name: str
    logprobs: bool
    top_logprobs: int
    raw_logprobs: bool | None
    streams: bool
    stream_logprobs: bool
    thinks: bool
    rejected: tuple[str, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        raw = {True: "the model's own", False: "after temperature", None: "of unknown kind"}
        rows = [
            ("log-probabilities", f"yes, {raw[self.raw_logprobs]}" if self.logprobs else "no"),
            ("likeliest tokens listed", str(self.top_logprobs)),
            ("streaming", "yes" if self.streams else "no"),
            ("log-probabilities in streams", "yes" if self.stream_logprobs else "no"),
            ("thinks before it answers", "yes; thinking=False may switch it off" if self.thinks else "no"),
            ("rejects", ", ".join(self.rejected) or "nothing that was sent"),
            *((f"largest {name}", str(most)) for name, most in self.limits),
        ]
        lines = [self.name, *(f"  {label:<30}{value}" for label, value in rows)]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


async def probe(reader: ClientReader) -> Probe:
    """Send small questions one after another, and return what the answers show about the server."""
    questions = _Questions(reader, await _answered(reader))
    top = await questions.largest_top()
    streamed = await questions.streamed(top)
    return Probe(
        name=reader.name,
        logprobs=top is not None,
        top_logprobs=top or 0,
        raw_logprobs=await questions.raw(top) if top else None,
        streams=streamed is not None,
        stream_logprobs=bool(streamed),
        thinks=reader.capabilities.thinking == "apart",
        rejected=tuple(sorted(reader.learned.drop - set(THINKING_OFF))),
        limits=tuple(sorted(reader.learned.cap.items())),
        notes=tuple(dict.fromkeys(questions.notes)),
    )


async def _answered(reader: ClientReader) -> str:
    """Return the first of the probe's prompts to which the model gives an answer that is not empty.

    This function also records in the reader whether the model thinks.
    """
    for prompt in _PROMPTS:
        # 256 tokens mostly suffice for the mark at the end of thoughts, even if no mark begins the thoughts.
        question = Request(prompt, SamplingParams(max_tokens=256, trace="none"))
        reader.learned.note(CLOSES_THOUGHTS)  # prevents a warning: the probe handles such answers
        (reading, *_) = await reader.readings(question, AWAITING)
        if reading.closes_thoughts:
            reader.thinking = reader.thinking or "unmarked"
        elif reading.thought:
            reader.thinking = reader.thinking or True
        if reading.generation().text:
            return prompt
    raise ServiceError(
        "the model's answers to all questions of the probe are empty",
        hint="look at what the model's server answers to a plain question",
    )


class _Questions:
    def __init__(self, reader: ClientReader, prompt: str) -> None:
        self.notes: list[str] = []
        self._reader, self._prompt = reader, prompt

    async def largest_top(self) -> int | None:
        """Return how many likeliest tokens the server lists for a token; None without log-probabilities."""
        for top in _TOPS:
            reading = await self._short_answer(_SHORT, top)
            if reading is not None and reading.generation().trace:
                return min(top, max(len(entry.get("top_logprobs") or ()) for entry in reading.entries))
        return None

    async def streamed(self, top: int | None) -> bool | None:
        """Return whether streams contain log-probabilities; None if the server cannot stream at all.

        With ``top=None``, log-probabilities are not requested.
        """
        traced = None if top is None else await self._stream(top)
        if traced is None and await self._stream(None) is not None:
            return False
        return traced

    async def _stream(self, top: int | None) -> bool | None:
        try:
            request = self._request(_SHORT, top, streamed=True)
            stream = self._reader.open_stream(request, AWAITING)
            return (await stream.until(_SHORT.limit + 1)).partial.trace is not None
        except ServiceError as error:
            self._note(error)
            return None

    async def raw(self, top: int) -> bool | None:
        """Return whether log-probabilities are equal at two temperatures; None if the server lists none."""
        lists = []
        for temperature in (0.5, 2.0):
            reading = await self._short_answer(replace(_SHORT, temperature=temperature), top)
            first = reading.entries[0].get("top_logprobs") if reading and reading.entries else None
            if not first:
                return None
            lists.append(sorted((item["logprob"] for item in first), reverse=True)[:top])
        return all(abs(a - b) <= _EQUAL_LOGPROBS for a, b in zip(*lists, strict=False))

    def _request(self, sampling: SamplingParams, top: int | None, *, streamed: bool = False) -> Request:
        """Return a request that fails if the server refuses the temperature or the log-probabilities."""
        sampling = replace(sampling, trace="none" if top is None else "entropy" if top else "logprobs")
        return Request(self._prompt, sampling, top, drawn=sampling.temperature > 0, streamed=streamed)

    async def _short_answer(self, sampling: SamplingParams, top: int) -> Reading | None:
        try:
            reading = (await self._reader.read_answers(self._request(sampling, top), AWAITING))[0]
            reading.generation()
        except ServiceError as error:
            self._note(error)
            return None
        return reading

    def _note(self, error: ServiceError) -> None:
        self.notes.append(masked(error.message, self._reader._secrets()))
