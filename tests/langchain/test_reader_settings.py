"""What LangChain models are asked with: what a method uses, what the user set, and nothing else."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from langchain_surerag import (
    ClusterCompressor,
    DenseRefiner,
    LazyRetrievalChain,
    OverruledWarning,
    UncertaintyRewriter,
    reader_from_model,
    summaries_of,
)
from surerag.entailment import ExactEntailer
from surerag.messages import SamplingParams
from tests.langchain.conftest import HashEmbeddings, chat, completions
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script

PLAIN = SamplingParams(max_tokens=9, trace="none")
MEASURED = SamplingParams(max_tokens=9, trace="entropy")
DRAWN = SamplingParams(n=4, temperature=1.0, max_tokens=9, trace="logprobs")


@pytest.fixture(autouse=True)
def every_warning_is_an_error() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", OverruledWarning)
        yield


def body(server: FakeOpenAI) -> dict[str, Any]:
    """Return the last request's body, without what every request has."""
    return {
        name: value
        for name, value in server.requests[-1].body.items()
        if name not in ("model", "messages", "prompt", "stream") and value is not None
    }


def test_text_alone_is_asked_for_with_a_length_and_the_likeliest_words(server: FakeOpenAI) -> None:
    reader_from_model(chat(server)).generate(["?"], PLAIN)
    assert body(server) == {"max_tokens": 9, "temperature": 0.0}


@pytest.mark.parametrize(
    ("trace", "asked"),
    [("none", {}), ("logprobs", {"logprobs": True}), ("entropy", {"logprobs": True, "top_logprobs": 20})],
)
def test_log_probabilities_and_alternatives_are_asked_for_where_they_are_used(
    server: FakeOpenAI, trace: Any, asked: dict[str, Any]
) -> None:
    sampling = SamplingParams(max_tokens=9, trace=trace)
    [[answer]] = reader_from_model(chat(server)).generate(["?"], sampling)
    assert body(server) == {"max_tokens": 9, "temperature": 0.0, **asked}
    assert (answer.trace is None) == (trace == "none")
    assert getattr(answer.trace, "entropy", None) is None or trace == "entropy"


@pytest.mark.parametrize(("trace", "asked"), [("none", None), ("logprobs", 1), ("entropy", 5)])
def test_completions_are_asked_for_as_much(server: FakeOpenAI, trace: Any, asked: int | None) -> None:
    sampling = SamplingParams(max_tokens=9, trace=trace)
    [[answer]] = reader_from_model(completions(server)).generate(["?"], sampling)
    assert body(server).get("logprobs") == asked
    assert (answer.trace is None) == (trace == "none")


def test_drawn_answers_are_drawn_from_the_whole_distribution(server: FakeOpenAI) -> None:
    """Servers of open models cut it unless they are told not to."""
    reader_from_model(chat(server)).generate(["?"], DRAWN)
    expected = {"max_tokens": 9, "temperature": 1.0, "top_p": 1.0, "n": 4, "seed": 0, "logprobs": True}
    assert body(server) == expected


def test_what_a_user_built_and_bound_holds_for_plain_text(server: FakeOpenAI) -> None:
    model = chat(server, temperature=0.2, top_p=0.5, seed=7, stop=["##"]).bind(max_tokens=3, user="me")
    reader = reader_from_model(model)
    reader.generate(["?"], SamplingParams(max_tokens=9, stop=("\n",), trace="none"))
    expected = {
        "max_tokens": 3,
        "temperature": 0.2,
        "top_p": 0.5,
        "seed": 7,
        "stop": ["##", "\n"],
        "user": "me",
    }
    assert body(server) == expected
    assert reader.max_tokens == 3


def test_a_temperature_that_would_change_a_measurement_gives_way_and_that_is_said_once(
    server: FakeOpenAI,
) -> None:
    reader = reader_from_model(chat(server, temperature=0.2))
    with pytest.warns(OverruledWarning, match=r"has temperature=0\.2, and is asked with temperature=0\.0"):
        reader.generate(["a", "b"], MEASURED)
    # Said again it would be an error.
    reader.cancel(reader.begin(["c"], 1, MEASURED))
    assert body(server)["temperature"] == 0.0
    with pytest.warns(OverruledWarning, match=r"temperature=0\.2, and is asked with temperature=1\.0"):
        reader.generate(["d"], DRAWN)
    reader.generate(["e"], PLAIN)
    assert body(server)["temperature"] == 0.2


