"""What the tests of cluster compression share: a few passages, and a reader that quotes."""

from __future__ import annotations

from typing import Any

from surerag import ClusterCompressor, FakeReader, Passage
from surerag.encoders import HashingEncoder
from surerag.prompts import NOTHING_TO_EXTRACT

QUESTION = "Where was Ada born?"
ADA = "Ada the painter was born in Velm, they say, long ago."
AGAIN = "It was in Velm that Ada the painter was born."
BO = "Bo the sculptor was born in Tarn and stayed there all his life."
RIVER = "The Orun is a river in the north, cold and wide and slow."


def passages(*texts: str) -> list[Passage]:
    return [
        Passage(text, id=f"p{at}", score=1 - at / 10, metadata={"page": at}, origin=object())
        for at, text in enumerate(texts)
    ]


def quoting(prompt: str) -> str:
    """Extract what mentions Ada, word for word; nothing otherwise."""
    found = [line.split("] ", 1)[1] for line in prompt.splitlines() if line.startswith("[") and "Ada" in line]
    return found[0] if found else NOTHING_TO_EXTRACT


def compressor(replies: Any = quoting, **settings: Any) -> tuple[ClusterCompressor, FakeReader]:
    """Return a compressor that copies, unless ``variant`` says otherwise, and its reader."""
    reader = FakeReader(replies)
    if settings.get("variant") != "whole":
        settings = {"variant": "copy", "min_tokens": 0, **settings}
    return ClusterCompressor(reader, HashingEncoder(), **settings), reader
