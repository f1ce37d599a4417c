"""Costs in words, for people."""

from __future__ import annotations

from surerag.prices.costs import Costs


def cost_words(costs: Costs) -> str:
    """Return tokens, those of a cache apart, calls, seconds and money in one line.

    Example:
        >>> cost_words(Costs(1200, 34, cached_tokens=200, calls=3, seconds=1.25, money=0.5, currency="USD"))
        '3 calls, 1,200 tokens read (200 of them cached), 34 written, 1.2 s, 0.5 USD'
        >>> cost_words(Costs(10, 2, calls=1))
        '1 call, 10 tokens read (0 of them cached), 2 written, 0.0 s, money unknown'
    """
    calls = f"{costs.calls:,} call{'' if costs.calls == 1 else 's'}"
    read = f"{costs.prompt_tokens:,} tokens read ({costs.cached_tokens:,} of them cached)"
    took = f"{costs.seconds:,.1f} s"
    return f"{calls}, {read}, {costs.completion_tokens:,} written, {took}, {money_words(costs)}"


def money_words(costs: Costs) -> str:
    """Return the money, or that it is unknown: there is no price.

    Example:
        >>> money_words(Costs(money=0.00012345, currency="USD")), money_words(Costs())
        ('0.00012 USD', 'money unknown')
    """
    return "money unknown" if costs.money is None else f"{costs.money:.2g} {costs.currency}"