def test_a_nucleus_gives_way_where_answers_are_drawn_and_nowhere_else(server: FakeOpenAI) -> None:
    reader = reader_from_model(chat(server).bind(top_p=0.5))
    reader.generate(["?"], MEASURED)
    assert body(server)["top_p"] == 0.5
    with pytest.warns(OverruledWarning, match=r"top_p=0\.5, and is asked with top_p=1\.0"):
        reader.generate(["?"], DRAWN)
    assert body(server)["top_p"] == 1.0


def test_the_shorter_length_holds_and_is_sent_under_one_name(server: FakeOpenAI) -> None:
    for model, length in (
        (chat(server, max_tokens=100), 9),
        (chat(server, max_tokens=4), 4),
        (chat(server).bind(max_completion_tokens=4), 4),
        (chat(server, extra_body={"max_tokens": 4, "min_p": 0}), 4),
    ):
        reader_from_model(model).generate(["?"], PLAIN)
        assert (body(server)["max_tokens"], "max_completion_tokens" in body(server)) == (length, False)
    assert body(server)["min_p"] == 0


def test_samples_that_are_asked_for_apart_move_a_users_seed(server: FakeOpenAI) -> None:
    server.become(ignores_n=True)
    [samples] = reader_from_model(chat(server, seed=100)).generate(["Velm"], DRAWN)
    assert sorted(request.body["seed"] for request in server.requests) == [100, 101, 102, 103]
    assert len({sample.text for sample in samples}) > 1


def test_alternatives_alone_are_not_sent(server: FakeOpenAI) -> None:
    reader_from_model(chat(server, top_logprobs=7)).generate(["?"], PLAIN)
    assert "top_logprobs" not in body(server)
    reader_from_model(chat(server, logprobs=True, top_logprobs=7)).generate(["?"], PLAIN)
    assert (body(server)["logprobs"], body(server)["top_logprobs"]) == (True, 7)


def test_parts_that_need_text_never_ask_for_log_probabilities() -> None:
    documents = [Document(page_content=f"Velm is city {number}.") for number in range(4)]
    with FakeOpenAI(Script(lambda _: "Velm")) as server:
        model = chat(server)
        ClusterCompressor(model, HashEmbeddings(), pass_below=0, first_cluster_size=2).compress_documents(
            documents, "Velm?"
        )
        DenseRefiner(model, HashEmbeddings(), entailer=ExactEntailer()).compress_documents(documents, "Velm?")
        DenseRefiner(model, HashEmbeddings(), entailer=model).compress_documents(documents, "Velm?")
        summaries_of(documents, summarize=model, embeddings=HashEmbeddings())
        LazyRetrievalChain(model, RunnableLambda(lambda _: documents), mode="standard").invoke("Velm?")
        assert len(server.requests) > 10
        for request in server.requests:
            assert not {"logprobs", "top_logprobs", "seed", "n", "top_p"} & request.body.keys()


def test_a_gate_asks_for_entropies_and_the_answer_after_it_for_text() -> None:
    documents = [Document(page_content="Ada was born in Velm.")]
    with FakeOpenAI(Script(lambda _: "In Velm", logprob=-3.0)) as server:
        chain = LazyRetrievalChain(
            chat(server), RunnableLambda(lambda _: documents), "A town.", threshold=0.01
        )
        assert chain.invoke("Where was Ada born?")["decision"]["retrieve"]
        assert ["logprobs" in request.body for request in server.requests] == [True, False]
        rewriter = UncertaintyRewriter(chat(server), RunnableLambda(lambda _: documents), metric="perplexity")
        rewriter.invoke("Where was Ada born?")
        assert any("logprobs" in request.body for request in server.requests[2:])
        assert not any("top_logprobs" in request.body for request in server.requests[2:])
