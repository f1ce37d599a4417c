"""Every fault of a server, by every way of asking: the right answer or a clear error, and soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from surerag.errors import ServiceError
from surerag.readers.openai import OpenAIReader
from surerag.readers.openai.limits import Limits
from surerag.types import Chunk, Generation, Sampling
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.faults import FAULTS, ONLY_CORE, SURVIVED
from tests.servers.toy_model import Script

ANSWER = "one two three four"
SAMPLING = Sampling(max_tokens=6)
LIMITS = Limits(deadline=0.2, max_bytes=2**22)
SOON = 15.0
"""Seconds within which every way of asking has ended, on a busy machine; a hang lasts longer."""


def core(url: str, api: Any) -> Any:
    return OpenAIReader(
        "toy",
        base_url=url,
        api=api,
        retries=0,
        timeout=2.0,
        deadline=LIMITS.deadline,
        max_bytes=LIMITS.max_bytes,
        top_logprobs=2,
    )


def llama_index(url: str, api: str) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    from llama_index_surerag import reader_from_llm

    llm = OpenAILike(
        model="toy", api_base=url, api_key="k", is_chat_model=api == "chat", max_retries=0, timeout=2.0
    )
    return reader_from_llm(llm, top_logprobs=2, deadline=LIMITS.deadline, max_bytes=LIMITS.max_bytes)


def langchain(url: str, api: str) -> Any:
    from langchain_openai import ChatOpenAI, OpenAI

    from langchain_surerag import reader_from_model

    kind = ChatOpenAI if api == "chat" else OpenAI
    model = kind(model="toy", base_url=url, api_key="k", max_retries=0, timeout=2.0)
    return reader_from_model(model, top_logprobs=2, deadline=LIMITS.deadline, max_bytes=LIMITS.max_bytes)


FAMILIES: dict[str, Callable[[str, str], Any]] = {
    "core": core,
    "llama-index": llama_index,
    "langchain": langchain,
}


def collected(chunks: Iterator[Chunk]) -> list[Generation]:
    *_, last = chunks
    assert last.generation is not None
    return [last.generation]


async def acollected(chunks: Any) -> list[Generation]:
    found = [chunk async for chunk in chunks]
    assert found[-1].generation is not None
    return [found[-1].generation]


async def abegun(reader: Any) -> list[Generation]:
    return list(await reader.afinish(await reader.abegin(["q"], 2, SAMPLING)))


WAYS: dict[str, Callable[[Any], list[Generation]]] = {
    "whole": lambda reader: reader.generate(["q"], SAMPLING)[0],
    "batch": lambda reader: [row[0] for row in reader.generate(["q", "r", "s"], SAMPLING)],
    "stream": lambda reader: collected(reader.stream("q", SAMPLING)),
    "begin": lambda reader: reader.finish(reader.begin(["q"], 2, SAMPLING)),
}


async def awhole(reader: Any) -> list[Generation]:
    return [row[0] for row in await reader.agenerate(["q", "r"], SAMPLING)]


AWAYS: dict[str, Callable[[Any], Awaitable[list[Generation]]]] = {
    "whole, async": awhole,
    "stream, async": lambda reader: acollected(reader.astream("q", SAMPLING)),
    "begin, async": abegun,
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(Script(lambda _: ANSWER)) as running:
        yield running


@pytest.fixture(
    scope="module", params=[(family, api) for family in FAMILIES for api in ("chat", "completions")]
)
def reader(request: pytest.FixtureRequest, server: FakeOpenAI) -> Iterator[Any]:
    family, api = request.param
    made = FAMILIES[family](server.base_url, api)
    made.family = family
    server.fault = None
    # Whatever is imported when first used is imported now.
    assert [answer.text for answer in WAYS["whole"](made)] == [ANSWER]
    return made


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_is_right_or_an_error_and_comes_soon(server: FakeOpenAI, reader: Any, fault: str) -> None:
    if fault in ONLY_CORE and reader.family != "core":
        pytest.skip("the client is its user's own")
    server.fault = FAULTS[fault]
    asked = Asked(reader, fault)
    for name, way in WAYS.items():
        with asked.checked(name):
            asked.found += way(reader)

    async def all_ways() -> None:
        for name, way in AWAYS.items():
            with asked.checked(name):
                asked.found += await way(reader)

    asyncio.run(all_ways())


class Asked:
    """What became of asking one reader."""

    def __init__(self, reader: Any, fault: str) -> None:
        self.found: list[Generation] = []
        self._fault = fault
        self._has_to_answer = reader.family == "core" and fault in SURVIVED
        # LangChain's users tell a provider's errors apart by their classes.
        provider = (openai.OpenAIError, httpx.HTTPError) if reader.family == "langchain" else ()
        self._errors = (ServiceError, *provider)

    @contextmanager
    def checked(self, way: str) -> Iterator[None]:
        """Let errors pass that may be, and look at answers."""
        self.found = []
        started, failed = time.monotonic(), None
        try:
            yield
        except self._errors as error:
            failed = error
        assert failed is None or (str(failed) and not self._has_to_answer), f"{way}: {failed!r}"
        for answer in self.found:
            assert_right(answer, self._fault)
        assert time.monotonic() - started < SOON, way


def assert_right(answer: Generation, fault: str) -> None:
    assert answer.trace is not None
    if fault == "ignores max_tokens" and answer.text != ANSWER:
        assert (answer.text, answer.finish, len(answer.trace)) == ("on on on on on on", "length", 6)
        return
    assert answer.text == ANSWER
    assert "".join(answer.trace.tokens) == ANSWER
    assert answer.trace.logprobs == (-0.1,) * 4
