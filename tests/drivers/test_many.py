"""Many programs: merged, in order, each on its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import numpy as np
import pytest
from numpy.typing import NDArray

from surerag.drivers import run, run_many
from surerag.effects import Program, begin, embed, entail, finish, generate, retrieve, score
from surerag.errors import ConfigurationError, ServiceError
from surerag.messages import Pair, Passage, SamplingParams, TokenTrace
from surerag.readers.fake import FakeReader
from surerag.readers.protocol import BaseReader
from surerag.services import Services
from tests.drivers.local_reader import LocalReader

label: ContextVar[str] = ContextVar("label", default="none")


def ask_once(prompt: str, n: int = 1) -> Program[list[str]]:
    [answers] = yield from generate([prompt], SamplingParams(n=n))
    return [answer.text for answer in answers]


def gated(prompt: str) -> Program[str]:
    [begun] = yield from begin([prompt], 1, SamplingParams())
    if prompt.startswith("drop"):
        return "dropped"
    [whole] = yield from finish([begun])
    return whole.text


def test_questions_to_a_local_model_become_one_batch_in_order() -> None:
    reader = LocalReader()
    prompts = [f"question {i}" for i in range(50)]
    assert run_many([ask_once(prompt) for prompt in prompts], Services(reader)) == [
        [prompt] for prompt in prompts
    ]
    assert reader.batches == [("generate", 50)]


def test_equal_requests_are_asked_once_with_the_samples_that_each_wants() -> None:
    reader = LocalReader()
    results = run_many([ask_once("a"), ask_once("a", n=3), ask_once("b"), ask_once("a")], Services(reader))
    assert results == [["a"], ["a", "a#1", "a#2"], ["b"], ["a"]]
    assert sorted(reader.batches) == [("generate", 1), ("generate", 1)]


def test_one_failure_stays_its_own_and_is_raised_after_the_others_ended() -> None:
    reader = LocalReader()
    programs = [ask_once("a"), ask_once("poison"), ask_once("b")]
    done: list[tuple[int, int | None]] = []
    with pytest.raises(ServiceError, match="poisoned"):
        run_many(programs, Services(reader), progress=lambda n, total: done.append((n, total)))
    assert done == [(1, 3), (2, 3), (3, 3)]

    results = run_many(
        [ask_once("a"), ask_once("poison"), ask_once("b")], Services(reader), return_exceptions=True
    )
    assert (results[0], results[2]) == (["a"], ["b"])
    assert isinstance(results[1], ServiceError)


def test_a_generator_of_programs_is_read_only_as_there_is_room() -> None:
    running: list[int] = []

    def programs() -> Iterator[Program[list[str]]]:
        for i in range(20):
            running.append(i)
            yield ask_once(f"q{i}")

    reader = LocalReader()
    assert len(run_many(programs(), Services(reader), window=4)) == 20
    assert [size for _, size in reader.batches] == [4] * 5
    assert running == list(range(20))


def test_the_reader_is_asked_when_everyone_waits_for_it() -> None:
    """Some programs retrieve first; their generation still joins the others' batch."""

    class Corpus:
        def retrieve(self, query: str, k: int) -> list[Passage]:
            return [Passage(query)]

    def sometimes(prompt: str, first: bool) -> Program[list[str]]:
        if first:
            yield from retrieve(prompt, 1)
        return (yield from ask_once(prompt))

    reader = LocalReader()
    run_many([sometimes(f"q{i}", i % 2 == 0) for i in range(10)], Services(reader, retriever=Corpus()))
    assert reader.batches == [("generate", 10)]


def test_begun_generations_finish_together_and_dropped_ones_are_freed() -> None:
    reader = LocalReader(answer=lambda prompt: f"{prompt} and more")
    prompts = ["keep a", "drop b", "keep c"]
    assert run_many([gated(prompt) for prompt in prompts], Services(reader)) == [
        "keep a and more",
        "dropped",
        "keep c and more",
    ]
    assert reader.batches == [("begin", 3), ("finish", 2)]
    assert reader.open == set()


class _Vectors:
    name = "vectors"
    local = True

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def encode(self, texts: Sequence[str], kind: str) -> NDArray[np.float32]:
        self.asked.append(list(texts))
        return np.array([[len(text)] for text in texts], dtype=np.float32)


