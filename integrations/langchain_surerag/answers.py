"""One answer of a LangChain model, whole or in chunks: text without thoughts, trace, reason of its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.outputs import Generation as Output

from surerag.errors import LogprobsError, ThinkingBudgetError, TransientServiceError
from surerag.messages import Generation, SamplingParams, TokenTrace, Usage
from surerag.readers.logprobs import answer_tokens, entries_of, token_of, trace_of
from surerag.readers.pieces import cut_at_stop
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
        """Note that nothing follows, and return the text that was held back.

        Raises:
            TransientServiceError: If it is a stream that was cut off.
        """
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
        """Return the whole answer.

        Raises:
            ThinkingBudgetError: If it ended within its thoughts.
            LogprobsError: If log-probabilities were requested, and do not cover it.
            TransientServiceError: If it repeats itself.
        """
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
        return Generation(
            text,
            usage.prompt_tokens,
            trace,
            "length"
            if cut
            else "content_filter"
            if self.finish in _WITHHELD
            else "stop"
            if text
            else "empty",
            counted or len(trace or ()),
            usage.thinking_tokens,
            usage.cached_tokens,
        )


def _usage(counted: Mapping[str, Any]) -> Usage:
    read, written = counted.get("input_tokens") or 0, counted.get("output_tokens") or 0
    thought = (counted.get("output_token_details") or {}).get("reasoning") or 0
    cached = (counted.get("input_token_details") or {}).get("cache_read") or 0
    return Usage(1, read, max(written - thought, 0), thought, min(cached, read))
