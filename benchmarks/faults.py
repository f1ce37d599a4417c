"""Thousands of questions at once to a server that fails, quotes its input and writes tags, through L-RAG.

    python -m benchmarks.faults -n 10000 --concurrency 200

Every question has a kind: most are answered well, the others meet one fault each, or a gateway that refuses
them and quotes their words, or an answer with marks of thoughts in it. What a question gets among the others
is compared with what one of its kind gets alone, of a model of its own. A request that does not end is hung.
The server runs in this process, on the loopback address alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import re
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from surerag import LazyRAG, OpenAIReader, Passage
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.faults import FAULTS

Ask = Callable[[str], Awaitable[tuple[str, ...]]]
"""Answers a question: the words of the answer and the decision, or the error's name."""

_ANSWER = "Velm number {} lies on the Orun."
_SLOW = {"drips", "comments for ever", "flood", "redirects for ever"}
"""Faults that end with the time-out alone."""
_QUOTED = (
    "max_tokens is at most 3",
    "logprobs are not supported",
    "'seed' is an unknown parameter",
    "`temperature` is deprecated for this model",
    "use 'max_completion_tokens', max_tokens is unsupported",
    "{'loc': ('body', 'temperature'), 'msg': 'Extra inputs are not permitted'}",
    "the stop sequence is invalid and cannot be used",
    "n and top_logprobs cannot both be set",
)
"""What users ask about, in words of refusals."""
_TAGGED = (
    "The tag </think> ends number {}.",
    "<think>Number {}?</think> Velm {}.",
    "<think> begins what {} thinks.",
    "[THINK] Hm. [/THINK] Velm {}.",
    "Number {} <think>is</think> Velm.",
    "{}? </think> Velm.",
)
_SUMMARY = "Velm lies on the Orun."


class Kind(NamedTuple):
    """A kind of question: what is asked besides its number, and what the server does."""

    name: str
    words: str = ""
    fault: str = ""
    answer: str = _ANSWER
    refused: bool = False


PLAIN = Kind("plain")
KINDS = (
    *(Kind(name, fault=name) for name in sorted(FAULTS.keys() - _SLOW)),
    *(Kind(f"quotes {words!r}", words, refused=True) for words in _QUOTED),
    *(Kind(f"asks {words!r}", words) for words in _QUOTED),
    *(Kind(f"writes {answer!r}", answer=answer) for answer in _TAGGED),
)


def kind_of(number: int, bad: float) -> Kind:
    """Return the kind of a question: one of :data:`KINDS` for so many of a hundred, in turn."""
    place, share = divmod(number, 10)
    return KINDS[(place * 3 + share) % len(KINDS)] if share < round(10 * bad) else PLAIN


def question_of(kind: Kind, number: int) -> str:
    """Return the question; its kind's place and its number stand in it."""
    place = KINDS.index(kind) if kind in KINDS else len(KINDS)
    return f"Where is Velm? {kind.words} (kind {place}, number {number})"


class Server(FakeOpenAI):
    """Answers by the kind and the number that stand in a question."""

    def __init__(self) -> None:
        super().__init__(self._answer, logprob=-0.01, check=self._complaint)

    def enter(self, request: dict[str, Any]) -> str | None:
        """Note a request, and return the fault of its kind."""
        super().enter(request)
        self.requests.clear()
        self.streams.clear()
        return _read(request)[0].fault or None

    @staticmethod
    def _answer(prompt: str) -> str:
        kind, number = _found(prompt)
        return kind.answer.replace("{}", number)

    @staticmethod
    def _complaint(body: dict[str, Any]) -> dict[str, Any] | None:
        if not _read(body)[0].refused:
            return None
        content = body["messages"][-1]["content"]
        return {"error": {"message": f"[{{'msg': 'content is invalid', 'input': {content!r}}}]"}}


def _read(body: dict[str, Any]) -> tuple[Kind, str]:
    return _found(str(body["messages"][-1]["content"]))


def _found(prompt: str) -> tuple[Kind, str]:
    place, number = re.findall(r"kind (\d+), number (\d+)", prompt)[-1]
    return (*KINDS, PLAIN)[int(place)], number


class _Library:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage("Velm lies by the sea.", id="velm")]


def core(url: str) -> Ask:
    """Return L-RAG of the core."""
    reader = OpenAIReader("toy", base_url=url, api_key="k", max_retries=1, max_concurrency=200, timeout=60)
    rag = LazyRAG(reader, _Library(), summaries=_SUMMARY)

    async def ask(question: str) -> tuple[str, ...]:
        result = await rag.arun(question)
        return result.answer, str(result.decision.retrieve), result.decision.gate

    return ask


def langchain(url: str) -> Ask:
    """Return L-RAG of LangChain."""
    from langchain_core.documents import Document
    from langchain_core.runnables import RunnableLambda
    from langchain_openai import ChatOpenAI

    from langchain_surerag import LazyRetrievalChain

    settings: dict[str, Any] = {"base_url": url, "api_key": "k", "max_retries": 1, "timeout": 60}
    search = RunnableLambda(lambda _: [Document("Velm lies by the sea.")])
    chain = LazyRetrievalChain(ChatOpenAI(model="toy", **settings), search, _SUMMARY)

    async def ask(question: str) -> tuple[str, ...]:
        output: Any = await chain.ainvoke(question)
        return output["answer"], str(output["decision"]["retrieve"]), output["decision"]["gate"]

    return ask


