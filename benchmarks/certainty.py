"""What a certainty costs a plain chain and a plain engine: calls, tokens, and milliseconds of processor time.

    python -m benchmarks.certainty            # answers of 5, 30 and 200 tokens, whole and streamed

The server runs in a process of its own, lists five alternatives to each token, and counts what it is asked.
Times are those of this process. All pipelines take turns, and what a row adds is the median of its
differences from the row that it is compared with, turn by turn: so other work on the machine matters little.
"Of it ours" is what is added to the same pipeline with log-probabilities alone, which its client reads.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

Pipelines = dict[str, Callable[[], object]]
QUESTION = "Where was Ada born?"
PLAIN, LISTING = "plain", "  log-probabilities alone"


def serve(pipe: Any, tokens: int) -> None:
    """Serve one answer, and tell calls and tokens so far whenever asked."""
    from tests.servers.fake_openai import END, FakeOpenAI, split

    class Server(FakeOpenAI):
        def say(self, *_: Any) -> Any:
            likeliest = {" Velm": 0.9, " Orun": 0.05, " Tarn": 0.02, " Ada": 0.01, " red": 0.01}
            return [" Velm"] * tokens + [END], [likeliest] * tokens + [{END: 1.0}], "stop"

    with Server() as server:
        pipe.send(server.base_url)
        while pipe.recv():
            texts = [str(turn["content"]) for one in server.requests for turn in one["messages"]]
            read, written = sum(len(split(text)) for text in texts), tokens * len(server.requests)
            pipe.send((len(server.requests), read, written))


def langchain(url: str, *, streams: bool) -> Pipelines:
    """Return a plain chain, and the same chain with each kind of certainty."""
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnablePassthrough
    from langchain_openai import ChatOpenAI

    from langchain_surerag import CertaintyChain, CertaintyHandler, with_certainty

    prompt = ChatPromptTemplate.from_template("Context: {context}\nQuestion: {question}")
    model = ChatOpenAI(model="toy", base_url=url, api_key="k")  # type: ignore[arg-type]  # it takes a str

    def asking(llm: Any, wrap: Any = None, **config: Any) -> Callable[[], object]:
        steps = {"context": lambda _: "Ada was born in Velm.", "question": RunnablePassthrough()}
        chain = steps | prompt | llm | StrOutputParser()
        chain = wrap(chain) if wrap else chain
        if streams:
            return lambda: list(chain.stream(QUESTION, config))
        return lambda: chain.invoke(QUESTION, config)

    listing = model.model_copy(update={"logprobs": True, "top_logprobs": 5})
    return {
        PLAIN: asking(model),
        LISTING: asking(listing),
        "  with_certainty(llm)": asking(with_certainty(model)),
        "  CertaintyHandler()": asking(listing, callbacks=[CertaintyHandler()]),
        "  CertaintyChain(chain)": asking(listing, CertaintyChain),
    }


def llama_index(url: str, *, streams: bool) -> Pipelines:
    """Return a plain query engine, and the same engine with a certainty."""
    from llama_index.core import Document, MockEmbedding, VectorStoreIndex
    from llama_index.llms.openai_like import OpenAILike  # noqa: TID251  # a benchmark is an application

    from llama_index_surerag import with_certainty

    index = VectorStoreIndex.from_documents(
        [Document(text="Ada was born in Velm.")], embed_model=MockEmbedding(8)
    )
    llm = OpenAILike(model="toy", api_base=url, api_key="k", is_chat_model=True)

    def asking(llm: Any, seen: Any) -> Callable[[], object]:
        engine: Any = index.as_query_engine(llm=llm, streaming=streams)

        def ask() -> object:
            with seen():
                response = engine.query(QUESTION)
                return list(response.response_gen) if streams else response

        return ask

    return {
        PLAIN: asking(llm, unobserved),
        LISTING: asking(llm.model_copy(update={"logprobs": True, "top_logprobs": 5}), unobserved),
        "  with_certainty(llm)": asking(with_certainty(llm), observed),
    }


@contextmanager
def unobserved() -> Iterator[None]:
    """Have LlamaIndex report to nobody within it, as before the first ``with_certainty``."""
    from llama_index_instrumentation import root_dispatcher

    handlers = root_dispatcher.span_handlers, root_dispatcher.event_handlers
    kept = [list(each) for each in handlers]
    for each in handlers:
        each[:] = [one for one in each if "surerag" not in type(one).__module__]
    yield
    for each, before in zip(handlers, kept, strict=True):
        each[:] = before


@contextmanager
def observed() -> Iterator[None]:
    """Change nothing."""
    yield


def measure_cpu(pipelines: Pipelines, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of processor time of each answer, of all pipelines in turns."""
    times: dict[str, list[float]] = {name: [] for name in pipelines}
    for turn in range(rounds + 5):
        for name, ask in pipelines.items():
            start = time.process_time()
            ask()
            if turn >= 5:  # the first ones build what is kept
                times[name].append((time.process_time() - start) * 1000)
    return times


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, nargs="+", default=[5, 30, 200], help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=60, help="answers of each pipeline")
    parser.add_argument("--rows", default="", help="only rows of frameworks with this in their names")
    arguments = parser.parse_args()
    titles = ["", "tokens", "calls", "read", "written", "ms", "added", "of it ours"]
    table = Table(*titles, title="Processor time of an answer")
    for tokens in arguments.tokens:
        measure_length(table, tokens, arguments.rounds, arguments.rows)
    Console().print(table)


def measure_length(table: Table, tokens: int, rounds: int, rows: str) -> None:
    """Add the rows of answers of one length to a table."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, tokens), daemon=True)
    server.start()
    url = here.recv()

    def spent() -> tuple[int, ...]:
        here.send(True)
        counts: tuple[int, ...] = here.recv()
        return counts

    for make in (langchain, llama_index):
        for streams in (False, True):
            label = f"{make.__name__}{', streamed' if streams else ''}"
            if rows not in label:
                continue
            pipelines = make(url, streams=streams)
            times = measure_cpu(pipelines, rounds)
            for name, ask in pipelines.items():
                before = spent()
                ask()
                used = [str(after - earlier) for after, earlier in zip(spent(), before, strict=True)]
                added = [_added(times[name], times[other]) for other in (PLAIN, LISTING)]
                added = added if name not in (PLAIN, LISTING) else [added[0], ""]
                shown = label if name == PLAIN else name
                table.add_row(shown, str(tokens), *used, f"{statistics.median(times[name]):.2f}", *added)
    here.send(False)


def _added(times: list[float], others: list[float]) -> str:
    differences = [one - other for one, other in zip(times, others, strict=True)]
    return f"{statistics.median(differences):+.2f}" if any(differences) else ""


if __name__ == "__main__":
    main()
