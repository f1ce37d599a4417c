"""A process of its own that opens streams and drops them, for tests that must not hang themselves.

    python -m tests.servers.abandoning KIND COUNT BASE_URL

The garbage collector runs at almost every allocation, so that it also runs where the HTTP client holds the
lock of its connections. A watchdog prints all stacks and ends the process if it hangs. At the end it
prints how many sockets were open at most, and how many are left.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.soak.vitals import sockets

PATIENCE = 60.0
"""Seconds without a single stream opened, before a process counts as hanging."""


class Held:
    """What a user's own code may do: keep a stream in a cycle, which only the collector takes apart."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.me = self


class Abandoning(NamedTuple):
    """Opens a stream and reads its beginning; what it returns is dropped by the caller."""

    sync: Callable[[], Any] | None = None
    asynchronous: Callable[[], Awaitable[Any]] | None = None


def core_reader(url: str) -> Any:
    from surerag.readers.openai import OpenAIReader

    return OpenAIReader("toy", base_url=url, api_key="k", top_logprobs=2)


def llama_llm(url: str, **settings: Any) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(model="toy", api_base=url, api_key="k", is_chat_model=True, max_retries=0, **settings)


def chat_model(url: str) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model="toy", base_url=url, api_key="k", max_retries=0)


def completions_model(url: str) -> Any:
    from langchain_openai import OpenAI

    return OpenAI(model="toy", base_url=url, api_key="k", max_retries=0)


def first(stream: Any) -> Any:
    iterator = iter(stream)
    next(iterator)
    return iterator


async def afirst(stream: Any) -> Any:
    iterator = aiter(stream)
    await anext(iterator)
    return iterator


def over_reader(reader: Any) -> dict[str, Abandoning]:
    """Every way to leave a reader's stream."""
    from surerag.types import Sampling

    sampling = Sampling()

    async def afinishing() -> Any:
        return await afirst(reader.afinish_stream((await reader.abegin(["q"], 2, sampling))[0]))

    kinds = {
        "stream": Abandoning(
            lambda: first(reader.stream("q", sampling)),
            lambda: afirst(reader.astream("q", sampling)),
        )
    }
    if reader.capabilities.begin == "native":
        kinds["begin"] = Abandoning(
            lambda: reader.begin(["q"], 2, sampling), lambda: reader.abegin(["q"], 2, sampling)
        )
        kinds["finish"] = Abandoning(
            lambda: first(reader.finish_stream(reader.begin(["q"], 2, sampling)[0])), afinishing
        )
    return kinds


def gated() -> Any:
    """A method that begins an answer, accepts it, and finishes it as a stream."""
    from surerag.effects import begin, finish
    from surerag.types import Sampling

    begun = yield from begin(["q"], 2, Sampling())
    yield from finish(begun, answer=True)


def driven(reader: Any) -> dict[str, Abandoning]:
    """A method's answer as a stream, read and unread."""
    from surerag.drivers import astream, stream
    from surerag.services import Services

    services = Services(reader)

    async def begun() -> Any:
        return await afirst(await astream(gated(), services))

    return {
        "method": Abandoning(lambda: first(stream(gated(), services)), begun),
        "method unread": Abandoning(lambda: stream(gated(), services), lambda: astream(gated(), services)),
    }


def llama_engine(url: str) -> Abandoning:
    """LlamaIndex's query engine, its answer streamed."""
    from llama_index.core import Document, VectorStoreIndex
    from llama_index.core.embeddings import MockEmbedding

    from llama_index_surerag import LazyRetrievalQueryEngine

    index = VectorStoreIndex.from_documents(
        [Document(text="Ada was born in Velm.")], embed_model=MockEmbedding(embed_dim=4)
    )
    engine = LazyRetrievalQueryEngine.from_args(
        index, llama_llm(url), summaries="Ada was born in Velm.", streaming=True
    )

    async def opened() -> Any:
        return await afirst((await engine.aquery("Where?")).async_response_gen())

    return Abandoning(lambda: first(engine.query("Where?").response_gen), opened)


def chain(url: str) -> Abandoning:
    """LangChain's chain, streamed."""
    from langchain_core.documents import Document
    from langchain_core.runnables import RunnableLambda

    from langchain_surerag import LazyRetrievalChain

    lazy = LazyRetrievalChain(
        chat_model(url),
        RunnableLambda(lambda _: [Document("Ada was born in Velm.")]),
        "Ada was born in Velm.",
    )
    return Abandoning(lambda: first(lazy.stream("Where?")), lambda: afirst(lazy.astream("Where?")))


def kinds_of(family: str, url: str) -> dict[str, Abandoning]:
    """All ways to abandon a stream over one kind of client."""
    if family == "core":
        reader = core_reader(url)
        return over_reader(reader) | driven(reader)
    if family == "llama-index":
        from llama_index_surerag import reader_from_llm

        text = reader_from_llm(llama_llm(url), logprobs=False)
        return {
            **over_reader(reader_from_llm(llama_llm(url), top_logprobs=2)),
            **{f"text {name}": kind for name, kind in over_reader(text).items()},
            "engine": llama_engine(url),
        }
    from langchain_surerag import reader_from_model

    return {
        **over_reader(reader_from_model(chat_model(url), top_logprobs=2)),
        **{
            f"{name} {kind}": way
            for name, reader in (
                ("completions", reader_from_model(completions_model(url), top_logprobs=2)),
                ("text", reader_from_model(chat_model(url), logprobs=False)),
                ("text completions", reader_from_model(completions_model(url), logprobs=False)),
            )
            for kind, way in over_reader(reader).items()
        },
        "chain": chain(url),
    }


@contextmanager
def collecting() -> Iterator[None]:
    """Let the collector run at almost every allocation."""
    usual = gc.get_threshold()
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class Tally:
    """How many sockets there were at most."""

    def __init__(self) -> None:
        self.most = 0

    def step(self) -> None:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        self.most = max(self.most, sockets())


def dropped(way: Callable[[], Any], times: int, tally: Tally) -> None:
    for number in range(times):
        tally.step()
        stream = way()
        if number % 4 == 3:
            Held(stream)
        del stream


async def adropped(way: Callable[[], Awaitable[Any]], times: int, tally: Tally) -> None:
    for number in range(times):
        tally.step()
        stream = await way()
        if number % 4 == 3:
            Held(stream)
        del stream
        await asyncio.sleep(0)
    # An event loop that ends closes generators within each other all at once, and complains of it.
    await asyncio.sleep(0.05)


def settled(allowed: int) -> int:
    """Count sockets once those that were just handed over are closed."""
    deadline = time.monotonic() + 5
    while (left := sockets()) > allowed and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def main(family: str, times: int, url: str) -> None:
    ways = kinds_of(family, url)
    failed = False
    for name, way in ways.items():
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        for mode in ("sync", "async"):
            tally, before, started = Tally(), sockets(), time.monotonic()
            with collecting():
                if mode == "sync":
                    dropped(way.sync, times, tally)
                else:
                    asyncio.run(adropped(way.asynchronous, times, tally))
            left = settled(before + 2)
            print(
                f"{family} {name} {mode}: {times} abandoned, at most {tally.most - before} sockets, "
                f"{left - before} left, {time.monotonic() - started:.1f} s",
                flush=True,
            )
            failed |= left - before > 2 or tally.most - before > 20
    faulthandler.cancel_dump_traceback_later()
    # Whatever else the interpreter would wait for at its end is no matter of this process.
    sys.stdout.flush()
    os._exit(int(failed))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
