"""Every result says what it cost, in one value, whichever method and driver it came from."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from surerag.prices.table import ENVIRONMENT

from surerag import (
    ClusterCompressor,
    Costs,
    DenseEvaluator,
    FakeReader,
    LazyRAG,
    Passage,
    SePer,
    UncertaintyRewriter,
)
from surerag.component import Component
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError

PASSAGES = [Passage("Ada was born in Velm.", id="a"), Passage("Bo was born in Orun.", id="b")]
ASKED = "Where was Ada born?"


class Corpus:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return PASSAGES[:k]


def reader(name: str = "scripted") -> FakeReader:
    """Return a reader whose answers differ from context to context, so that something is judged."""
    return FakeReader(
        lambda prompt: "entailment" if "entail" in prompt else f"Velm {len(prompt) % 7}", name=name
    )


def components(model: FakeReader) -> dict[str, tuple[Component[Any, Any], tuple[Any, ...]]]:
    return {
        "l-rag": (LazyRAG(model, Corpus(), mode="standard"), (ASKED,)),
        "dynqr": (UncertaintyRewriter(model, Corpus(), threshold=0.0), (ASKED,)),
        "edc2": (ClusterCompressor(model, HashingEncoder(), pass_below=0), (ASKED, PASSAGES)),
        "dense": (DenseEvaluator(model), (ASKED, PASSAGES)),
        "seper": (SePer(model, ExactEntailer(), n_samples=2), (ASKED, ["Velm"], PASSAGES)),
    }


METHODS = list(components(reader()))


@pytest.mark.parametrize("method", METHODS)
def test_what_a_result_says_it_spent_is_what_its_reader_was_asked(method: str) -> None:
    model = reader()
    component, case = components(model)[method]
    result = component.run(*case)
    spent = result.spent
    # Of the two samples that SePer asks for, a prompt counts once, as where a server reads it once.
    samples = 2 if method == "seper" else 1
    assert spent.prompt_tokens * samples == model.usage.prompt_tokens
    assert spent.completion_tokens == model.usage.completion_tokens
    assert spent.calls == model.usage.requests + getattr(result, "judged", 0)
    assert spent.seconds > 0
    assert spent.money is None  # no price of this model is known


@pytest.mark.parametrize("method", METHODS)
def test_every_driver_counts_alike(method: str) -> None:
    # A new one each time: some remember what they asked.
    component, case = components(reader())[method]
    alone = component.run(*case).spent
    each = [asyncio.run(components(reader())[method][0].arun(*case)).spent]
    [several] = components(reader())[method][0].run_many([case if len(case) > 1 else case[0]])
    each.append(several.spent)
    if hasattr(component, "stream"):
        with component.stream(*case) as stream:
            list(stream)
            each.append(stream.result.spent)
    for spent in each:
        assert (spent.prompt_tokens, spent.completion_tokens, spent.calls) == (
            alone.prompt_tokens,
            alone.completion_tokens,
            alone.calls,
        )


def test_what_a_judge_in_words_read_counts_and_not_twice_for_pairs_that_are_asked_once() -> None:
    model = reader()
    first = DenseEvaluator(model).run(ASKED, PASSAGES)
    used = Costs.of(model.usage)
    assert first.calls.judgements > 0
    assert first.spent.prompt_tokens == used.prompt_tokens
    assert first.spent.prompt_tokens > first.calls.prompt_tokens


def test_money_stands_where_the_price_is_known() -> None:
    component, case = components(reader("gpt-4o-mini"))["l-rag"]
    spent = component.run(*case).spent
    assert spent.currency == "USD"
    assert spent.money == pytest.approx((0.15 * spent.prompt_tokens + 0.60 * spent.completion_tokens) / 1e6)


def test_the_environment_names_prices_and_a_machine_by_the_hour_has_no_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        '[models."mine"]\nprompt = 1\ncompletion = 0\ncurrency = "EUR"\n[models."own"]\ngpu_hour = 2\n'
    )
    monkeypatch.setenv(ENVIRONMENT, str(file))
    spent, hourly = (
        component.run(*case).spent
        for component, case in (components(reader(name))["l-rag"] for name in ("mine", "own"))
    )
    assert (spent.money, spent.currency) == (pytest.approx(spent.prompt_tokens / 1e6), "EUR")
    assert hourly.money is None
    assert hourly.tokens > 0


def test_a_file_of_prices_that_cannot_be_read_is_told_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "nowhere.toml")
    model = reader()
    component, case = components(model)["l-rag"]
    with pytest.raises(ConfigurationError, match=r"nowhere\.toml"):
        component.run(*case)
    assert model.usage.requests == 0


def test_a_result_with_another_cost_is_an_equal_result_and_parts_say_nothing() -> None:
    component, case = components(reader())["l-rag"]
    assert component.run(*case).spent is not None
    dense = DenseEvaluator(reader()).run(ASKED, PASSAGES)
    told = dense.spent_dict()["spent"]
    assert {**told, "seconds": dense.spent.seconds} == dense.spent.to_dict()
    assert replace(dense, spent=None) == dense
    assert replace(dense, spent=None).spent_dict() == {}
