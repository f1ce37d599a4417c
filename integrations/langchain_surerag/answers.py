"""One answer of a LangChain model: text without thoughts, trace, reason of its end; and one on its way."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.outputs import Generation as Output

from langchain_surerag.runs import AnswerRun
from surerag.errors import LogprobsError, ServiceError, ThinkingBudgetError, TransientServiceError
from surerag.messages import Chunk, Generation, PartialGeneration, SamplingParams, TokenTrace, Usage
from surerag.readers.logprobs import answer_tokens, entries_of, token_of, trace_of
from surerag.readers.pieces import TrimmedPieces, cut_at_stop
from surerag.readers.protocol import begun_from_whole
from surerag.readers.thinking import ThoughtSplitter

if TYPE_CHECKING:
    from langchain_surerag.models import ModelReader

_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
_WITHHELD = frozenset(
    {"content_filter", "safety", "prohibited_content", "blocklist", "recitation", "refusal"}
)
_REASONS = ("finish_reason", "done_reason", "stop_reason")


class Answer:
    """One answer as it comes.

    Args:
        reader: The model that answers.
        sampling: What was requested.
        streamed: Whether it comes in chunks.
    """

    def __init__(self, reader: ModelReader, sampling: SamplingParams, *, streamed: bool = False) -> None:
        self._reader = reader
        self._sampling = sampling
        self._streamed = streamed
        self._traced = reader.capabilities.logprobs and sampling.trace != "none"
        self._splitter = ThoughtSplitter()
        self._entries: list[Mapping[str, Any]] = []
        self._metadata: dict[str, Any] = {}
        self._reasoned = False
        self._n_pieces = 0
        self._usage = Usage(1)

    def add(self, piece: Any) -> str:
        """Take a chunk, or the whole, and return what it adds to the answer.

        Raises:
            LogprobsError: If log-probabilities are malformed.
        """
        message = piece.message if isinstance(piece, ChatGeneration) else piece
        metadata: Mapping[str, Any] = {}
        if isinstance(message, BaseMessage):
            metadata = message.response_metadata
            self._reasoned |= bool(message.additional_kwargs.get("reasoning_content"))
            if usage := getattr(message, "usage_metadata", None):
                self._usage = _usage(usage)
        elif isinstance(message, Output):
            metadata = message.generation_info or {}
        if self._traced and self._reader.family.logprobs is not None:
            self._entries += entries_of(self._reader.family.logprobs(metadata))
        self._metadata.update({name: value for name, value in metadata.items() if value is not None})
        text = message if isinstance(message, str) else message.text
        fresh = self._splitter.feed(str(text))
        self._n_pieces += bool(fresh)
        return fresh

    def count(self, counted: Mapping[str, Any]) -> None:
        """Take a server's count of tokens, where the message has none."""
        if not self._usage.prompt_tokens:
            read, written = counted.get("prompt_tokens"), counted.get("completion_tokens")
            self._usage = Usage(1, read or 0, written or 0)

    def end(self) -> str:
        """Note that nothing follows, and return the text that was held back."""
        rest = self._splitter.end()
        if self._streamed and self._reader.family.has_finish and not self.finish and not self.stopped:
            raise TransientServiceError(
                f"the stream of {self._reader.described} was cut off after {len(self.text)} characters: it "
                "has no reason for its end",
                hint="ask again",
            )
        return rest

    @property
    def text(self) -> str:
        """The answer so far, up to a stop text."""
        cut = cut_at_stop(self._splitter.answer, self._sampling.stop)
        return self._splitter.answer if cut is None else cut

    @property
    def stopped(self) -> bool:
        """Whether a stop text came, which the server did not obey."""
        return cut_at_stop(self._splitter.answer, self._sampling.stop) is not None

    @property
    def finish(self) -> str:
        """The provider's reason for the end; empty if there is none so far."""
        return next((str(self._metadata[name]).lower() for name in _REASONS if self._metadata.get(name)), "")

    @property
    def usage(self) -> Usage:
        """Tokens that the server counted."""
        return self._usage

    def n_tokens(self) -> int:
        """Return the number of tokens of the answer so far; of chunks, where there are no tokens."""
        if not self._traced:
            return self._n_pieces
        return len(self._trace(whole=False)) if self.text.strip() else 0

    def _trace(self, *, whole: bool) -> TokenTrace:
        if not self._entries:
            metadata = json.dumps(self._metadata, default=str)[:300]
            raise LogprobsError(
                f"{self._reader.described} was asked for log-probabilities, and its answer has none; it "
                f"came with the metadata {metadata}",
                hint=self._reader.family.advice,
            )
        try:
            tokens = map(token_of, self._entries)
            thought = self._reasoned or self._splitter.has_thoughts
            inside = answer_tokens(tokens, self.text, whole=whole, thought=thought)
            return trace_of(
                self._entries[inside.start : inside.stop],
                top_logprobs=self._reader.top_logprobs if self._sampling.trace == "entropy" else 0,
                vocabulary_size=self._reader.vocabulary_size,
            )
        except LogprobsError as error:
            raise LogprobsError(
                f"{self._reader.described}: {error}", hint=self._reader.family.advice
            ) from error

    def _empty_trace(self) -> TokenTrace:
        return trace_of([], top_logprobs=int(self._sampling.trace == "entropy"))

    def beginning(self, n_tokens: int) -> Generation:
        """Return the first tokens; all text so far, where there are no tokens."""
        trace = self._trace(whole=False) if self._traced and self.text.strip() else None
        whole = Generation(self.text.strip(), self._usage.prompt_tokens, trace)
        return replace(begun_from_whole(whole, n_tokens).partial, finish="partial")

    def generation(self) -> Generation:
        """Return the whole answer."""
        self._splitter.end()
        text, usage, cut = self.text.strip(), self._usage, self.finish in _CUT
        if not text and cut and (self._splitter.has_thoughts or self._reasoned or usage.thinking_tokens):
            raise ThinkingBudgetError(
                f"{self._reader.described} was still thinking when its tokens were spent",
                hint="raise thinking_tokens=… of reader_from_model, or switch thinking off in the model",
            )
        trace = None
        if self._traced:
            trace = self._trace(whole=not self.stopped) if text else self._empty_trace()
        counted, sent = usage.completion_tokens, max(len(trace or ()), self._n_pieces)
        if 0 < counted < sent:
            raise TransientServiceError(
                f"{self._reader.described} sent {sent} pieces and counted {counted} tokens: it repeats "
                "itself",
                hint="ask again",
            )
        withheld = "content_filter" if self.finish in _WITHHELD else ""
        finish: Any = "length" if cut else withheld or ("stop" if text else "empty")
        return Generation(
            text,
            usage.prompt_tokens,
            trace,
            finish,
            counted or len(trace or ()),
            usage.thinking_tokens,
            usage.cached_tokens,
        )


