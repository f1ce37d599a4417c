"""Prompt tokens that a server had in its cache are counted, wherever it tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from surerag.journal import Memory
from surerag.recording import RecordedReader
from tests.servers.fake_openai import FakeOpenAI, Quirks
from tests.servers.toy_model import Script, split

from surerag import ClusterCompressor, DenseEvaluator, LazyRAG, Passage, UncertaintyRewriter
from surerag.entailment import ExactEntailer
from surerag.measures import api_cost
from surerag.messages import SamplingParams, Usage
from surerag.readers.hosted import OpenAIReader
from surerag.readers.hosted.parse import usage_of

SHARED = "Ada the painter was born in Velm and left it in spring. " * 3
FIRST, SECOND = f"{SHARED}Where?", f"{SHARED}When?"
COMMON, WHOLE = len(split(SHARED)), len(split(SECOND))
FOUND = [Passage("Ada the painter was born in Velm, they say, long ago.", id="a"), Passage("Bo.", id="b")]


@pytest.fixture
def caching() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(Script(lambda _: "in Velm"), Quirks(prefix_cache=True)) as server:
        yield server


def reader_of(server: FakeOpenAI, **settings: Any) -> OpenAIReader:
    return OpenAIReader("toy", base_url=server.base_url, max_concurrency=1, **settings)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_what_a_server_had_in_its_cache_is_counted(caching: FakeOpenAI, api: Any) -> None:
    reader = reader_of(caching, api=api)
    [[first], [second]] = reader.generate([FIRST, SECOND], SamplingParams(trace="none"))
    assert (first.cached_tokens, second.cached_tokens, second.prompt_tokens) == (0, COMMON, WHOLE)
    *_, last = reader.stream(SECOND, SamplingParams(trace="none"))
    assert last.generation is not None
    assert last.generation.cached_tokens == WHOLE
    begun = reader.begin([FIRST], 1, SamplingParams(trace="none"))
    [finished] = reader.finish(begun)
    assert finished.cached_tokens == len(split(FIRST))
    assert reader.usage.cached_tokens == COMMON + WHOLE + len(split(FIRST))
    several = reader.generate([SECOND], SamplingParams(n=3, temperature=1.0, trace="none"))[0]
    assert {one.cached_tokens for one in several} == {WHOLE}


def test_what_is_replayed_tells_what_was_counted(caching: FakeOpenAI) -> None:
    answers = Memory()
    for _ in range(2):
        reader = RecordedReader(reader_of(caching), answers)
        found = [
            row[0].cached_tokens for row in reader.generate([FIRST, SECOND], SamplingParams(trace="none"))
        ]
        assert sorted(found) == [0, COMMON]


@pytest.mark.parametrize(
    ("told", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 80}}, 80),
        ({"prompt_tokens_details": None}, 0),
        ({"prompt_tokens_details": {"cached_tokens": None}}, 0),
        ({"input_tokens_details": {"cached_tokens": 64}}, 64),
        ({"prompt_cache_hit_tokens": 70, "prompt_cache_miss_tokens": 30}, 70),
        ({"cached_tokens": 12}, 12),
        ({"prompt_tokens_details": {"cached_tokens": 90}, "cache_read_input_tokens": 90}, 90),
        ({"prompt_tokens_details": {"cached_tokens": 101}}, 100),
        ({"prompt_tokens_details": {"cached_tokens": "many"}}, 0),
        ({}, 0),
    ],
)
def test_services_tell_it_in_different_places(told: dict[str, Any], cached: int) -> None:
    assert usage_of({"usage": {"prompt_tokens": 100, "completion_tokens": 5, **told}}) == Usage(
        1, 100, 5, cached_tokens=cached
    )


class Corpus:
    """Finds the same for every query."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return FOUND


def test_results_tell_what_was_cached(caching: FakeOpenAI) -> None:
    reader = reader_of(caching)
    spent = [reader.usage]

    def cached_since() -> int:
        spent.append(reader.usage)
        return spent[-1].cached_tokens - spent[-2].cached_tokens

    compressor = ClusterCompressor(reader, clustering="single", pass_below=0)
    compression = compressor.run("Where was Ada born?", FOUND)
    assert compression.cached_tokens == cached_since() > 0
    assert (
        compression.cost(1.0, 2.0, 0.1)
        < compression.cost(1.0, 2.0)
        == api_cost(compression.prompt_tokens, compression.completion_tokens, 1.0, 2.0)
    )
    dense = DenseEvaluator(reader, ExactEntailer()).run("Where was Ada born?", FOUND)
    assert dense.calls.cached_tokens == cached_since() > 0
    rewriter = UncertaintyRewriter(
        reader, Corpus(), metric="disagreement", n_samples=2, threshold=-1.0
    )  # fmt: skip
    assert rewriter.run("Where was Ada born?").costs.cached_tokens == cached_since() > 0
    rag = LazyRAG(reader, Corpus(), "A summary.", gate="disagreement", threshold=0.0)
    assert rag.run("Where was Ada born?").cached_tokens == cached_since() == 0
    again = rag.run("Where was Ada born?")
    assert again.cached_tokens == again.prompt_tokens == cached_since() > 0


def test_usage_adds_up() -> None:
    assert Usage(1, 10, 2, 0, 8) + Usage(1, 5) == Usage(2, 15, 2, 0, 8)


def test_tokens_in_the_cache_are_among_those_that_went_in() -> None:
    with pytest.raises(ValueError, match="among"):
        api_cost(10, 0, 1.0, 1.0, cached_tokens=11)
    with pytest.raises(ValueError, match="0 or more"):
        api_cost(10, 0, 1.0, 1.0, cached_tokens=1, cached_price=-1.0)
