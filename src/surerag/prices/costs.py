"""What an answer, a question or a run cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from surerag.types import Usage


@dataclass(frozen=True, slots=True)
class Costs:
    """Tokens, calls and seconds; and money, where it is known.

    Attributes:
        prompt_tokens: Tokens that went in.
        completion_tokens: Tokens that came out, those that a model thought among them.
        cached_tokens: Tokens, among those that went in, that a server had in its cache, where it tells.
        calls: Answers asked of models.
        seconds: On the clock; no two runs take the same, so it is not compared.
        money: In ``currency``; None where a price is not known. One unknown part makes the sum unknown.
        currency: Of the money; empty where there is none.

    Example:
        >>> one = Costs(prompt_tokens=100, calls=1, money=0.5, currency="USD")
        >>> (one + one).money, (one + Costs(calls=1)).money
        (1.0, None)
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0
    seconds: float = field(default=0.0, compare=False)
    money: float | None = None
    currency: str = ""

    @property
    def tokens(self) -> int:
        """Tokens that went in and came out."""
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def of(cls, usage: Usage, seconds: float = 0.0) -> Self:
        """Return what a reader's count of itself says; money is not among it."""
        return cls(
            usage.prompt_tokens,
            usage.completion_tokens + usage.thinking_tokens,
            usage.cached_tokens,
            usage.requests,
            seconds,
        )

    def __add__(self, other: Costs) -> Costs:
        known = self.money is not None and other.money is not None and self.currency == other.currency
        return Costs(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.calls + other.calls,
            self.seconds + other.seconds,
            (self.money or 0.0) + (other.money or 0.0) if known else None,
            self.currency if known else "",
        )

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Return what :meth:`to_dict` returned."""
        return cls(**written)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__slots__}
