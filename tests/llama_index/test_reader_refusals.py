"""What an LLM is asked, what its user built in, and what its service refuses."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai import OpenAI

from llama_index_surerag import (
    ClusterCompressorPostprocessor,
    DeltaSePerEvaluator,
    DenseEvaluator,
    DenseRefinerPostprocessor,
    LazyRetrievalQueryEngine,
    LLMSettingWarning,
    UncertaintyRewriteQueryEngine,
    reader_from_llm,
)
from surerag.errors import CapabilityError, LogprobsRefusedError, RefusedError
from surerag.messages import SamplingParams
from surerag.readers.refusals import LeftOutWarning
from tests.llama_index import corpus
from tests.llama_index.conftest import KEY, like
from tests.llama_index.refusing import AZURE, FIREWORKS, GROQ, OPENAI_THINKING, STRICT, Refusing, unsupported
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script, ToyModel

TEXT = SamplingParams(max_tokens=9, trace="none")
LIKELIHOODS = SamplingParams(n=3, temperature=1.0, max_tokens=6, trace="logprobs")
ENTROPIES = SamplingParams(max_tokens=6)


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(ToyModel(sharpness=2.0)) as running:
        yield running


def thinking(server: FakeOpenAI, **settings: Any) -> OpenAI:
    """Return LlamaIndex's own class with one of its O1_MODELS."""
    return OpenAI(model="gpt-5-mini", api_base=server.base_url, api_key=KEY, max_retries=0, **settings)


@pytest.mark.parametrize("chat", [True, False])
def test_only_what_a_sampling_uses_is_asked_for(server: FakeOpenAI, chat: bool) -> None:
    reader = reader_from_llm(like(server, chat=chat))
    for sampling in (TEXT, LIKELIHOODS, ENTROPIES):
        reader.generate(["Velm"], sampling)
    text, likelihoods, entropies = [
        {name: value for name, value in request.body.items() if name not in ("messages", "prompt", "model")}
        for request in server.requests
    ]
    assert text == {"temperature": 0.0, "max_tokens": 9, "stream": False}
    sampled = {"temperature": 1.0, "top_p": 1.0, "seed": 0, "n": 3, "max_tokens": 6, "stream": False}
    assert likelihoods == {**sampled, "logprobs": True if chat else 1}
    listed = {"logprobs": True, "top_logprobs": 20} if chat else {"logprobs": 5}
    assert entropies == {"temperature": 0.0, "max_tokens": 6, "stream": False, **listed}


@pytest.mark.parametrize("chat", [True, False])
def test_traces_are_those_that_were_asked_for(server: FakeOpenAI, chat: bool) -> None:
    reader = reader_from_llm(like(server, chat=chat))
    [[text]] = reader.generate(["Velm"], TEXT)
    assert text.trace is None
    [samples] = reader.generate(["Velm"], LIKELIHOODS)
    assert all(sample.trace.entropy is None for sample in samples)
    [begun] = reader.begin(["Velm"], 2, ENTROPIES)
    assert begun.partial.trace.entropy is not None
    reader.cancel([begun])


def test_what_a_user_built_in_holds_for_text(server: FakeOpenAI) -> None:
    llm = like(server, max_tokens=3, temperature=0.7, additional_kwargs={"stop": ["\n"], "seed": 9})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [[answer]] = reader_from_llm(llm).generate(["Velm"], replace(TEXT, stop=(" Question",)))
    body = server.requests[0].body
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (3, 0.7, 9)
    assert body["stop"] == ["\n", " Question"]
    assert answer.finish == "length"


def test_a_limit_that_is_higher_than_a_methods_does_not_make_it_pay_for_more(server: FakeOpenAI) -> None:
    reader_from_llm(like(server, max_tokens=500)).generate(["Velm"], TEXT)
    assert server.requests[0].body["max_tokens"] == 9


