"""Many requests at once against a server that answers every third one badly, over each client.

    python -m tests.servers.misbehaving -n 2000 --concurrency 100

Each request has a number, and the right answer names it. What comes back is counted by kind: right; an error
of ours; marked (cut, withheld or empty); and wrong, by the fault of the server, which no client can see. A
request that does not end within the limit is hung, and a run with one fails. The server runs in this process,
on the loopback address alone.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import re
import sys
import time
import warnings
from collections import Counter
from typing import Any

from surerag import OpenAIReader, SamplingParams
from surerag.errors import SureragError
from surerag.readers.protocol import BaseReader
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.faults import FAULTS

SLOW = {"drips", "comments for ever", "flood", "redirects for ever"}
"""Faults that end with the time-out alone."""

SAMPLING = SamplingParams(max_tokens=32, trace="logprobs")
WAYS = ("whole", "stream", "begin")


class Server(FakeOpenAI):
    """A server that answers with the number of the question, and notes which fault it served it with."""

    def __init__(self, share: float, seed: int) -> None:
        super().__init__(lambda prompt: f"Velm number {_number(prompt)} lies on the Orun.")
        self.served: dict[str, str] = {}
        self._share, self._chance = share, random.Random(seed)
        self._bad = sorted(FAULTS.keys() - SLOW)

    def enter(self, request: dict[str, Any]) -> str | None:
        """Note a request and return its fault, if it has one."""
        super().enter(request)
        with self._lock:
            fault = self._chance.choice(self._bad) if self._chance.random() < self._share else None
            if fault:
                self.served[_number(request["messages"][-1]["content"])] = fault
        return fault


def _number(prompt: str) -> str:
    return re.findall(r"\d+", prompt)[-1]


def readers(url: str) -> dict[str, BaseReader]:
    """Return a reader of the server for each client."""
    from langchain_openai import ChatOpenAI
    from llama_index.llms.openai_like import OpenAILike

    from langchain_surerag import reader_from_model
    from llama_index_surerag import reader_from_llm

    model = ChatOpenAI(model="toy", base_url=url, api_key="k", max_retries=0, timeout=20)  # type: ignore[arg-type]
    llm = OpenAILike(
        model="toy",
        api_base=url,
        api_key="k",
        is_chat_model=True,
        max_retries=0,
        context_window=8000,
        timeout=20,
    )
    return {
        "core": OpenAIReader(
            "toy", base_url=url, api_key="k", max_retries=0, max_concurrency=100, timeout=20
        ),
        "langchain": reader_from_model(model),
        "llama_index": reader_from_llm(llm),
    }


async def ask(reader: BaseReader, number: int) -> Any:
    """Ask in one of three ways and return the generation, or the error."""
    prompt, way = f"Where is number {number}?", WAYS[number % len(WAYS)]
    try:
        if way == "whole":
            return (await reader.agenerate([prompt], SAMPLING))[0][0]
        if way == "begin":
            return await (await reader.abegin([prompt], 3, SAMPLING))[0].arest()
        return [chunk async for chunk in reader.astream(prompt, SAMPLING)][-1].generation
    except Exception as error:
        return error


async def run(reader: BaseReader, requests: int, concurrency: int, limit: float) -> list[Any]:
    """Ask all questions, so many at a time; None for one that does not end within the limit, in seconds."""
    free = asyncio.Semaphore(concurrency)

    async def one(number: int) -> Any:
        async with free:
            try:
                return await asyncio.wait_for(ask(reader, number), limit)
            except TimeoutError:
                return None

    return await asyncio.gather(*(one(number) for number in range(requests)))


def kind_of(result: Any, number: int, fault: str) -> str:
    """Return what became of a request."""
    if result is None:
        return "hung"
    if isinstance(result, SureragError):
        return f"error: {type(result).__name__}"
    if isinstance(result, Exception):
        return f"foreign error: {type(result).__name__} by '{fault}'"
    if result.finish != "stop":
        return f"marked: {result.finish}"
    right = f"Velm number {number} lies on the Orun."
    return "right" if result.text == right else f"wrong by '{fault}': {result.text[:40]!r}"


def main(arguments: list[str] | None = None) -> int:
    """Print what became of the requests of each client; return 1 if one hung or was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", "--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--bad", type=float, default=0.3, help="share of bad replies")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that one request may take")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--clients", default="core,langchain,llama_index")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    failed = False
    for name in options.clients.split(","):
        with Server(options.bad, options.seed) as server:
            started = time.monotonic()
            reader = readers(server.base_url)[name]
            results = asyncio.run(run(reader, options.requests, options.concurrency, options.limit))
            seconds = time.monotonic() - started
            served = server.served
        kinds = Counter(kind_of(one, n, served.get(str(n), "none")) for n, one in enumerate(results))
        lost = options.requests - len(results)
        failed |= bool(kinds["hung"] or lost)
        print(f"{name}: {options.requests} requests, {seconds:.0f} s, {len(served)} bad replies, {lost} lost")
        for kind, count in sorted(kinds.items(), key=lambda item: (-item[1], item[0])):
            print(f"  {count:5} {kind}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
