"""A reader whose rewrites another one makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from surerag.drivers.answering import is_local
from surerag.drivers.merging import queue_of
from surerag.effects import Generate
from surerag.methods.uncertainty_types import RewriteSampling
from surerag.readers.protocol import BaseReader, Capabilities, Reader
from surerag.services import as_reader
from surerag.types import Generation, Prompt, Sampling, TokenTrace, Usage


class TwoReaders(BaseReader):
    """Answers as one reader does, and rewrites as another: whoever a sampling of that kind is meant for.

    A local model is asked by way of its own merging queue, so that it is safe to use beside other components
    that share it.

    Args:
        reader: Answers; name and capabilities are its own, for it is its uncertainty that counts.
        rewriter: Rewrites.
    """

    def __init__(self, reader: Reader, rewriter: Reader) -> None:
        self._reader, self._rewriter = as_reader(reader), as_reader(rewriter)

    @property
    def name(self) -> str:
        """Identity of the model that answers."""
        return self._reader.name

    @property
    def capabilities(self) -> Capabilities:
        """What the model that answers can do; its calls are awaited where they are not merged."""
        own = self._reader.capabilities
        return replace(own, native_async=not own.local)

    @property
    def usage(self) -> Usage:
        """What both were asked so far."""
        return self._reader.usage + self._rewriter.usage

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Ask the one whom this sampling is meant for."""
        model, plain = self._meant(sampling)
        if is_local(model):
            answers: list[list[Generation]] = queue_of(model).ask(Generate(tuple(prompts), plain))
            return answers
        return model.generate(prompts, plain)

    async def agenerate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Like ``generate``, without blocking the event loop."""
        model, plain = self._meant(sampling)
        if is_local(model):
            answers: list[list[Generation]] = await queue_of(model).aask(Generate(tuple(prompts), plain))
            return answers
        return await model.agenerate(prompts, plain)

    def score(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Ask the one that answers."""
        return self._reader.score(prompts, continuations)

    def _meant(self, sampling: Sampling) -> tuple[BaseReader, Sampling]:
        if not isinstance(sampling, RewriteSampling):
            return self._reader, sampling
        values: dict[str, Any] = {item.name: getattr(sampling, item.name) for item in fields(sampling)}
        return self._rewriter, Sampling(**values)
