"""Many requests at once against a server that answers every third one badly."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from langchain_surerag import LazyRetrievalChain
from surerag.errors import SureragError
from tests.langchain.conftest import SUMMARY, SURE, chat, search
from tests.servers.fake_openai import FakeOpenAI

ANSWER = "Velm lies on the long river Orun, far from the sea."
BAD = [
    "hangs up",
    "hangs up midway",
    "no HTTP",
    "500",
    "429",
    "HTML",
    "empty body",
    "null",
    "not JSON",
    "no choices",
    "choices are a number",
    "error with status 200",
    "empty answer",
    "cut",
    "withheld",
    "no end",
    "every chunk twice",
    "logprobs are null",
    "logprob is NaN",
]
N = int(os.environ.get("SURERAG_REQUESTS", "240"))


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len([*folder.iterdir()]) if folder.exists() else 0


@pytest.mark.parametrize("asynchronously", [False, True])
async def test_none_hangs_and_none_is_wrong_in_silence(asynchronously: bool) -> None:
    chance = random.Random(7)
    with FakeOpenAI([ANSWER], logprob=SURE) as server:
        server.fail("500", times=0)
        server._failures = [chance.choice(BAD) if chance.random() < 0.3 else None for _ in range(9 * N)]  # type: ignore[misc]
        chain = LazyRetrievalChain(chat(server, timeout=10), search, SUMMARY)
        started = time.monotonic()
        before = _descriptors()
        config: Any = {"max_concurrency": 50}
        questions = [f"Where is number {number}?" for number in range(N)]
        if asynchronously:
            outputs = await chain.abatch(questions, config, return_exceptions=True)
        else:
            outputs = await asyncio.to_thread(chain.batch, questions, config, return_exceptions=True)
        assert time.monotonic() - started < 60
        kinds: Counter[str] = Counter()
        for output in outputs:
            if isinstance(output, Exception):
                assert isinstance(output, SureragError), repr(output)
                kinds["error"] += 1
            elif output["answer"] == ANSWER and output["finish"] == "stop":
                kinds["right"] += 1
            else:
                # What is no whole answer is marked; for an empty one, documents were retrieved.
                assert output["finish"] in ("empty", "length", "content_filter"), output
                assert output["answer"] or output["decision"]["retrieve"]
                kinds["marked"] += 1
        assert kinds["right"] > 0.6 * N
        assert _descriptors() - before < 130
