"""Run methods on Ray Data: a class for ``Dataset.map_batches`` that builds its method inside each actor.

Models and retrievers cannot be sent to another process, but their settings can. So ``map_batches`` takes a
class, the name of your function that builds the method, and settings. Each actor calls this function once::

    def lazy(model: str) -> LazyRAG: ...

    dataset.map_batches(
        MapMethod, fn_constructor_args=["my_package.pipelines:lazy"], batch_format="pyarrow",
        fn_constructor_kwargs={"settings": {"model": "Qwen/Qwen3-0.6B"}}, batch_size=256,
    )

With a local model, results depend slightly on the batch. If Ray forms the same batches as a single process,
the results are the same. Otherwise scores may differ in the fifth decimal.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from surerag.component import Component
from surerag.drivers import run_many
from surerag.errors import MISCONFIGURED, ConfigurationError, extra
from surerag.messages import Passage

if TYPE_CHECKING:
    import pyarrow as pa

Factory = Callable[..., Component[Any]]


class MapMethod:
    """A callable that answers an Arrow table of questions, and returns the table with columns of results.

    A failed row keeps its place: the column ``error`` has the message, and other result columns are null. A
    wrong configuration (a missing column, a reader without log-probabilities) raises an error instead.

    Args:
        factory: ``"module:function"``, or a function that can be pickled; called once with ``settings``.
        settings: Keyword arguments of the factory, as plain values.
        arguments: Columns that hold the arguments of the method's ``run``, in order. A list column of texts
            or of structs with a field ``text`` becomes passages.
        columns: Result columns to add, with the dotted path of an attribute of the result, such as
            ``{"retrieved": "decision.retrieve"}``. None adds ``result``, the whole result as JSON.
        window: Number of questions to work on at a time.

    Raises:
        ConfigurationError: If the factory cannot be imported, or does not return a component of surerag, such
            as :class:`surerag.LazyRAG`.
    """

    def __init__(
        self,
        factory: str | Factory,
        *,
        settings: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = ("question",),
        columns: Mapping[str, str] | None = None,
        window: int = 64,
    ) -> None:
        build = load_function(factory) if isinstance(factory, str) else factory
        self._method = build(**(settings or {}))
        if not isinstance(self._method, Component):
            raise ConfigurationError(
                f"{factory} returned {type(self._method).__name__}, expected a method",
                hint="let the factory return a LazyRAG, ClusterCompressor or another component of surerag",
            )
        self._arguments, self._columns, self._window = tuple(arguments), columns, window

    def __call__(self, table: pa.Table) -> pa.Table:
        """Answer the question in each row, and return the table with the columns of results."""
        with extra("parquet"):
            import pyarrow as pa
        missing = [name for name in self._arguments if name not in table.column_names]
        if missing:
            raise ConfigurationError(
                f"the table has no column {missing[0]!r}",
                hint=f"the table has {', '.join(table.column_names)}; name other columns with arguments=…",
            )
        rows = table.select(list(self._arguments)).to_pylist()
        outcomes = run_many(
            [self._method.program(*(_argument(value) for value in row.values())) for row in rows],
            self._method.services,
            window=self._window,
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, MISCONFIGURED):
                raise outcome
        errors = [str(item) if isinstance(item, BaseException) else None for item in outcomes]
        # If no columns were chosen, the column "result" holds the whole result as JSON.
        for name, path in ({"result": ""} if self._columns is None else self._columns).items():
            table = table.append_column(name, pa.array([_cell(item, path) for item in outcomes]))
        return table.append_column("error", pa.array(errors, pa.string()))


def load_function(path: str) -> Factory:
    """Return the function that ``"module:function"`` names; raise ConfigurationError if there is none."""
    module, _, name = path.partition(":")
    try:
        function: Factory = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"cannot import {path!r}: {error}", hint="write it as module:function, as Python imports it"
        ) from error
    return function


def to_plain(value: Any) -> Any:
    """Return a result as JSON values: dataclasses become mappings, without framework objects and vectors.

    Example:
        >>> to_plain(Passage("Ada", id="1", score=0.5))
        {'text': 'Ada', 'id': '1', 'score': 0.5, 'metadata': {}}
    """
    if isinstance(value, str | int | float | bool | None):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value) if item.repr]
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return str(value)


def _argument(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [Passage(item) if isinstance(item, str) else Passage(**item) for item in value]


def _cell(outcome: Any, path: str) -> Any:
    if isinstance(outcome, BaseException):
        return None
    return _attribute(to_plain(outcome), path) if path else json.dumps(to_plain(outcome))


def _attribute(value: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise ConfigurationError(
                f"a result has no {path!r}",
                hint=f"instead of {name!r}, the result has {', '.join(value) if value else 'nothing'}",
            )
        value = value[name]
    return value
