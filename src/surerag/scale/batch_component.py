"""What the five methods share as batch callables: options, services, a program a row, and what it cost."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Final

from surerag.component import Component
from surerag.decisions.policy import Policy
from surerag.drivers import run_many
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.extras import extra
from surerag.methods.lazy_rag.component import FixedSummary
from surerag.options import described, from_plain
from surerag.prices import Costs
from surerag.readers.protocol import Capabilities
from surerag.readers.scripted import ScriptedReader
from surerag.scale.batch import Batch, Cells, Column
from surerag.scale.batch_fields import Given
from surerag.services import Services

with extra("parquet"):
    import pyarrow as pa

COSTS: Final[Mapping[str, Column]] = {
    "prompt_tokens": Column(pa.int64(), "tokens that models read for it"),
    "completion_tokens": Column(pa.int64(), "tokens that they wrote"),
    "cached_tokens": Column(pa.int64(), "of those read, what a server had in its cache, where it tells"),
    "calls": Column(pa.int64(), "answers asked of models, and pairs asked of an entailer"),
    "money": Column(pa.float64(), "what that costs; null where a price is not known"),
    "currency": Column(pa.string(), "of the money"),
}
"""What each row cost, as if it had run alone. Seconds are not among it: no two runs take the same."""

_THREADS: Final = 64
"""Rows of a table that wait for a server at a time, at most."""

_ABLE: Final = Capabilities(
    logprobs=True, entropy="exact", energy=True, score=True, begin="native", stream=True
)


def _stand_ins() -> dict[str, Any]:
    """Return services that can do everything and are never asked, to check options where no model is."""
    reader = ScriptedReader(str, capabilities=_ABLE)
    found = FixedSummary("never asked")
    return {
        "reader": reader,
        "rewriter": reader,
        "encoder": HashingEncoder(1),
        "entailer": ExactEntailer(),
        "retriever": found,
        "summaries": found,
    }


class MethodBatch(Batch):
    """A batch callable that runs a method's public class over its rows.

    Attributes:
        METHOD: The class. Its options are settings.
    """

    METHOD: ClassVar[type[Component[Any, Any]]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Take over the method's options."""
        cls.OPTIONS = cls.METHOD.OPTIONS
        cls.COLUMNS = {**cls.COLUMNS, **COSTS}
        super().__init_subclass__(**arguments)
        cls.__doc__ = f"{cls.__doc__}\n\n{described(cls.OPTIONS.values())}"

    @property
    def options(self) -> dict[str, Any]:
        """The method's options that were given, in plain values."""
        return {name: value for name, value in self._settings.items() if name in self.OPTIONS}

    @property
    def services(self) -> tuple[str, ...]:
        """Names of the services that the method itself is given."""
        known = {item.name for item in fields(self.METHOD) if item.init}
        return tuple(name for name in self.PARTS if name in known and name in self._parts)

    def component(self) -> Any:
        """Return the method's public class with its services; models that are not there are loaded.

        One for each table: what a component remembers of one would tell in the costs of the next.
        """
        return self.METHOD.from_dict(self.options, **{name: self._parts[name] for name in self.services})

    @abstractmethod
    def case(self, row: Given) -> tuple[Any, ...]:
        """Return what the method is asked about a row.

        Raises:
            InputError: If a field is not what it has to be.
        """

    @abstractmethod
    def cells(self, result: Any) -> Cells:
        """Return what of a result stands in which column."""

    def _check(self) -> None:
        for item in fields(self.METHOD):
            if item.name in self.PARTS and item.default is MISSING:
                self._parts.require(item.name, type(self).__name__)
        found, options = _stand_ins(), self.options
        if "threshold" in options:
            threshold = from_plain(self.OPTIONS["threshold"].kind, options["threshold"])
            # Whether a policy was made for this reader is known where the reader is.
            options["threshold"] = threshold.threshold if isinstance(threshold, Policy) else threshold
        self.METHOD.from_dict(options, **{name: found[name] for name in self.services})

    def _results(self, rows: Sequence[Given]) -> list[Cells | Exception]:
        component = self.component()
        cases = [_outcome(self.case, row) for row in rows]
        programs = [component.program(*case) for case in cases if not isinstance(case, Exception)]
        services: Services = component.services
        local = services.reader is None or services.reader.capabilities.local
        window = max(len(programs) if local else min(len(programs), _THREADS), 1)
        results = iter(run_many(programs, services, window=window, return_exceptions=True))
        found = [case if isinstance(case, Exception) else next(results) for case in cases]
        return [
            one if isinstance(one, Exception) else {**self.cells(one), **_costs(one.spent)} for one in found
        ]


def _outcome(function: Any, row: Given) -> Any:
    try:
        return function(row)
    except Exception as error:
        return error


def _costs(spent: Costs | None) -> Cells:
    told = (spent or Costs()).to_dict()
    return {name: None if told[name] == "" else told[name] for name in COSTS}
