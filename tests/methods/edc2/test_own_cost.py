"""What the compressor costs itself: tokens are counted once a passage, and the event loop goes on."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import numpy as np

from surerag import ClusterCompressor, Passage
from surerag.encoders import HashingEncoder
from surerag.messages import Generation
from surerag.readers.protocol import BaseReader, Capabilities
from surerag.text import estimated_tokens

CHANCE = random.Random(0)
WORDS = ["".join(CHANCE.choices("abcdefghijklmnopqrstuvwxyz", k=CHANCE.randint(2, 12))) for _ in range(5000)]
PASSAGES = [Passage(f"{' '.join(CHANCE.choices(WORDS, k=2000))}.", id=str(place)) for place in range(100)]


class Server(BaseReader):
    """A reader that is awaited, and counts by the estimate."""

    name = "server"
    capabilities = Capabilities(logprobs=False, entropy=None, native_async=True)

    def __init__(self) -> None:
        self.counted = 0

    def count_tokens(self, text: str) -> int:
        self.counted += 1
        return estimated_tokens(text)

    async def agenerate(self, prompts: Any, sampling: Any) -> list[list[Generation]]:
        await asyncio.sleep(0.001)
        return [[Generation("yes")] for _ in prompts]


class Vectors(HashingEncoder):
    """An encoder that is awaited."""

    async def aencode(self, texts: Any, kind: Any) -> Any:
        await asyncio.sleep(0.001)
        return np.random.default_rng(len(texts)).normal(size=(len(texts), 8))

    async def aembed(self, texts: Any, kind: Any) -> Any:
        return await self.aencode(texts, kind)


async def _longest_step(reader: Server) -> float:
    """Return the most seconds of our own between two turns of the event loop."""
    longest, done = 0.0, False

    async def watch() -> None:
        nonlocal longest
        last = time.thread_time()
        while not done:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    watching = asyncio.create_task(watch())
    await ClusterCompressor(reader, Vectors()).arun("Where?", PASSAGES)
    done = True
    await watching
    return longest


def test_a_hundred_long_passages_are_counted_once_and_block_for_a_moment() -> None:
    longest = []
    for _ in range(3):
        reader = Server()
        longest.append(asyncio.run(_longest_step(reader)))
        assert reader.counted == len(PASSAGES)
    assert min(longest) < 0.05
