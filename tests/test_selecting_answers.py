"""LangChain and LlamaIndex select answers alike: equal outcomes, equal probabilities, equal errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from llama_index.core.settings import Settings
from pydantic import SecretStr

import langchain_surerag as langchain
import llama_index_surerag as llama_index
from surerag import AbstentionPolicy, CalibrationRow, FakeReader, calibrate_threshold
from surerag.errors import ConfigurationError
from surerag.readers.fake import reply
from tests.llama_index import corpus
from tests.llama_index.llms import Own

POLICY = AbstentionPolicy(0.5, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
THRESHOLD = calibrate_threshold([CalibrationRow(i, i < 300, True) for i in range(400)])
SURE, UNSURE = ("Velm", 0.25, 0.7), ("Orun", 0.75, 0.3)
"""Answers with their entropy, and the probability that the policy gives them."""


@pytest.fixture(autouse=True)
def embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_embed_model", corpus.HashEmbedding())


def reader(answer: str, entropy: float) -> FakeReader:
    return FakeReader(lambda prompt: reply(answer, entropy=entropy))


def engine_of(answer: str, entropy: float, **settings: Any) -> Any:
    llm = llama_index.with_certainty(reader(answer, entropy))
    return corpus.index().as_query_engine(llm=llm, **settings)


async def langchain_outputs(answer: str, entropy: float, policy: AbstentionPolicy | None) -> list[Any]:
    model = langchain.with_certainty(langchain.ChatReader(reader(answer, entropy)))
    chain = langchain.SelectiveAnswer(model, policy)
    [batched] = chain.batch(["Where?"])
    outputs = [chain.invoke("Where?"), await chain.ainvoke("Where?"), batched, *chain.stream("Where?")]
    return [*outputs, *[output async for output in chain.astream("Where?")]]


async def llama_index_outputs(answer: str, entropy: float, policy: AbstentionPolicy | None) -> list[Any]:
    outputs = []
    for settings in ({}, {"streaming": True}):
        engine = llama_index.AbstainingQueryEngine(engine_of(answer, entropy, **settings), policy)
        for response in (engine.query("Where?"), await engine.aquery("Where?")):
            outputs.append({**response.metadata, "answer": str(response), "whole": vars(response)})
    return outputs


@pytest.mark.parametrize("outputs_of", [langchain_outputs, llama_index_outputs])
@pytest.mark.parametrize("policy", [POLICY, None])
@pytest.mark.parametrize("case", [SURE, UNSURE])
async def test_the_probability_of_an_answer_is_everywhere_and_a_withheld_text_nowhere(
    outputs_of: Callable[..., Any], policy: AbstentionPolicy | None, case: tuple[str, float, float]
) -> None:
    answer, entropy, right = case
    withheld = policy is not None and case == UNSURE
    probability = None if policy is None else pytest.approx(right)
    for output in await outputs_of(answer, entropy, policy):
        assert output["abstained"] is withheld
        assert output["answer"] == ("I do not know." if withheld else answer)
        assert not withheld or answer not in repr(output)
        assert output["probability"] == output["certainty"]["probability"] == probability
        if "message" in output:
            assert output["message"].response_metadata["certainty"] == output["certainty"]
        if policy is not None:
            assert policy.select(answer, output["certainty"]).abstained is withheld
            assert policy.assess(output["certainty"]).probability == probability


def selecting(framework: str) -> tuple[Callable[..., Any], Any]:
    if framework == "LangChain":
        return langchain.SelectiveAnswer, langchain.ChatReader(reader("Velm", 0.25))
    return llama_index.AbstainingQueryEngine, engine_of("Velm", 0.25)


@pytest.mark.parametrize("framework", ["LangChain", "LlamaIndex"])
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("p.json", r'got a str. Load the policy first: AbstentionPolicy\.load\("p\.json"\)'),
        (Path("p.json"), r'AbstentionPolicy\.load\("p\.json"\)'),
        (POLICY.to_dict(), r"AbstentionPolicy\.from_dict\("),
        (
            calibrate_threshold([CalibrationRow(i, i < 300, True) for i in range(400)]),
            "got a ThresholdPolicy",
        ),
    ],
)
def test_a_wrong_policy_is_refused_with_what_to_do(framework: str, policy: Any, message: str) -> None:
    select, target = selecting(framework)
    with pytest.raises(ConfigurationError, match=message):
        select(target, policy)


@pytest.mark.parametrize("framework", ["LangChain", "LlamaIndex"])
def test_arguments_in_the_wrong_order_are_named(framework: str) -> None:
    select, target = selecting(framework)
    with pytest.raises(ConfigurationError, match=r"an AbstentionPolicy. Pass first the (chain|engine),"):
        select(POLICY, target)


OPENAI = ChatOpenAI(model="toy", api_key=SecretStr("k"))


@pytest.mark.parametrize(
    ("with_certainty", "model", "hint"),
    [
        (langchain.with_certainty, FakeReader(), r"with_certainty\(ChatReader\(reader\)\)"),
        (langchain.with_certainty, llama_index.ReaderLLM(FakeReader()), "Call llama_index_surerag.with_cert"),
        (langchain.with_certainty, Own(), "Call llama_index_surerag.with_certainty"),
        (llama_index.with_certainty, langchain.ChatReader(FakeReader()), r"with_certainty\(reader\)"),
        (llama_index.with_certainty, OPENAI, "Call langchain_surerag.with_certainty"),
    ],
)
def test_a_model_of_the_other_framework_is_sent_there(
    with_certainty: Callable[..., Any], model: Any, hint: str
) -> None:
    with pytest.raises(ConfigurationError, match=hint):
        with_certainty(model)


@pytest.mark.parametrize("uncertainty", ["0.3", [0.3], float("nan")])
def test_what_is_no_uncertainty_is_refused(uncertainty: Any) -> None:
    with pytest.raises(ConfigurationError, match="uncertainty must be a number"):
        POLICY.select("Velm", uncertainty)
