"""What services refuse of LangChain models: left out and remembered, or an error that says what to change."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_openai import AzureChatOpenAI

from langchain_surerag import (
    ClusterCompressor,
    DeltaSePerEvaluator,
    DenseRefiner,
    LazyRetrievalChain,
    UncertaintyRewriter,
    reader_from_model,
)
from surerag.entailment import ExactEntailer
from surerag.errors import LogprobsRefusedError, RefusedError
from surerag.messages import SamplingParams
from surerag.readers.refusals import LeftOutWarning
from tests.langchain.conftest import KEY, HashEmbeddings, chat, completions
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.refusing import (
    FIXED_TEMPERATURE,
    NO_LOGPROBS,
    REASONING,
    RENAMED_LIMIT,
    TWO_LIMITS,
    Refusing,
    Rule,
    at_most,
    unsupported,
)
from tests.servers.toy_model import Script, ToyModel

TEXT = SamplingParams(max_tokens=9, trace="none")
MEASURED = SamplingParams(max_tokens=9, trace="entropy")
DRAWN = SamplingParams(n=3, temperature=1.0, max_tokens=9, trace="none")


def say_velm(prompt: str) -> str:
    return "Velm"


def test_a_reasoning_model_answers_and_is_refused_once_only() -> None:
    with Refusing(REASONING, Script(say_velm)) as server:
        reader = reader_from_model(chat(server))
        sampling = SamplingParams(max_tokens=9, stop=("\n",), trace="none")
        with pytest.warns(LeftOutWarning, match="refuses temperature"):
            assert reader.generate(["?"], sampling)[0][0].text == "Velm"
        asked = len(server.requests)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert reader.generate(["??"], sampling)[0][0].text == "Velm"
            assert "".join(chunk.text for chunk in reader.stream("???", sampling)) == "Velm"
        assert len(server.requests) == asked + 2
        assert server.answered[0].keys() == {"messages", "model", "max_completion_tokens", "stream"}


async def test_async_calls_learn_as_well_and_all_of_them_together() -> None:
    with Refusing(REASONING, Script(say_velm)) as server:
        reader = reader_from_model(chat(server), max_concurrency=4)
        with pytest.warns(LeftOutWarning) as said:
            found = await reader.agenerate(["a", "b", "c", "d"], TEXT)
        assert [answer.text for [answer] in found] == ["Velm"] * 4
        assert len([warning for warning in said if warning.category is LeftOutWarning]) == 1
        refused = server.refused
        chunks = [chunk.text async for chunk in reader.astream("e", TEXT)]
        assert "".join(chunks) == "Velm"
        assert server.refused == refused


def test_many_threads_learn_the_same_from_one_model() -> None:
    with Refusing(REASONING, Script(say_velm)) as server:
        reader = reader_from_model(chat(server), max_concurrency=8)
        with pytest.warns(LeftOutWarning):
            found = reader.generate([f"question {number}" for number in range(24)], TEXT)
        assert [answer.text for [answer] in found] == ["Velm"] * 24
        assert len(server.answered) == 24


def test_a_stop_text_that_is_refused_is_kept_to_here() -> None:
    with Refusing([unsupported("stop")], Script(lambda _: "In Velm. Question: what?")) as server:
        reader = reader_from_model(chat(server))
        sampling = SamplingParams(max_tokens=9, stop=("Question:",), trace="none")
        assert reader.generate(["?"], sampling)[0][0].text == "In Velm."
        [body] = server.answered
        assert "stop" not in body


@pytest.mark.parametrize("rule", [unsupported("n"), at_most("n", 1)])
def test_a_refused_number_of_answers_becomes_single_requests(rule: Rule) -> None:
    with Refusing([rule], ToyModel(sharpness=2.0)) as server:
        reader = reader_from_model(chat(server))
        [samples] = reader.generate(
            ["Velm"], SamplingParams(n=3, temperature=1.0, max_tokens=6, trace="logprobs")
        )
        assert len({sample.text for sample in samples}) > 1
        assert len({body["seed"] for body in server.answered}) == len(server.answered) == 3
        reader.generate(["Tarn"], SamplingParams(n=3, temperature=1.0, max_tokens=6, trace="logprobs"))
        assert (server.refused, len(server.answered)) == (1, 6)


def test_a_limit_on_alternatives_is_kept_to(server: FakeOpenAI) -> None:
    with Refusing([at_most("top_logprobs", 5)], ToyModel(sharpness=2.0)) as limited:
        reader = reader_from_model(chat(limited), vocabulary_size=ToyModel.vocabulary_size)
        [[answer]] = reader.generate(["Velm"], MEASURED)
        assert [body["top_logprobs"] for body in limited.answered] == [5]
    five = reader_from_model(chat(server), vocabulary_size=ToyModel.vocabulary_size, top_logprobs=5)
    assert five.generate(["Velm"], MEASURED) == [[answer]]


def test_stream_options_that_are_refused_are_left_out() -> None:
    with Refusing([unsupported("stream_options")], Script(say_velm)) as server:
        [begun] = reader_from_model(chat(server)).begin(["?"], 1, MEASURED)
        assert begun.partial.text == "Velm"
        assert "stream_options" not in server.answered[0]


@pytest.mark.parametrize("rule", [unsupported("logprobs"), NO_LOGPROBS])
async def test_refused_log_probabilities_raise_with_advice_in_langchains_words(rule: Rule) -> None:
    with Refusing([rule], Script(say_velm)) as server:
        reader = reader_from_model(chat(server))
        for call in (
            lambda: reader.generate(["?"], MEASURED),
            lambda: reader.begin(["?"], 2, MEASURED),
            lambda: asyncio.run(reader.agenerate(["?"], MEASURED)),
        ):
            with pytest.raises(LogprobsRefusedError) as caught:
                await asyncio.to_thread(call)
            assert "ChatOpenAI(toy" in str(caught.value)
            assert rule.message.rstrip(".") in str(caught.value)
            for advice in ('reasoning_effort="none"', 'gate="disagreement"', 'weights="frequency"'):
                assert advice in str(caught.value)
            assert KEY not in str(caught.value)
        # Its text can still be had.
        assert reader.generate(["?"], TEXT)[0][0].text == "Velm"


def test_a_refused_temperature_raises_where_several_answers_are_drawn() -> None:
    with Refusing([FIXED_TEMPERATURE], Script(say_velm)) as server:
        reader = reader_from_model(chat(server))
        with pytest.raises(RefusedError, match=r"refuses temperature: .*reasoning_effort=\"none\""):
            reader.generate(["?"], SamplingParams(n=3, temperature=0.7, trace="none"))
        # Also once a text, which can do without, has found it out.
        reader = reader_from_model(chat(server))
        with pytest.warns(LeftOutWarning):
            reader.generate(["?"], TEXT)
        with pytest.raises(RefusedError, match="Only the default"):
            reader.generate(["?"], SamplingParams(n=3, temperature=0.7, trace="none"))
        # At its own temperature it draws them.
        assert [answer.text for answer in reader.generate(["?"], DRAWN)[0]] == ["Velm"] * 3


def test_a_setting_of_the_users_that_is_refused_is_left_out_as_well() -> None:
    with Refusing(REASONING, Script(say_velm)) as server:
        model = chat(server, temperature=0.2, top_p=0.9, seed=3, stop=["x"]).bind(max_tokens=5)
        with pytest.warns(LeftOutWarning):
            assert reader_from_model(model).generate(["?"], TEXT)[0][0].text == "Velm"
        assert server.answered[0].keys() == {"messages", "model", "max_completion_tokens", "stream"}
        assert server.answered[0]["max_completion_tokens"] == 5


def test_the_length_is_never_sent_under_two_names() -> None:
    """As Azure's v1 address has it, which is no host of openai.com."""
    for rules in ([TWO_LIMITS], [TWO_LIMITS, RENAMED_LIMIT]):
        for settings in ({}, {"max_tokens": 100}, {"extra_body": {"max_tokens": 100}}):
            with Refusing(rules, Script(say_velm)) as server:
                reader = reader_from_model(chat(server, **settings))
                assert reader.generate(["?"], TEXT)[0][0].text == "Velm"
                limits = [
                    (name, body[name])
                    for body in server.answered
                    for name in ("max_tokens", "max_completion_tokens")
                    if name in body
                ]
                assert limits == [("max_completion_tokens" if len(rules) == 2 else "max_tokens", 9)]


