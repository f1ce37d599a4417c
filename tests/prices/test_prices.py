"""Prices: what is known is counted, and what is not known has no money."""

from __future__ import annotations

import pytest

from surerag.errors import ConfigurationError
from surerag.prices import Costs, Price, Prices, load_prices
from surerag.types import Usage

SPENT = Costs(prompt_tokens=1_000_000, completion_tokens=100_000, cached_tokens=400_000, calls=3, seconds=36)


def test_packaged_prices_say_when_and_where_they_stood():
    for name, price in load_prices().models.items():
        assert price.date and price.source.startswith("https://") and price.host, name
        assert 0 < price.cached < price.prompt < price.completion, name


def test_cached_tokens_cost_their_own_price():
    price = load_prices().of("gpt-4o-mini@api.openai.com/v1")
    assert price.money(SPENT) == pytest.approx(0.6 * 0.15 + 0.4 * 0.075 + 0.1 * 0.60)


@pytest.mark.parametrize(
    "name",
    [
        "gpt-4o-mini",
        "gpt-4o-mini-2024-07-18",
        "gpt-4o-mini-2024-07-18@api.openai.com/v1",
        "ChatOpenAI(gpt-4o-mini)",
    ],
)
def test_a_snapshot_has_the_price_of_its_model(name):
    assert load_prices().of(name) == load_prices().models["gpt-4o-mini"]


@pytest.mark.parametrize(
    "name",
    [
        "gpt-4o-mini-tuned",
        "gpt-4o-minimal",
        "my-gpt-4o-mini",
        "gpt-4o-mini@localhost:8000/v1",
        "embedded",
        "",
    ],
)
def test_an_unknown_model_has_no_money_rather_than_anothers(name):
    assert load_prices().of(name) is None
    priced = load_prices().priced(SPENT, name)
    assert priced.money is None and priced.prompt_tokens == SPENT.prompt_tokens


def test_one_unknown_part_makes_a_sum_unknown():
    known = Prices({"a": Price(1, 1)}).priced(SPENT, "a")
    euros = Prices({"a": Price(1, 1, currency="EUR")}).priced(SPENT, "a")
    assert (known + known).money == pytest.approx(2 * known.money)
    assert (known + SPENT).money is None and (known + euros).money is None


def test_a_machine_is_paid_by_the_hour():
    assert Price(gpu_hour=2.0).money(SPENT) == pytest.approx(0.02)


def test_a_reader_counts_its_thoughts_among_what_came_out():
    assert Costs.of(Usage(2, 10, 3, 4, 5), seconds=1.5) == Costs(10, 7, 5, 2, 1.5)


def test_a_file_goes_before_the_packaged_prices(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text('[models."gpt-4o"]\nprompt = 1\ncompletion = 2\n[models."mine"]\ngpu_hour = 3.5\n')
    prices = load_prices(file)
    assert prices.of("gpt-4o@proxy.example/v1") == Price(1, 2)
    assert prices.of("mine").gpu_hour == 3.5
    assert prices.of("gpt-4o-mini") == load_prices().of("gpt-4o-mini")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[models.a]\nprompt = 1\n", "prompt and completion are missing"),
        ("[models.a]\nprompt = 1\ncompletion = 2\npriority = 3\n", "unknown priority"),
        ("[models.a]\nprompt = '1'\ncompletion = 2\n", "prompt is '1'"),
        ("[models.a]\nprompt = -1\ncompletion = 2\n", "0 or more"),
        ("[models.a]\nprompt = 1\ncompletion = 2\ngpu_hour = 3\n", "by tokens or by gpu_hour"),
        ("[a]\nprompt = 1\n", "a table for each model"),
        ("prompt =", "no TOML"),
        ("[models]\na = 1\n", "unknown 1"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, text, told):
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=told):
        load_prices(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        load_prices(tmp_path / "none.toml")