def llama_index(url: str) -> Ask:
    """Return L-RAG of LlamaIndex."""
    from llama_index.core import Document, MockEmbedding, VectorStoreIndex
    from llama_index.llms.openai_like import OpenAILike  # noqa: TID251  # no part of the package

    from llama_index_surerag import LazyRetrievalQueryEngine

    settings: dict[str, Any] = {
        "is_chat_model": True,
        "context_window": 8000,
        "max_retries": 1,
        "timeout": 60,
    }
    llm, encoder = OpenAILike(model="toy", api_base=url, api_key="k", **settings), MockEmbedding(4)
    index = VectorStoreIndex.from_documents([Document(text="Velm lies by the sea.")], embed_model=encoder)
    engine = LazyRetrievalQueryEngine.from_args(index, llm, summaries=_SUMMARY, embed_model=encoder)

    async def ask(question: str) -> tuple[str, ...]:
        response: Any = await engine.aquery(question)
        return str(response), str(response.metadata["retrieve"]), response.metadata["gate"]

    return ask


CLIENTS: dict[str, Callable[[str], Ask]] = {"core": core, "langchain": langchain, "llama_index": llama_index}


class Outcome(NamedTuple):
    """What became of all questions through one client.

    Attributes:
        hung: Kinds of the questions that did not end within the limit.
        different: Questions that got another thing than alone, with both.
        kinds: How often each thing came.
        seconds: How long all took together.
        grown: How much the process grew, in MiB.
    """

    asked: int
    hung: list[str]
    different: list[tuple[str, tuple[str, ...], tuple[str, ...]]]
    kinds: Counter[str]
    seconds: float
    grown: float

    @property
    def lost(self) -> int:
        """Questions that came back with nothing."""
        return self.asked - len(self.hung) - self.kinds.total()


async def _outcome(ask: Ask, kind: Kind, number: int, limit: float) -> tuple[str, ...] | None:
    """Return what a question gets, its number left out; None if it does not end."""
    try:
        answer, *decision = await asyncio.wait_for(ask(question_of(kind, number)), limit)
    except TimeoutError:
        return None
    except Exception as error:
        return ("error", type(error).__name__)
    return (answer.replace(str(number), "#"), *decision)


async def run(client: str, requests: int, concurrency: int, bad: float, limit: float) -> Outcome:
    """Ask one question of each kind alone, then all at once, and compare."""
    with Server() as server:
        make = CLIENTS[client]
        kinds = dict.fromkeys(kind_of(number, bad) for number in range(requests))
        alone = {kind: await _outcome(make(server.base_url), kind, 1_000_000, limit) for kind in kinds}
        free, ask = asyncio.Semaphore(concurrency), make(server.base_url)

        async def one(number: int) -> tuple[str, ...] | None:
            async with free:
                return await _outcome(ask, kind_of(number, bad), 1_000_000 + number, limit)

        for number in range(min(requests, 50)):  # what is loaded once is no growth
            await one(number)
        gc.collect()
        before, started = _memory(), time.monotonic()
        results = await asyncio.gather(*(one(number) for number in range(requests)))
        seconds = time.monotonic() - started
        gc.collect()
        grown = _memory() - before
    different = [
        (kind_of(number, bad).name, expected, got)
        for number, got in enumerate(results)
        if got is not None and (expected := alone[kind_of(number, bad)] or ()) != got
    ]
    names = Counter(got[1] if got[0] == "error" else "answer" for got in results if got is not None)
    hung = [kind_of(number, bad).name for number, got in enumerate(results) if got is None]
    return Outcome(requests, hung, different, names, seconds, grown)


def _memory() -> float:
    """Return the size of this process at this moment, in MiB; its peak where that is all there is to know."""
    try:
        with open("/proc/self/statm", encoding="ascii") as status:  # noqa: PTH123  # a file of the kernel
            return int(status.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main(arguments: list[str] | None = None) -> int:
    """Print what became of the questions of each client; return 1 if one hung, was lost, or is different."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", "--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--bad", type=float, default=0.3, help="share of questions that meet something bad")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that one question may take")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    failed = False
    for client in options.clients.split(","):
        outcome = asyncio.run(run(client, options.requests, options.concurrency, options.bad, options.limit))
        failed |= bool(outcome.hung or outcome.lost or outcome.different)
        print(
            f"{client}: {outcome.asked} questions in {outcome.seconds:.0f} s, {len(outcome.hung)} hung, "
            f"{outcome.lost} lost, {len(outcome.different)} different from alone, {outcome.grown:+.0f} MiB"
        )
        for name, count in outcome.kinds.most_common():
            print(f"  {count:6} {name}")
        for name, count in Counter(outcome.hung).most_common():
            print(f"  hung: {count} of {name}")
        for name, expected, got in outcome.different[:10]:
            print(f"  different: {name}: alone {expected}, here {got}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
