"""What asks an LLM for log-probabilities, whatever its class calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from llama_index_surerag._lent import AsyncLine, Line
from surerag.messages import Prompt, SamplingParams
from surerag.readers.hosted.parse import Json


class Source(Protocol):
    """Asks an LLM, and returns what it said in the form of OpenAI's chat API.

    Attributes:
        streams: Whether streamed pieces carry the log-probabilities of their tokens.
        tells_end: Whether a stream says that it has ended; one that does not has broken off.
        native_async: Whether the ``a…`` methods await real I/O.
    """

    streams: bool
    tells_end: bool
    native_async: bool

    @property
    def several(self) -> bool:
        """Whether one request can bring several answers."""

    @property
    def top_logprobs(self) -> int:
        """Likeliest tokens that are listed at each step; 0 if there are none."""

    def ask(self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int) -> Json:
        """Return an answer with up to ``n`` choices."""

    async def aask(self, prompt: Prompt, sampling: SamplingParams, n: int, seed: int) -> Json:
        """Like ``ask``."""

    def open(self, prompt: Prompt, sampling: SamplingParams) -> Line:
        """Open a stream of responses."""

    async def aopen(self, prompt: Prompt, sampling: SamplingParams) -> AsyncLine:
        """Like ``open``."""

    def piece(self, response: Any) -> Json:
        """Return one of them in the form of OpenAI's API."""


@dataclass(frozen=True)
class Vocabulary:
    """What is known of a model's tokens.

    Attributes:
        size: Number of tokens the model can emit.
        count: Length of a text in tokens, for servers that do not tell; None leaves it at 0.
    """

    size: int
    count: Callable[[str], int] | None = None
