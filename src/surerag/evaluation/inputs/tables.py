"""CSV, Parquet and Arrow tables, read some rows at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

from surerag.errors import InputError
from surerag.evaluation.inputs.entries import Choose, Entry, Place, Start
from surerag.evaluation.inputs.streams import opened
from surerag.extras import extra
from surerag.places import Anywhere

_BATCH = 256
_LONGEST_CELL = 1 << 28


def csv_rows(
    file: Anywhere, start: Start, _: Choose | None = None, *, delimiter: str = ","
) -> Iterator[Entry]:
    """Yield the rows of a CSV file whose first line names the columns; an empty cell is missing.

    Raises:
        InputError: If it is not UTF-8, or a row has more cells than there are columns.
    """
    csv.field_size_limit(_LONGEST_CELL)
    with opened(file) as stream:
        head = _Lines(stream, file, 0)
        names = next(csv.reader(head, delimiter=delimiter), [])
        if not any(name.strip() for name in names):
            raise InputError(f"{file} has no line that names the columns", hint="begin with such a line")
        lines = head
        number = start.number
        if start.offset:
            stream.seek(start.offset)
            lines = _Lines(stream, file, start.offset)
        rows = csv.reader(lines, delimiter=delimiter)
        while True:
            here = lines.offset
            try:
                cells = next(rows, None)
            except csv.Error as error:
                raise InputError(f"{file}, row {number}: not CSV ({error})") from error
            if cells is None:
                return
            if not cells:
                continue
            place = Place(file, "row", number)
            if len(cells) > len(names):
                raise InputError(
                    f"{place}: {len(cells)} cells, and the first line names {len(names)} columns",
                    hint="put cells that hold commas or line breaks in quotation marks",
                )
            record = {name: cell or None for name, cell in zip(names, cells, strict=False)}
            yield Entry(Start(here, number), place, record)
            number += 1


class _Lines:
    """Decoded lines, and how many bytes of them were taken."""

    def __init__(self, stream: IO[bytes], file: Anywhere, offset: int) -> None:
        self._stream, self._file, self.offset = stream, file, offset

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._stream.readline()
        if not line:
            raise StopIteration
        first, self.offset = self.offset == 0, self.offset + len(line)
        try:
            return line.decode("utf-8-sig" if first else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{self._file}: the text is not UTF-8 ({error.reason})") from error


def parquet_rows(file: Anywhere, start: Start, choose: Choose | None = None) -> Iterator[Entry]:
    """Yield the rows of a Parquet file; row groups before the start are not read.

    Raises:
        InputError: If it cannot be read.
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    row = 0
    try:
        with _whole(file) as opened_file, ParquetFile(opened_file) as table:
            names = table.schema_arrow.names
            columns = names if choose is None else list(choose(names))
            groups: list[int] = []
            for group in range(table.num_row_groups):
                rows = table.metadata.row_group(group).num_rows
                if not groups and row + rows <= start.offset:
                    row += rows
                else:
                    groups.append(group)
            if not groups:
                return
            for batch in table.iter_batches(_BATCH, groups, columns=columns, use_threads=False):
                if row + batch.num_rows <= start.offset:
                    row += batch.num_rows
                    continue
                for record in batch.to_pylist():
                    row += 1
                    if row > start.offset:
                        yield Entry(Start(row - 1, row), Place(file, "row", row), record)
    except (ArrowException, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def arrow_rows(file: Anywhere, start: Start, choose: Choose | None = None) -> Iterator[Entry]:
    """Yield the rows of an Arrow file as Hugging Face writes it; what stands before the start is not read.

    Raises:
        InputError: If it cannot be read.
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        import pyarrow as pa
    row = 0
    try:
        with pa.memory_map(str(file)) if isinstance(file, Path) else opened(file) as given:
            for batch in _batches(given):
                if row + batch.num_rows <= start.offset:
                    row += batch.num_rows
                    continue
                chosen = batch if choose is None else batch.select(list(choose(batch.schema.names)))
                for at in range(0, chosen.num_rows, _BATCH):
                    for record in chosen.slice(at, _BATCH).to_pylist():
                        row += 1
                        if row > start.offset:
                            yield Entry(Start(row - 1, row), Place(file, "row", row), record)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file} cannot be read as Arrow: {str(error).splitlines()[0]}") from error


def _whole(file: Anywhere) -> AbstractContextManager[Any]:
    """Return what pyarrow opens: a path, which it reads by itself, or a stream."""
    return nullcontext(file) if isinstance(file, Path) else opened(file)


def _batches(given: Any) -> Iterator[Any]:
    import pyarrow as pa

    try:
        yield from pa.ipc.open_stream(given)
    except pa.ArrowInvalid:  # the other of Arrow's two file formats
        given.seek(0)
        table = pa.ipc.open_file(given)
        for at in range(table.num_record_batches):
            yield table.get_batch(at)
