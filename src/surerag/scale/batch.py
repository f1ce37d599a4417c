"""What every batch callable shares: plain settings in, a table in, the same table with typed columns out."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from surerag.errors import MISCONFIGURED, ConfigurationError, InputError, StorageError
from surerag.extras import extra
from surerag.options import check_among
from surerag.runs.tables import encodable
from surerag.scale.batch_fields import Given, found_columns, rows_of
from surerag.scale.settings import Parts, plain_settings

with extra("parquet"):
    import pyarrow as pa

ENDING: Final = (*MISCONFIGURED, StorageError)
"""What ends the whole work: it would come again with every row."""


class Column(NamedTuple):
    """A column of results: its type, and what stands in it."""

    kind: pa.DataType
    doc: str


Cells = Mapping[str, Any]
"""What stands in a row's columns of results, by their names."""

ERROR: Final = Column(pa.string(), "what went wrong with this row; null where nothing did")


class Batch:
    """A callable from an Arrow table to the same table with columns of results.

    It is made of plain settings, on each worker anew; what it is pickled as are these settings. Making one
    loads no model: settings are checked, and a wrong one raises where the work is set up, not on a worker.
    Models are loaded at the first call, and nothing but them outlives a call: a table's results depend on
    this table alone.

    A row that cannot be worked on has its reason in the column ``error``, null in all other columns of
    results, and costs the others nothing. What is misconfigured raises.

    Args:
        columns: Which column of the table is what, where it is not found by its name: ``{"question":
        "query"}``. prefix: What columns of results begin with, and an underscore.
        **settings: See the class.

    Attributes:
        FIELDS: What has to be in the table.
        PARTS: Settings that name services.
        OPTIONS: All other settings.
        COLUMNS: Results, by their names without the prefix.
        PREFIX: What their names begin with where no ``prefix`` is given.

    Raises:
        ConfigurationError: If a setting is unknown, out of bounds, not plain, or holds a key.
        MissingServiceError: If a service is not there.
    """

    FIELDS: ClassVar[tuple[str, ...]]
    PARTS: ClassVar[tuple[str, ...]] = ()
    OPTIONS: ClassVar[Mapping[str, Any]] = {}
    COLUMNS: ClassVar[Mapping[str, Column]]
    PREFIX: ClassVar[str]

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Show settings in the signature and columns in the help of a class that has some."""
        super().__init_subclass__(**arguments)
        defaults = {**dict.fromkeys(cls.PARTS), **cls.OPTIONS, "columns": None, "prefix": None}
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # read by inspect
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(one, "default", one))
                for name, one in defaults.items()
            ]
        )
        if "COLUMNS" in vars(cls):
            cls.COLUMNS = {**cls.COLUMNS, "error": ERROR}
            listed = [
                f"    {cls.PREFIX}_{name} ({one.kind}): {one.doc}." for name, one in cls.COLUMNS.items()
            ]
            cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Columns:", *listed])

    def __init__(
        self, *, columns: Mapping[str, str] | None = None, prefix: str | None = None, **settings: Any
    ) -> None:
        check_among([*self.PARTS, *self.OPTIONS, "columns", "prefix"], settings, type(self).__name__)
        shared = {"columns": columns, "prefix": prefix}
        self._settings = plain_settings(
            {**settings, **{name: value for name, value in shared.items() if value is not None}}
        )
        self._columns: Mapping[str, str] = self._settings.get("columns", {})
        self._prefix = self.PREFIX if prefix is None else prefix
        check_among(self.fields, self._columns, "columns")
        self._parts = Parts({name: self._settings.get(name) for name in self.PARTS})
        self._check()

    @property
    def settings(self) -> dict[str, Any]:
        """What it was made of, in plain values: ``fn_constructor_kwargs`` of Ray Data's ``map_batches``."""
        return dict(self._settings)

    @property
    def fields(self) -> tuple[str, ...]:
        """What has to be in the table, with these settings."""
        return self.FIELDS

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        return f"{type(self).__name__}({told})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), self._settings)

    @property
    def schema(self) -> pa.Schema:
        """The columns that it adds to a table, whatever comes of the rows."""
        return pa.schema([(self._named(name), column.kind) for name, column in self.COLUMNS.items()])

    def __call__(self, table: pa.Table | pa.RecordBatch) -> pa.Table:
        """Work on the rows of a table as one batch.

        Args:
            table: With the columns that are needed; an empty one loads no model.

        Returns:
            The table, other columns untouched and in their order, and :attr:`schema` after them.

        Raises:
            InputError: If it is no table, or a column is missing.
            ConfigurationError: If it has columns of the same names as the results.
            Exception: What is misconfigured (:data:`surerag.errors.MISCONFIGURED`).
        """
        given = self._checked(table)
        columns = found_columns(given.schema, self._columns, self.fields)
        rows = list(rows_of(given, columns))
        return self._with_results(given, self._results(rows) if rows else [])

    def _checked(self, table: Any) -> pa.Table:
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise InputError(
                f"expected a pyarrow.Table, got {type(table).__name__}",
                hint='tell map_batches batch_format="pyarrow"',
            )
        twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
        if twice:
            raise InputError(f"the table has two columns {', '.join(map(repr, twice))}", hint="rename one")
        taken = sorted(set(table.column_names) & set(self.schema.names))
        if taken:
            raise ConfigurationError(
                f"the table already has {', '.join(map(repr, taken))}",
                hint=f"give {type(self).__name__} another prefix, or drop these columns first",
            )
        return table

    def _with_results(self, table: pa.Table, results: Sequence[Cells | Exception]) -> pa.Table:
        for error in results:
            if isinstance(error, ENDING):
                raise error
        cells = [
            {"error": f"{type(one).__name__}: {one}"} if isinstance(one, Exception) else one
            for one in results
        ]
        for name, column in self.COLUMNS.items():
            table = table.append_column(
                self._named(name), _array([one.get(name) for one in cells], column.kind)
            )
        return table

    def _named(self, name: str) -> str:
        return f"{self._prefix}_{name}" if self._prefix else name

    def _check(self) -> None:
        """Check what the settings say together."""

    def _results(self, rows: Sequence[Given]) -> list[Cells | Exception]:
        """Return what comes of each row, at least one."""
        raise NotImplementedError


def _made(kind: type[Batch], settings: Mapping[str, Any]) -> Batch:
    return kind(**settings)


def _array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    held = list(values)
    try:
        return pa.array(held, kind)
    except UnicodeEncodeError:  # a model's answer may hold a lone surrogate, which UTF-8 cannot
        return pa.array(encodable(held), kind)
