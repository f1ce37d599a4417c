"""A whole compressor against LangChain's LLMChainExtractor: calls, tokens, time.

Run ``python -m benchmarks.compression``. Both ask the same server, which takes 200 ms a call and quotes from
a prompt the sentences that name what is asked about; both get the same documents of an invented world, half
of which say in other words what others say.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.documents import Document
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from langchain_surerag import ClusterCompressor
from surerag.encoders import HashingEncoder
from surerag.prompts import NOTHING_TO_EXTRACT
from surerag.text import estimated_tokens
from world import World
from tests.servers.fake_openai import FakeOpenAI, Request
from tests.servers.toy_model import Script

LATENCY = 0.2
"""Seconds that the server takes for a call."""


class Measured(NamedTuple):
    """What one compressor took for one question."""

    calls: int
    prompt_tokens: int
    context_tokens: int
    seconds: float


class Contender(NamedTuple):
    """A compressor, and how to use it."""

    name: str
    run: Callable[[Sequence[Document], str], Sequence[Document]]


def quoting(entity: str) -> Script:
    """Return a model that quotes sentences about an entity, 200 ms after it was asked."""

    def answer(prompt: str) -> str:
        time.sleep(LATENCY)
        body = re.split(r"Documents:|>>>", prompt, maxsplit=1)[-1]
        sentences = re.split(r"(?<=\.)\s+", re.sub(r"\[\d+\]", "", body))
        found = dict.fromkeys(sentence.strip() for sentence in sentences if entity in sentence)
        if not found:
            return NOTHING_TO_EXTRACT if "Documents:" in prompt else "NO_OUTPUT"
        return " ".join(found)

    return Script(answer)


def measure(contender: Contender, documents: Sequence[Document], query: str, server: FakeOpenAI) -> Measured:
    """Compress once; count what the server was asked and what came out."""
    server.requests.clear()
    started = time.perf_counter()
    found = contender.run(documents, query)
    seconds = time.perf_counter() - started
    return Measured(
        calls=len(server.requests),
        prompt_tokens=sum(estimated_tokens(_prompt(request)) for request in server.requests),
        context_tokens=sum(estimated_tokens(document.page_content) for document in found),
        seconds=seconds,
    )


def _prompt(request: Request) -> str:
    return "\n".join(str(message["content"]) for message in request.body["messages"])


def contest(top_k: int) -> Table:
    """Compare on one question with ``top_k`` documents."""
    world = World(seed=1)
    question = world.questions(1)[0]
    passages = world.context(question, top_k, noise=0.5, redundancy=0.5)
    documents = [Document(passage.text, id=passage.id) for passage in passages]
    table = Table("compressor", "calls", "tokens asked", "context tokens", "seconds", title=f"top-k {top_k}")
    # One loop for all: an HTTP client's connections belong to the loop that opened them.
    with FakeOpenAI(quoting(question.entity)) as server, asyncio.Runner() as loop:
        llm = ChatOpenAI(model="quoting", base_url=server.base_url, api_key=SecretStr("none"), temperature=0)
        ours = ClusterCompressor(llm, HashingEncoder())
        theirs = LLMChainExtractor.from_llm(llm)
        for contender in (
            Contender("LLMChainExtractor", theirs.compress_documents),
            Contender("LLMChainExtractor, async", lambda d, q: loop.run(theirs.acompress_documents(d, q))),
            Contender("ClusterCompressor", ours.compress_documents),
            Contender("ClusterCompressor, async", lambda d, q: loop.run(ours.acompress_documents(d, q))),
        ):
            measure(contender, documents, question.text, server)
            found = measure(contender, documents, question.text, server)
            table.add_row(
                contender.name,
                str(found.calls),
                str(found.prompt_tokens),
                str(found.context_tokens),
                f"{found.seconds:.2f}",
            )
    before = sum(estimated_tokens(document.page_content) for document in documents)
    table.caption = f"{before} tokens before compression; tokens are estimated"
    return table


def main() -> None:
    """Measure, and print a table for each top-k."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--top-k", type=int, nargs="+", default=[5, 20, 100])
    for top_k in parser.parse_args().top_k:
        Console().print(contest(top_k))


if __name__ == "__main__":
    main()