def test_a_gate_is_greedy_whatever_was_built_in_and_says_so_once(server: FakeOpenAI) -> None:
    reader = reader_from_llm(like(server, temperature=0.7))
    with pytest.warns(LLMSettingWarning, match=r"temperature=0\.7, .* temperature=0\.0") as warned:
        reader.generate(["Velm", "Tarn"], ENTROPIES)
    assert len(warned) == 1
    assert [request.body["temperature"] for request in server.requests] == [0.0, 0.0]


def test_a_class_default_is_nobodys_choice(server: FakeOpenAI) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader_from_llm(like(server)).generate(["Velm"], ENTROPIES)
    assert server.requests[0].body["temperature"] == 0.0


async def test_a_thinking_model_is_asked_for_text_in_its_own_way(recwarn: pytest.WarningsRecorder) -> None:
    with Refusing(*OPENAI_THINKING, model=Script(lambda _: "in Velm. Question: next")) as server:
        reader = reader_from_llm(thinking(server, max_tokens=40))
        sampling = replace(TEXT, stop=(" Question",))
        [[answer]] = reader.generate(["Where?"], sampling)
        assert answer.text == "in Velm."
        asked = len(server.requests)
        [[again]] = await reader.agenerate(["Where?"], sampling)
        chunks = list(reader.stream("Where?", sampling))
        assert (
            again.text == chunks[-1].generation.text == "".join(chunk.text for chunk in chunks) == "in Velm."
        )
        # What was refused is remembered: nothing is asked for twice.
        assert len(server.requests) == asked + 2
    kept = server.accepted[0].keys() - {"messages", "model", "stream"}
    assert kept == {"max_completion_tokens", "temperature"}
    assert server.accepted[0]["max_completion_tokens"] == 9
    # LlamaIndex itself sets the temperature of these models to 1, and that holds.
    assert server.accepted[0]["temperature"] == 1
    assert not [one for one in recwarn if issubclass(one.category, LeftOutWarning)]


def test_a_refused_temperature_is_left_out_of_a_single_answer_with_a_warning() -> None:
    with Refusing(*OPENAI_THINKING) as server:
        reader = reader_from_llm(like(server))
        with pytest.warns(LeftOutWarning, match="temperature") as warned:
            reader.generate(["Velm", "Tarn"], TEXT)
    assert len(warned) == 1
    assert [body.keys() & {"temperature", "top_p"} for body in server.accepted] == [set(), set()]


def test_what_was_left_out_unfelt_is_told_when_it_is_felt(recwarn: pytest.WarningsRecorder) -> None:
    with Refusing(unsupported("temperature", "Unsupported parameter: temperature")) as server:
        reader = reader_from_llm(like(server))
        reader.generate(["Velm"], SamplingParams(n=2, temperature=1.0, trace="none"))
        assert not [one for one in recwarn if issubclass(one.category, LeftOutWarning)]
        reader.generate(["Velm"], TEXT)
        reader.generate(["Velm"], TEXT)
    assert len([one for one in recwarn if issubclass(one.category, LeftOutWarning)]) == 1


def test_log_probabilities_that_are_refused_say_what_to_do_instead() -> None:
    with Refusing(*OPENAI_THINKING) as server:
        reader = reader_from_llm(thinking(server))
        with pytest.raises(LogprobsRefusedError, match="not allowed to request logprobs") as raised:
            reader.generate(["Velm"], LIKELIHOODS)
    told = str(raised.value)
    for advice in (
        'reasoning_effort="none"',
        "OpenAILike(api_base=…",
        "HuggingFaceLLM",
        'gate="disagreement"',
    ):
        assert advice in told
    assert 'weights="frequency"' in told
    assert KEY not in told


def test_a_temperature_that_sampling_depends_on_is_an_error_with_the_reason() -> None:
    with Refusing(*OPENAI_THINKING) as server:
        reader = reader_from_llm(like(server))
        with pytest.raises(RefusedError, match=r"refuses temperature.*does not support"):
            reader.generate(["Velm"], SamplingParams(n=3, temperature=0.7, trace="none"))


