"""What a certainty costs a plain chain and a plain engine: calls, tokens, and milliseconds of processor time.

    python -m benchmarks.certainty            # answers of 5 tokens; --tokens 100 for longer ones

The server runs in a process of its own and counts what it is asked. Times are those of this process, medians
of rounds in which all pipelines take turns; they depend on the machine, their differences less so.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

Pipelines = dict[str, Callable[[], object]]
QUESTION = "Where was Ada born?"
EACH, ROUNDS = 10, 15


def serve(pipe: Any, answer: str) -> None:
    """Serve one answer, and tell calls and tokens so far whenever asked."""
    from tests.servers.fake_openai import FakeOpenAI, split

    with FakeOpenAI([answer]) as server:
        pipe.send(server.base_url)
        while pipe.recv():
            texts = [str(turn["content"]) for one in server.requests for turn in one["messages"]]
            read, written = sum(len(split(text)) for text in texts), len(split(answer)) * len(server.requests)
            pipe.send((len(server.requests), read, written))


def langchain(url: str) -> Pipelines:
    """Return a plain chain, and the same chain with each kind of certainty."""
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnablePassthrough
    from langchain_openai import ChatOpenAI

    from langchain_surerag import CertaintyChain, CertaintyHandler, with_certainty

    prompt = ChatPromptTemplate.from_template("Context: {context}\nQuestion: {question}")
    model = ChatOpenAI(model="toy", base_url=url, api_key="k")  # type: ignore[arg-type]  # it takes a str

    def chain_of(llm: Any) -> Any:
        steps = {"context": lambda _: "Ada was born in Velm.", "question": RunnablePassthrough()}
        return steps | prompt | llm | StrOutputParser()

    plain, assured, handler = chain_of(model), chain_of(with_certainty(model)), CertaintyHandler()
    listing = chain_of(model.model_copy(update={"logprobs": True, "top_logprobs": 5}))
    observed, beside = {"callbacks": [handler]}, CertaintyChain(listing)
    return {
        "LangChain": lambda: plain.invoke(QUESTION),
        "  log-probabilities alone": lambda: listing.invoke(QUESTION),
        "  and a handler that does nothing": lambda: listing.invoke(
            QUESTION, {"callbacks": [BaseCallbackHandler()]}
        ),
        "  with_certainty(llm)": lambda: assured.invoke(QUESTION),
        "  CertaintyHandler()": lambda: listing.invoke(QUESTION, observed),  # type: ignore[arg-type]  # a config
        "  CertaintyChain(chain)": lambda: beside.invoke(QUESTION),
    }


def llama_index(url: str) -> Pipelines:
    """Return a plain query engine, and the same engine with a certainty."""
    from llama_index.core import Document, MockEmbedding, VectorStoreIndex
    from llama_index.llms.openai_like import OpenAILike  # noqa: TID251  # a benchmark is an application

    from llama_index_surerag import with_certainty

    index = VectorStoreIndex.from_documents(
        [Document(text="Ada was born in Velm.")], embed_model=MockEmbedding(8)
    )
    llm = OpenAILike(model="toy", api_base=url, api_key="k", is_chat_model=True)
    plain = index.as_query_engine(llm=llm)
    listing = index.as_query_engine(llm=llm.model_copy(update={"logprobs": True, "top_logprobs": 5}))
    pipelines: Pipelines = {
        "LlamaIndex": lambda: plain.query(QUESTION),
        "  log-probabilities alone": lambda: listing.query(QUESTION),
    }
    unobserved = measure_cpu(pipelines)["LlamaIndex"]
    print(f"LlamaIndex before with_certainty, which observes all of the process: {unobserved:.2f} ms")
    assured = index.as_query_engine(llm=with_certainty(llm))
    return {**pipelines, "  with_certainty(llm)": lambda: assured.query(QUESTION)}


def measure_cpu(pipelines: Pipelines) -> dict[str, float]:
    """Return milliseconds of processor time an answer, the median of rounds."""
    times: dict[str, list[float]] = {name: [] for name in pipelines}
    for ask in pipelines.values():
        ask()
    for _ in range(ROUNDS):
        for name, ask in pipelines.items():
            start = time.process_time()
            for _ in range(EACH):
                ask()
            times[name].append((time.process_time() - start) / EACH * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=5, help="tokens of an answer")
    tokens = parser.parse_args().tokens
    here, there = multiprocessing.get_context("spawn").Pipe()
    answer = " ".join(["Velm"] * tokens)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, answer), daemon=True)
    server.start()
    url = here.recv()

    def spent() -> tuple[int, ...]:
        here.send(True)
        counts: tuple[int, ...] = here.recv()
        return counts

    table = Table("Pipeline", "calls", "tokens read", "written", "ms", title=f"An answer of {tokens} tokens")
    for make in (langchain, llama_index):
        pipelines = make(url)
        times = measure_cpu(pipelines)
        for name, ask in pipelines.items():
            before = spent()
            ask()
            used = [str(after - earlier) for after, earlier in zip(spent(), before, strict=True)]
            table.add_row(name, *used, f"{times[name]:.2f}")
    Console().print(table)
    here.send(False)


if __name__ == "__main__":
    main()
