"""What a program spends: counted at its effects, once for all methods and drivers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from surerag.effects import Begin, Cancel, Effect, Entail, Finish, Generate, Retrieve
from surerag.entailment.judge import JudgeEntailer
from surerag.prices import Costs, load_prices
from surerag.services import FoundPassages, Services
from surerag.types import Generation

_NOTHING = Costs()


class Spending:
    """Adds up what one program asks of models.

    Args:
        services: Who answers it.

    Raises:
        ConfigurationError: If the file of prices that the environment names cannot be used.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._prices = load_prices()  # found wrong before anything is asked, not after
        self._by_model: dict[str, Costs] = {}
        self._began = time.perf_counter()

    def note(self, effect: Effect, answer: object) -> None:
        """Count an effect that was answered."""
        costs = spent_on(effect, answer, self._services)
        if costs is not _NOTHING:
            model = answer.model if isinstance(answer, FoundPassages) else self._model(effect)
            self._by_model[model] = self._by_model.get(model, _NOTHING) + costs

    def total(self) -> Costs:
        """Return what was spent so far; money where each model is paid by the token, at a known price."""
        found = [self._priced(model, costs) for model, costs in self._by_model.items()] or [_NOTHING]
        return replace(sum(found[1:], start=found[0]), seconds=time.perf_counter() - self._began)

    def _priced(self, model: str, costs: Costs) -> Costs:
        price = self._prices.of(model)
        if price is None or price.gpu_hour is not None:
            return costs
        return self._prices.priced(costs, model)

    def _model(self, effect: Effect) -> str:
        match effect:
            case Entail():
                judge = self._services.entailer
                return judge.reader.name if isinstance(judge, JudgeEntailer) else ""
            case Generate(role="rewriter") if self._services.rewriter is not None:
                return self._services.rewriter.name
            case _:
                return "" if self._services.reader is None else self._services.reader.name


def spent_on(effect: Effect, answer: object, services: Services) -> Costs:
    """Return the tokens and calls of an effect.

    Calls are answers asked of a model, pairs asked of an entailer, and what a retriever tells of itself.
    """
    match effect, answer:
        case Generate(), list(rows):
            first = [row[0] for row in rows]
            calls = sum(len(row) for row in rows)
            return _read(first, calls) + _wrote([one for row in rows for one in row])
        case Begin(), list(begun):
            return _read([one.partial for one in begun], len(begun))
        case Finish(), list(finished):
            return _wrote(finished)
        case Cancel(begun), _:
            return _wrote([one.partial for one in begun])
        case Retrieve(), FoundPassages():
            return answer.costs
        case Entail(pairs), _:
            judge = services.entailer
            return judge.cost_of(pairs) if isinstance(judge, JudgeEntailer) else Costs(calls=len(pairs))
        case _:
            return _NOTHING


def _read(first: Sequence[Generation], calls: int) -> Costs:
    read, cached = (sum(getattr(one, name) for one in first) for name in ("prompt_tokens", "cached_tokens"))
    return Costs(prompt_tokens=read, cached_tokens=cached, calls=calls)


def _wrote(generations: Sequence[Generation]) -> Costs:
    return Costs(completion_tokens=sum(one.completion_tokens + one.thinking_tokens for one in generations))