def test_effort_none_serves_log_probabilities() -> None:
    def without_effort(body: dict[str, Any]) -> str | None:
        if body.get("reasoning_effort") == "none":
            return OPENAI_THINKING[0](body)
        return next((said for rule in OPENAI_THINKING if (said := rule(body))), None)

    with Refusing(without_effort) as server:
        llm = OpenAI(
            model="gpt-5.1", reasoning_effort="none", api_base=server.base_url, api_key=KEY, max_retries=0
        )
        reader = reader_from_llm(llm)
        [begun] = reader.begin(["Velm"], 2, ENTROPIES)
        assert reader.capabilities.thinking == "off"
    assert begun.partial.trace.entropy is not None
    assert server.accepted[0]["reasoning_effort"] == "none"
    assert server.accepted[0]["temperature"] == 0.0


def test_azures_v1_address_gets_one_limit_and_not_two() -> None:
    with Refusing(*AZURE) as server:
        reader_from_llm(like(server)).generate(["Velm"], TEXT)
        both = like(server, max_tokens=50, additional_kwargs={"max_completion_tokens": 40})
        reader_from_llm(both).generate(["Velm"], TEXT)
    assert [body["max_completion_tokens"] for body in server.accepted] == [9, 9]


async def test_a_refused_n_becomes_single_requests() -> None:
    with Refusing(GROQ[1]) as server:
        reader = reader_from_llm(like(server))
        [samples] = reader.generate(["Velm"], LIKELIHOODS)
        assert await reader.agenerate(["Velm"], LIKELIHOODS) == [samples]
    assert len(samples) == 3
    assert len(server.accepted) == 6
    assert len({body["seed"] for body in server.accepted}) == 3
    # Learnt once.
    assert len(server.requests) == 7


def test_groq_refuses_log_probabilities_and_serves_text() -> None:
    with Refusing(*GROQ) as server:
        reader = reader_from_llm(like(server))
        with pytest.raises(LogprobsRefusedError, match="not supported with this model"):
            reader.generate(["Velm"], ENTROPIES)
        assert reader.generate(["Velm"], TEXT)[0][0].text


@pytest.mark.parametrize("verb", ["generate", "begin", "stream"])
def test_a_smaller_number_of_alternatives_will_do(verb: str) -> None:
    with Refusing(*FIREWORKS) as server:
        reader = reader_from_llm(like(server), vocabulary_size=ToyModel.vocabulary_size)
        if verb == "generate":
            trace = reader.generate(["Velm"], ENTROPIES)[0][0].trace
        elif verb == "begin":
            trace = reader.begin(["Velm"], 6, ENTROPIES)[0].partial.trace
        else:
            trace = list(reader.stream("Velm", ENTROPIES))[-1].generation.trace
        few = reader_from_llm(like(server), vocabulary_size=ToyModel.vocabulary_size, top_logprobs=5)
        assert trace == few.generate(["Velm"], ENTROPIES)[0][0].trace
    assert [body["top_logprobs"] for body in server.accepted] == [5, 5]


def test_what_changes_no_answer_is_left_out_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    with Refusing(*STRICT) as server:
        reader = reader_from_llm(like(server))
        assert len(reader.generate(["Velm"], LIKELIHOODS)[0]) == 3
        assert list(reader.stream("Velm", TEXT))[-1].generation.text
    assert not {"seed", "stream_options"} & {name for body in server.accepted for name in body}
    assert not [one for one in recwarn if issubclass(one.category, LeftOutWarning)]


def test_several_threads_learn_of_one_refusal_without_harm() -> None:
    with Refusing(*OPENAI_THINKING) as server:
        reader = reader_from_llm(like(server), max_concurrency=6)
        found: list[Any] = []
        threads = [
            threading.Thread(target=lambda: found.extend(reader.generate(["a", "b", "c"], TEXT)))
            for _ in range(4)
        ]
        with pytest.warns(LeftOutWarning):
            _run(threads)
        asked = len(server.requests)
        reader.generate(["d"], TEXT)
        assert len(server.requests) == asked + 1
    assert len(found) == 12


