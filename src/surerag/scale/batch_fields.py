"""Which column of a table is what, and what stands in its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from surerag.errors import InputError
from surerag.evaluation.inputs.columns import FIELDS, NAMES, columns_of, value_of
from surerag.evaluation.inputs.entries import Place
from surerag.evaluation.inputs.fields import (
    TEXTS,
    contexts_field,
    from_cell,
    from_deepeval,
    golds_field,
    name_field,
    text_field,
)
from surerag.extras import extra
from surerag.types import Passage

with extra("parquet"):
    import pyarrow as pa

_PLACE: Final = Place(Path("the table"), "row", 1)
_ROW: Final = "the row"


class Given(NamedTuple):
    """A row's fields as they stand there, before they are checked.

    Attributes:
        values: By field; None where there is none.
        columns: Of which column each is.
    """

    values: Mapping[str, Any]
    columns: Mapping[str, str]

    @property
    def question(self) -> str:
        """The question.

        Raises:
            InputError: If there is none; as for all that follow.
        """
        return text_field(self.values.get("question"), "question", _ROW)

    @property
    def text(self) -> str:
        """The text of a document or passage."""
        return text_field(self.values.get("text"), "text", _ROW)

    @property
    def id(self) -> str:
        """Its id."""
        return name_field(self.values.get("id"), "id", _ROW)

    @property
    def golds(self) -> tuple[str, ...]:
        """Gold answers, at least one."""
        return golds_field(self.values.get("answers"), _ROW, cells=True)

    @property
    def passages(self) -> list[Passage]:
        """What was retrieved, all steps in a row; a passage without an id goes by its rank, from 1."""
        column, value = self.columns.get("contexts", ""), self.values.get("contexts")
        if column == "retrieval_context":
            value = from_deepeval(value)
        steps = contexts_field(value, _ROW, cells=True, single=column.endswith("context"))
        raw = list(_flat(from_cell(value)))
        return [
            Passage(passage.text, id=_id_of(one, rank))
            for rank, (passage, one) in enumerate(zip(_flat(steps), raw, strict=True), start=1)
        ]


def found_columns(schema: pa.Schema, given: Mapping[str, str], needed: Sequence[str]) -> dict[str, str]:
    """Find out which column of a table is what: as the user says, else by the names that evaluation knows.

    Args:
        schema: Of the table.
        given: Columns by field, as the user says.
        needed: Fields; ``text`` and those of questions.

    Returns:
        Columns by field; a dot leads into an object.

    Raises:
        InputError: If there is no column for a field, naming those that there are.
    """
    record = {field.name: _sample(field.type) for field in schema}
    columns = columns_of(record, {}, (), _PLACE)
    known: dict[str, str | None] = {field: getattr(columns, field) for field in FIELDS}
    known["text"] = next((name for name in TEXTS if name in record), None)
    found: dict[str, str] = {}
    for field in needed:
        column = given.get(field, known[field])
        if column is None or value_of(record, column) is None:
            missing = (
                f"column for {field!r}" if column is None else f"column {column!r}, which is to be {field!r}"
            )
            usual = NAMES[field] if field in FIELDS else TEXTS
            raise InputError(
                f"the table has no {missing}; found {', '.join(map(repr, record)) or 'none at all'}",
                hint=f"name it: columns={{{field!r}: …}}; by themselves are found {', '.join(usual[:4])} …",
            )
        found[field] = column
    return found


def rows_of(table: pa.Table, columns: Mapping[str, str]) -> Iterator[Given]:
    """Yield the rows of a table, with nothing read but the columns that are named."""
    whole = list(dict.fromkeys(_whole(table, column) for column in columns.values()))
    for record in table.select(whole).to_pylist():
        yield Given({field: value_of(record, column) for field, column in columns.items()}, columns)


def _whole(table: pa.Table, column: str) -> str:
    """Return the table's own column of what may lie within an object."""
    return column if column in table.column_names else column.partition(".")[0]


def _sample(kind: pa.DataType) -> Any:
    """Return something of a type, so that names can be looked for before a row is read."""
    if pa.types.is_struct(kind):
        return {kind.field(at).name: True for at in range(kind.num_fields)}
    return [""] if pa.types.is_list(kind) or pa.types.is_large_list(kind) else True


def _flat(steps: Any) -> Iterable[Any]:
    """Return what steps hold in a row; a list without steps is one."""
    given = steps if isinstance(steps, list | tuple) else [steps]
    if given and all(isinstance(step, list | tuple) for step in given):
        return [one for step in given for one in step]
    return given


def _id_of(passage: Any, rank: int) -> str:
    if isinstance(passage, Mapping):
        named = next((passage[name] for name in NAMES["id"] if passage.get(name) is not None), None)
        if named is not None:
            return name_field(named, "id", _ROW)
    return str(rank)
