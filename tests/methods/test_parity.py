"""Every way of running a method gives the same: sync, async, many, iterated and streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from surerag import (
    ClusterCompressor,
    DenseEvaluator,
    DenseRefiner,
    FakeReader,
    LazyRAG,
    OpenAIReader,
    Passage,
    SemanticChunker,
    SePer,
    UncertaintyRewriter,
)
from surerag.component import AnsweringComponent, Component
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.messages import Generation, Result, Usage
from surerag.readers.fake import reply
from surerag.readers.protocol import Capabilities
from tests.servers.fake_openai import FakeOpenAI

LOCAL = Capabilities(logprobs=True, entropy="exact", begin="native", stream=True, local=True)
QUESTIONS = [f"Where was {name} born?" for name in ("Ada", "Bo", "Cy", "Di", "Eve", "Fay")]


def respond(prompt: str) -> Generation:
    """Be sure of half of all prompts, as a function of the prompt alone."""
    if prompt.startswith("Rewrite"):
        return reply(f"birthplace {len(prompt)}")
    unsure = len(prompt) % 2
    return reply(f"in Velm {len(prompt)}", entropy=0.1 + 2 * unsure, logprobs=-0.1 - unsure)


class Corpus:
    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        return [Passage(f"About {query}", id="1"), Passage("Velm is a town.", id="2")][:k]


def lazy_rag(gate: str) -> Callable[[FakeReader], Component[Any]]:
    return lambda reader: LazyRAG(reader, Corpus(), "A summary.", gate=gate)


def rewriter(**options: Any) -> Callable[[FakeReader], Component[Any]]:
    return lambda reader: UncertaintyRewriter(reader, Corpus(), **options)


METHODS: dict[str, tuple[Callable[[FakeReader], Component[Any]], Sequence[Any]]] = {
    "lazy_rag": (lazy_rag("entropy"), QUESTIONS),
    "lazy_rag by margin": (lazy_rag("margin"), QUESTIONS),
    "lazy_rag by samples": (lazy_rag("semantic_entropy"), QUESTIONS),
    "dynqr": (rewriter(), QUESTIONS),
    "dynqr by samples": (rewriter(metric="semantic_entropy", documents="expand", n_samples=2), QUESTIONS),
}
"""Each method: how to build it, and its cases; a case of several arguments is a tuple."""


TEXTS = (
    "Ada was born in Velm, they say.",
    "Bo came to Velm late in life.",
    "The Orun is a river of the north.",
)
ENCODER, ENTAILER = HashingEncoder(), ExactEntailer()
# Each question has texts of its own: rephrasings are shared between the questions of one component.
CONTEXTS = [
    (question, [Passage(f"{text} {question}", id=text) for text in TEXTS[: 1 + at % 3]])
    for at, question in enumerate(QUESTIONS)
]

MEASURES: dict[str, tuple[Callable[[FakeReader], Component[Any]], Sequence[Any]]] = {
    "seper": (
        lambda reader: SePer(reader, ENTAILER, n_samples=3, kernel="hard"),
        [(question, ["Velm"], passages) for question, passages in CONTEXTS],
    ),
    "edc2": (
        lambda reader: ClusterCompressor(reader, ENCODER, variant="copy", first_cluster_size=1, min_tokens=0),
        CONTEXTS,
    ),
    "edc2 of the most relevant": (
        lambda reader: ClusterCompressor(reader, ENCODER, top_n=1),
        [case for case in CONTEXTS if len(case[1]) > 1],  # one alone is asked about nowhere
    ),
    "dense": (lambda reader: DenseEvaluator(reader, ENTAILER, label_chunks=True), CONTEXTS),
    "refiner": (lambda reader: DenseRefiner(reader, ENTAILER, ENCODER, top_n=2, max_rounds=2), CONTEXTS),
}
"""Methods that work on a context; some judge besides, which the reader does not count."""


def comparable(result: Result) -> tuple[Result, Usage]:
    """Return a result and its usage, without the time that it took."""
    return result, replace(result.usage, seconds=0)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("method", [*METHODS, *MEASURES])
def test_every_way_of_running_gives_the_same(method: str, local: bool) -> None:
    build, cases = {**METHODS, **MEASURES}[method]

    def component() -> Component[Any]:
        return build(FakeReader(respond, capabilities=LOCAL if local else None))

    def arguments(case: Any) -> tuple[Any, ...]:
        return case if isinstance(case, tuple) else (case,)

    expected = [comparable(component().run(*arguments(case))) for case in cases]
    assert all(result.usage.requests and result.usage.seconds > 0 for result, _ in expected)
    assert [comparable(result) for result in component().run_many(cases)] == expected
    assert [comparable(result) for result in component().iter_many(iter(cases), window=2)] == expected

    async def asynchronous() -> None:
        one = component()
        assert [comparable(await one.arun(*arguments(case))) for case in cases] == expected
        assert [comparable(result) for result in await component().arun_many(cases)] == expected
        assert [comparable(result) async for result in component().aiter_many(cases, window=2)] == expected
        if isinstance(one, AnsweringComponent):
            for case, (result, usage) in zip(cases, expected, strict=True):
                stream = await one.astream(*arguments(case))
                assert "".join([piece async for piece in stream]) == result.answer
                assert comparable(stream.result) == (result, usage)

    asyncio.run(asynchronous())
    one = component()
    if isinstance(one, AnsweringComponent):
        for case, (result, usage) in zip(cases, expected, strict=True):
            with one.stream(*arguments(case)) as stream:
                assert "".join(stream) == result.answer
            assert comparable(stream.result) == (result, usage)


@pytest.mark.parametrize("method", METHODS)
def test_usage_is_what_the_reader_counts(method: str) -> None:
    build, [case, *_] = METHODS[method]
    result = build(reader := FakeReader(respond)).run(*(case if isinstance(case, tuple) else (case,)))
    assert result.usage.completion_tokens == reader.usage.completion_tokens
    asked = [call for call in reader.history if call.verb in ("generate", "begin")]
    calls = sum((call.sampling.n if call.sampling else 1) * len(call.prompts) for call in asked)
    assert result.usage.requests == calls


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("threshold", "least"), [(9.0, 20), (-1.0, 60)])
def test_prompts_of_streams_are_in_the_usage_read_to_their_end_or_not(
    threshold: float, least: int, streamed: bool
) -> None:
    with FakeOpenAI(["In Velm by the river"], logprob=-0.001) as server:
        reader = OpenAIReader("toy", base_url=server.base_url, api_key="k")
        rag = LazyRAG(reader, Corpus(), summaries="Ada was born in Velm.", n_tokens=2, threshold=threshold)
        if streamed:
            stream = rag.stream("Where?")
            list(stream)
        result = stream.result if streamed else rag.run("Where?")
    read = result.usage.prompt_tokens
    assert result.decision.retrieve == (threshold < 0)
    assert least < read == reader.usage.prompt_tokens


def test_every_way_of_chunking_gives_the_same() -> None:
    chunker = SemanticChunker(ENCODER, similarity_threshold=0.2, chunk_size=20)
    texts = [" ".join(TEXTS), "", TEXTS[0]]
    expected = [chunker.run(text) for text in texts]
    assert chunker.run_many(texts) == expected == asyncio.run(chunker.arun_many(texts))
    assert [asyncio.run(chunker.arun(text)) for text in texts] == expected
    documents = [Passage(text, id=str(at)) for at, text in enumerate(texts)]
    assert asyncio.run(chunker.apassages(documents)) == chunker.passages(documents)