class _Judge:
    name = "judge"
    local = True

    def __init__(self) -> None:
        self.asked: list[list[Pair]] = []

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        self.asked.append(list(pairs))
        return np.array([[0, 0, float(pair.premise == pair.hypothesis)] for pair in pairs])


def test_vectors_and_judgements_are_merged_and_deduplicated() -> None:
    encoder, entailer = _Vectors(), _Judge()

    def program(text: str) -> Program[tuple[float, float]]:
        vectors = yield from embed([text, "shared"], "document")
        links = yield from entail([Pair(text, text), Pair("x", "y")])
        return float(vectors[0, 0]), float(links[0, 2])

    results = run_many(
        [program("a"), program("abc"), program("a")], Services(encoder=encoder, entailer=entailer)
    )
    assert results == [(1.0, 1.0), (3.0, 1.0), (1.0, 1.0)]
    assert encoder.asked == [["a", "shared", "abc"]]
    assert entailer.asked == [[Pair("a", "a"), Pair("x", "y"), Pair("abc", "abc")]]


def test_scores_are_merged_and_deduplicated() -> None:
    class Scorer(LocalReader):
        def score(self, prompts: Sequence[object], continuations: Sequence[str]) -> list[TokenTrace]:
            self.batches.append(("score", len(prompts)))
            return [TokenTrace((text,), (-float(len(text)),)) for text in continuations]

    def program(text: str) -> Program[float]:
        [trace] = yield from score(["prompt"], [text])
        return trace.logprobs[0]

    reader = Scorer()
    assert run_many([program("a"), program("bb"), program("a")], Services(reader)) == [-1.0, -2.0, -1.0]
    assert reader.batches == [("score", 2)]


def test_a_retriever_that_can_take_many_queries_gets_them_at_once() -> None:
    class Corpus:
        def __init__(self) -> None:
            self.asked: list[list[str]] = []

        def retrieve(self, query: str, k: int) -> list[Passage]:
            return self.retrieve_many([query], k)[0]

        def retrieve_many(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
            self.asked.append(list(queries))
            return [[Passage(query)] for query in queries]

    def program(query: str) -> Program[str]:
        [passage] = yield from retrieve(query, 1)
        return passage.text

    corpus = Corpus()
    assert run_many([program("a"), program("b"), program("a")], Services(retriever=corpus)) == ["a", "b", "a"]
    assert corpus.asked == [["a", "b"]]


def test_the_users_own_services_run_in_each_programs_context() -> None:
    class Corpus:
        def retrieve(self, query: str, k: int) -> list[Passage]:
            seen = label.get()
            label.set(query)
            return [Passage(seen)]

    def program(query: str) -> Program[tuple[str, str]]:
        [passage] = yield from retrieve(query, 1)
        return passage.text, label.get()

    token = label.set("caller")
    try:
        results = run_many([program("a"), program("b")], Services(retriever=Corpus()))
    finally:
        label.reset(token)
    assert results == [("caller", "a"), ("caller", "b")]


def test_a_server_is_asked_concurrently_and_answers_the_same() -> None:
    programs = [gated(f"keep {i}") for i in range(8)]
    reader = FakeReader(lambda prompt: f"{prompt} and more")
    together = run_many(programs, Services(reader), window=4)
    alone = [run(gated(f"keep {i}"), Services(reader)) for i in range(8)]
    assert together == alone


def test_programs_for_a_server_are_read_only_as_there_is_room() -> None:
    """A corpus of questions is a generator; none is started before a place is free."""
    started: list[int] = []
    room = threading.Semaphore(0)

    def script(prompt: str) -> str:
        room.acquire()
        return prompt

    def programs() -> Iterator[Program[list[str]]]:
        for i in range(12):
            started.append(i)
            yield ask_once(f"q{i}")

    with ThreadPoolExecutor(1) as pool:
        reader = FakeReader(script)
        future = pool.submit(run_many, programs(), Services(reader), window=3)
        while len(reader.history) < 3:
            pass
        assert len(started) == 3
        room.release(12)
        assert future.result() == [[f"q{i}"] for i in range(12)]


@pytest.mark.parametrize("reader", [LocalReader(), FakeReader(["a"])])
def test_running_nothing_at_a_time_is_refused(reader: BaseReader) -> None:
    with pytest.raises(ConfigurationError, match="window"):
        run_many([ask_once("a")], Services(reader), window=0)
