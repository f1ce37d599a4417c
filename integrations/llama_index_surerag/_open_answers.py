"""An answer that is being streamed: begun, held open, and finished or hung up."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from llama_index_surerag._lent import AsyncLine, Line
from surerag.errors import ConfigurationError, ServiceError
from surerag.messages import Chunk, Generation, PartialGeneration, SamplingParams
from surerag.readers.closing import HangUp, close_in_loop_when_dropped, close_when_dropped
from surerag.readers.hosted.parse import Draft, Json, usage_of


class OpenAnswer:
    """An answer that is being streamed; its line is hung up once this is dropped.

    Args:
        line: The open stream.
        draft: What came of it so far.
        sampling: What was asked for.
        loop: Where it is streamed; None for a sync stream.

    Attributes:
        shown: The answer so far, as it was read while it was begun.
    """

    def __init__(
        self,
        line: Line | AsyncLine,
        draft: Draft,
        sampling: SamplingParams,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.stream = line.stream
        self.draft = draft
        self.sampling = sampling
        self.shown = ""
        self.loop = loop
        self.taken = False
        self.ended = False
        self.hang_up: HangUp = (
            close_when_dropped(self, line.hang_up)
            if isinstance(line, Line)
            else close_in_loop_when_dropped(self, line.hang_up)
        )


def note_usage(draft: Draft, answer: Json) -> None:
    usage = usage_of(answer)
    if usage.prompt_tokens or usage.completion_tokens:
        draft.usage = replace(usage, prompt_tokens=usage.prompt_tokens or draft.usage.prompt_tokens)


def opened_by(begun: PartialGeneration) -> OpenAnswer:
    if not isinstance(begun.state, OpenAnswer):
        raise ConfigurationError(
            "this was not begun by a reader of reader_from_llm", hint="finish it with its reader"
        )
    return begun.state


def take(begun: PartialGeneration, loop: asyncio.AbstractEventLoop | None) -> OpenAnswer:
    """Return an open stream that nobody took before; an answer that has ended may be taken again."""
    handle = opened_by(begun)
    if begun.done:
        return handle
    if handle.taken:
        raise ServiceError("this generation was finished or cancelled before", hint="begin it again")
    if handle.loop is not loop:
        raise ServiceError(
            "this generation was begun in another event loop, or in none",
            hint="finish it where it was begun: afinish after abegin, finish after begin",
        )
    handle.taken = True
    return handle


def last(chunks: list[Chunk]) -> Generation:
    generation = chunks[-1].generation
    if generation is None:
        raise ServiceError("a stream ended without its generation")
    return generation