def test_azures_class_learns_what_its_deployment_calls_the_length() -> None:
    with Refusing([TWO_LIMITS, RENAMED_LIMIT], Script(say_velm)) as server:
        model = AzureChatOpenAI(
            azure_endpoint=server.base_url.removesuffix("/v1"),
            azure_deployment="mine",
            api_version="2025-04-01",
            api_key=KEY,
            max_tokens=100,
        )
        assert reader_from_model(model).generate(["?"], TEXT)[0][0].text == "Velm"
        assert [body["max_completion_tokens"] for body in server.answered] == [9]


def test_openais_own_host_is_told_the_new_name() -> None:
    from langchain_openai import ChatOpenAI

    from langchain_surerag.dialects import Asked, DialectOptions, dialect_of

    for base in (None, "https://api.openai.com/v1", "https://mine.openai.azure.com/openai/v1"):
        dialect = dialect_of(ChatOpenAI(model="m", api_key=KEY, base_url=base), DialectOptions())
        arguments = dialect.prepared(Asked(TEXT)).arguments
        assert arguments == {"temperature": 0.0, "max_completion_tokens": 9}


def test_completions_are_refused_and_learn_alike() -> None:
    with Refusing([unsupported("seed"), at_most("n", 1)], ToyModel(sharpness=2.0)) as server:
        [samples] = reader_from_model(completions(server)).generate(["Velm"], DRAWN)
        assert len(samples) == 3
        assert all(body.get("seed") is None for body in server.answered)


