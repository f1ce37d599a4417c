"""A small file of prices, and the price of a model."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from surerag.errors import ConfigurationError
from surerag.measures import api_cost
from surerag.prices.costs import Costs

ENVIRONMENT = "SURERAG_PRICES"
_CLASS = re.compile(r"^\w+\((.*)\)$")
"""How the frameworks' readers are called: by a class, and in parentheses what it asks."""
_SNAPSHOT = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs.

    Attributes:
        prompt: A million tokens that go in.
        completion: A million tokens that come out.
        cached: A million tokens that go in and are in the server's cache; None is no discount.
        gpu_hour: An hour of the machine that a model of one's own runs on, in place of tokens.
        currency: Of all of these.
        host: Who sells at this price; a model of this name that answers elsewhere has none. Empty for any.
        source: Where the price stands.
        date: When it stood there.

    Raises:
        ConfigurationError: If a price is negative, or both tokens and hours are paid.
    """

    prompt: float = 0.0
    completion: float = 0.0
    cached: float | None = None
    gpu_hour: float | None = None
    currency: str = "USD"
    host: str = ""
    source: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        given = [self.prompt, self.completion, self.cached, self.gpu_hour]
        if any(value is not None and not 0 <= value < float("inf") for value in given):
            raise ConfigurationError(f"prices are 0 or more, got {given}")
        if self.gpu_hour is not None and (self.prompt or self.completion or self.cached):
            raise ConfigurationError("a model is paid by tokens or by gpu_hour, and both were given")

    def money(self, costs: Costs) -> float:
        """Return what was spent, in the price's currency; seconds count where a machine is paid by the hour.

        Example:
            >>> Price(0.15, 0.60).money(Costs(prompt_tokens=1_000_000, completion_tokens=500_000))
            0.45
            >>> Price(gpu_hour=3.6).money(Costs(seconds=10))
            0.01
        """
        if self.gpu_hour is not None:
            return self.gpu_hour * costs.seconds / 3600
        return api_cost(
            costs.prompt_tokens,
            costs.completion_tokens,
            self.prompt,
            self.completion,
            costs.cached_tokens,
            self.cached,
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by model.

    Attributes:
        models: By the name that their server knows them by.
    """

    models: Mapping[str, Price] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, model: str) -> Price | None:
        """Return a model's price; None where it is not known: no price is better than another model's.

        Args:
            model: A reader's name, such as ``"gpt-4o-mini@api.openai.com/v1"`` or
                ``"ChatOpenAI(gpt-4o-mini)"``, or a model's. A dated
                snapshot has the price of its model unless it has one of its own.

        Example:
            >>> prices = Prices({"gpt-x": Price(1, 2, host="api.openai.com")})
            >>> prices.of("gpt-x-2026-01-31@api.openai.com/v1").prompt
            1
            >>> prices.of("gpt-x-mini"), prices.of("gpt-x@localhost:8000/v1")
            (None, None)
        """
        model = _CLASS.sub(r"\1", model)
        # An address may hold an @ of its own, and so may a model's name: whatever is known goes first.
        for name, address in ((model, ""), model.rpartition("@")[::2]):
            for known in (name, _SNAPSHOT.sub("", name)):
                found = self.models.get(known)
                if found is not None and _sells(found, address):
                    return found
        return None

    def priced(self, costs: Costs, model: str) -> Costs:
        """Return costs with their money, where the model's price is known, and without where it is not."""
        price = self.of(model)
        if price is None:
            return replace(costs, money=None, currency="")
        return replace(costs, money=price.money(costs), currency=price.currency)

    def updated(self, other: Prices) -> Self:
        """Return these prices with others in their place or beside them."""
        return type(self)({**self.models, **other.models})


def load_prices(file: str | Path | None = None) -> Prices:
    """Return the packaged prices, and those of a file over them.

    A file holds a table for each model, in TOML::

        [models."gpt-4o-mini"]
        prompt = 0.15
        completion = 0.60
        cached = 0.075
        date = 2026-06-20
        source = "https://…"

        [models."Qwen3-4B"]
        gpu_hour = 2.10

    The environment may name such a file, too: ``SURERAG_PRICES``. What a component's result says of money
    goes by that one, or by the packaged one. It is read once.

    Args:
        file: Whose prices go before those of the environment, and these before the packaged ones.

    Raises:
        ConfigurationError: If one cannot be read, or holds something else.
    """
    known = _known(os.environ.get(ENVIRONMENT, ""))
    return known if file is None else known.updated(_read(file))


@cache
def _known(file: str) -> Prices:
    """Return the packaged prices, and those of the file that the environment names over them."""
    packaged = _parsed(files("surerag.prices").joinpath("prices.toml").read_text("utf-8"), "prices.toml")
    return packaged.updated(_read(file)) if file else packaged


def _read(file: str | Path) -> Prices:
    try:
        text = Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the prices {str(file)!r} cannot be read: {error}") from error
    return _parsed(text, str(file))


def _parsed(text: str, where: str) -> Prices:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{where} is no TOML: {error}") from error
    models = found.get("models")
    if not isinstance(models, dict) or found.keys() - {"models"}:
        raise ConfigurationError(
            f"{where} holds {', '.join(found) or 'nothing'}",
            hint='give a table for each model: [models."NAME"], with prompt and completion, or gpu_hour',
        )
    return Prices({name: _price(values, f"{where}, {name}") for name, values in models.items()})


def _price(values: Any, where: str) -> Price:
    kinds = {item.name: str if item.name in _TEXTS else float for item in fields(Price)}
    unknown = sorted(values.keys() - kinds) if isinstance(values, dict) else [repr(values)]
    if unknown:
        raise ConfigurationError(f"{where}: unknown {', '.join(unknown)}", hint=f"known: {', '.join(kinds)}")
    if "gpu_hour" not in values and not {"prompt", "completion"} <= values.keys():
        raise ConfigurationError(
            f"{where}: prompt and completion are missing", hint="give both, or gpu_hour for your own machine"
        )
    read: dict[str, Any] = {name: str(one) if isinstance(one, date) else one for name, one in values.items()}
    for name, one in read.items():
        if not isinstance(one, str if kinds[name] is str else int | float) or isinstance(one, bool):
            raise ConfigurationError(f"{where}: {name} is {one!r}", hint="prices are numbers")
    return Price(**read)


_TEXTS = frozenset({"currency", "host", "source", "date"})


def _sells(price: Price, address: str) -> bool:
    host = re.sub(r"^\w+://", "", address).partition("/")[0]
    return not price.host or not host or host.partition(":")[0] == price.host