class OpenStream:
    """An answer that is read as far as somebody wants it.

    Args:
        pieces: What the model streams.
        answer: Where it is collected.
        run: Shows a draft that became the answer; None where the model's own run is shown.
        count: Adds to the reader's usage.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[Any],
        answer: Answer,
        run: AnswerRun | None,
        count: Callable[[Usage], None],
    ) -> None:
        self._pieces = pieces
        self._answer = answer
        self._run = run
        self._count = count
        self._trimmed = TrimmedPieces()
        self._position = 0
        self._text = ""
        self._ended = self._used = False

    async def until(self, n_tokens: int) -> PartialGeneration:
        """Read the first ``n_tokens`` tokens, or all if there are fewer."""
        while not self._ended and self._answer.n_tokens() < n_tokens:
            await self._advance()
        generation = self._answer.generation() if self._ended else self._answer.beginning(n_tokens)
        return PartialGeneration(generation, done=self._ended, state=self)

    async def rest(self) -> Generation:
        """Read to the end."""
        return cast("Generation", [chunk async for chunk in self.chunks()][-1].generation)

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield all text; the last chunk has the generation."""
        if self._used:
            raise ServiceError("what was begun is finished or cancelled already", hint="begin it again")
        self._used = True
        try:
            while True:
                if piece := self._next():
                    if self._run is not None:
                        await self._run.token(piece)
                    yield Chunk(piece)
                if self._ended:
                    break
                await self._advance()
            if self._run is not None:
                await self._run.end()
            yield Chunk("", self._answer.generation())
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop reading, and close the connection; again does nothing."""
        self._used = True
        await self._pieces.aclose()

    async def _advance(self) -> None:
        """Read a piece; after the last one, what the answer still holds back."""
        try:
            piece = await anext(self._pieces, None)
            self._text += self._trimmed.feed(self._answer.end() if piece is None else self._answer.add(piece))
            self._ended = piece is None or self._answer.stopped
            if self._ended:
                self._count(self._answer.usage)
        except BaseException:
            await self.close()
            raise

    def _next(self) -> str:
        """Return what can be shown by now, and was not yet."""
        text = self._answer.text.strip() if self._answer.stopped else self._text
        piece = text[self._position :]
        self._position += len(piece)
        return piece


def _usage(counted: Mapping[str, Any]) -> Usage:
    read, written = counted.get("input_tokens") or 0, counted.get("output_tokens") or 0
    thought = (counted.get("output_token_details") or {}).get("reasoning") or 0
    cached = (counted.get("input_token_details") or {}).get("cache_read") or 0
    return Usage(1, read, max(written - thought, 0), thought, min(cached, read))