def _run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_field_of_the_users_own_that_is_refused_is_his_to_mend() -> None:
    rule = unsupported("reasoning_effort", "Unrecognized request argument supplied: reasoning_effort")
    with Refusing(rule) as server:
        llm = like(server, additional_kwargs={"reasoning_effort": "low"})
        with pytest.raises(RefusedError, match="reasoning_effort"):
            reader_from_llm(llm).generate(["Velm"], TEXT)
    assert len(server.requests) == 1


def _compress(llm: Any) -> Any:
    nodes = [
        NodeWithScore(node=TextNode(id_=name, text=f"{name} lies in Velm."), score=1.0) for name in "abcd"
    ]
    part = ClusterCompressorPostprocessor(llm, corpus.HashEmbedding(), first_cluster_size=2, pass_below=0)
    return part.postprocess_nodes(nodes, query_str="Where?")


def _refine(llm: Any) -> Any:
    nodes = [
        NodeWithScore(node=TextNode(id_=name, text=f"{name} lies in Velm."), score=1.0) for name in "abc"
    ]
    return DenseRefinerPostprocessor(llm, entailer=llm).postprocess_nodes(nodes, query_str="Where?")


def _dense(llm: Any) -> Any:
    return DenseEvaluator(llm, entailer=llm).evaluate(query="Where?", contexts=["In Velm."], response="Velm")


def _seper(llm: Any) -> Any:
    part = DeltaSePerEvaluator(llm, entailer=llm, weights="frequency", n_samples=2)
    return part.evaluate(query="Where?", contexts=["In Velm."], response="Velm", reference="Velm")


def _lazy(llm: Any) -> Any:
    return LazyRetrievalQueryEngine.from_args(corpus.index(), llm, gate="disagreement").query("Where?")


def _rewrite(llm: Any) -> Any:
    return UncertaintyRewriteQueryEngine.from_args(corpus.index(), llm).query("Where?")


PARTS: dict[str, Callable[[Any], Any]] = {
    "compressor": _compress,
    "refiner": _refine,
    "dense evaluator": _dense,
    "seper evaluator": _seper,
    "lazy engine": _lazy,
    "rewrite engine": _rewrite,
}


@pytest.mark.parametrize("status", [400, 401, 403, 404])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_service_that_refuses_is_an_error_at_the_first_call_in_every_part(
    part: Callable[[Any], Any], status: int
) -> None:
    with (
        Refusing(
            lambda _: "The model `toy` does not exist or you have no access to it.", status=status
        ) as server,
        pytest.raises(RefusedError, match="does not exist"),
    ):
        part(like(server))


@pytest.mark.parametrize("name", ["compressor", "refiner", "dense evaluator", "lazy engine"])
def test_every_part_that_needs_text_alone_serves_a_model_that_refuses_all_else(
    name: str, recwarn: pytest.WarningsRecorder
) -> None:
    with Refusing(*OPENAI_THINKING, model=Script(lambda _: "Velm")) as server:
        PARTS[name](thinking(server))
    assert server.accepted
    assert not {"logprobs", "top_logprobs"} & {key for request in server.requests for key in request.body}


@pytest.mark.parametrize("part", [LazyRetrievalQueryEngine, UncertaintyRewriteQueryEngine])
def test_a_class_of_which_only_text_is_known_is_told_what_there_is_to_do(part: Any) -> None:
    with pytest.raises(CapabilityError, match=r"OpenAILike\(api_base=.*gate=\"disagreement\".*register_llm"):
        part.from_args(corpus.index(), MockLLM())


async def test_top_k_is_still_refused_before_anything_is_asked(server: FakeOpenAI) -> None:
    reader = reader_from_llm(like(server))
    with pytest.raises(CapabilityError, match="top_k"):
        await reader.agenerate(["Velm"], replace(LIKELIHOODS, top_k=3))
    assert not server.requests


def test_an_event_loop_and_a_thread_share_what_was_learnt() -> None:
    with Refusing(*OPENAI_THINKING) as server:
        reader = reader_from_llm(like(server))
        with pytest.warns(LeftOutWarning):
            asyncio.run(reader.agenerate(["Velm"], TEXT))
        asked = len(server.requests)
        reader.generate(["Velm"], TEXT)
    assert len(server.requests) == asked + 1