# What is wrong with every request raises in every part, also where failures are degraded.

OTHERS = [
    (400, "messages: at least one message is required"),
    (401, "Incorrect API key"),
    (404, "no such model"),
]


@pytest.mark.parametrize(("status", "message"), OTHERS)
@pytest.mark.parametrize("part", ["compressor", "refiner", "rewriter", "chain", "evaluator"])
def test_what_is_misconfigured_raises_at_the_first_call(part: str, status: int, message: str) -> None:
    documents = [Document(page_content=f"Velm is city {number}.") for number in range(4)]
    with FakeOpenAI(Script(say_velm)) as server:
        server.fail(status, times=100, body=json.dumps({"error": {"message": message}}).encode())
        model = chat(server)
        calls: dict[str, Any] = {
            "compressor": lambda: ClusterCompressor(
                model, HashEmbeddings(), on_failure="original", pass_below=0, first_cluster_size=2
            ).compress_documents(documents, "Velm?"),
            "refiner": lambda: DenseRefiner(
                model, HashEmbeddings(), entailer=ExactEntailer(), on_failure="original"
            ).compress_documents(documents, "Velm?"),
            "rewriter": lambda: UncertaintyRewriter(
                model, RunnableLambda(lambda _: documents), on_failure="original"
            ).invoke("Velm?"),
            "chain": lambda: LazyRetrievalChain(model, None, "Velm is a city.", mode="none").invoke("Velm?"),
            "evaluator": lambda: DeltaSePerEvaluator(model, ExactEntailer(), weights="frequency")(
                inputs={"question": "Velm?"},
                outputs={"documents": documents},
                reference_outputs={"answer": "Velm"},
            ),
        }
        with pytest.raises(RefusedError, match=message):
            calls[part]()
