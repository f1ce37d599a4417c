"""What a component's result says of its costs: the same value, whatever the method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from surerag.prices.costs import Costs


@dataclass(frozen=True, slots=True)
class Costed:
    """A result that says what it cost.

    Attributes:
        spent: Tokens (those that a server had in its cache apart), calls, seconds and money, of all models
            that were asked for it, as if it had run alone: what a batch asked once for two questions counts
            for both. Its seconds are on the clock, the wait for other questions in a batch included. Its
            money is None where a model's price is not known, and where a machine is paid by the hour: a
            question's share of that is not known. What a retriever of LlamaIndex or LangChain asks of models
            by itself is in it as these report it through their framework; what others ask is in it where they
            return :class:`surerag.services.FoundPassages`. None in a result that is a part of another one.
    """

    spent: Costs | None = field(default=None, kw_only=True, compare=False, repr=False)

    def spent_dict(self) -> dict[str, Any]:
        """Return it under its name as plain values, for the metadata of an answer; nothing where it is None.

        The clock is left out: the same answer then has the same metadata, asked in whichever way.
        """
        if self.spent is None:
            return {}
        return {"spent": {name: value for name, value in self.spent.to_dict().items() if name != "seconds"}}
