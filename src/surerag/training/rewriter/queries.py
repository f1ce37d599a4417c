"""Training queries: JSONL and Parquet files with the fields of a data set, of which only one is needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surerag.errors import InputError
from surerag.extras import extra

_SHOWN = 60
JSON_LINES, PARQUET = (".jsonl", ".ndjson"), (".parquet", ".pq")


@dataclass(frozen=True, slots=True)
class Query:
    """A query to train with.

    Attributes:
        text: As asked.
        golds: Gold answers; needed for the rewards ``"answer"`` and ``"retrieval"``.
        id: Identifier; the text itself if it is left out.
    """

    text: str
    golds: tuple[str, ...] = ()
    id: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", self.text)


def as_queries(queries: Iterable[Query | str]) -> list[Query]:
    """Return queries, each text once.

    Raises:
        InputError: If there is none, or one without a word.
    """
    found: dict[str, Query] = {}
    for given in queries:
        query = Query(given) if isinstance(given, str) else given
        if not query.text.strip():
            raise InputError("a query is empty", hint="leave empty queries out")
        found.setdefault(query.text, query)
    if not found:
        raise InputError("there is no query", hint="give at least one")
    return list(found.values())


def read_queries(file: Path) -> list[Query]:
    """Read the fields ``question`` and, if they are there, ``answers`` and ``id``; others are ignored.

    Raises:
        InputError: If a row cannot be used, naming file, row and field.
        MissingExtraError: If it is a Parquet file and pyarrow is not installed.
    """
    return as_queries(_query(record, f"{file}, row {number}") for number, record in _records(file))


def digest_of(queries: Sequence[Query]) -> str:
    """Return a digest of all that is known of the queries, in order."""
    content = json.dumps([[query.id, query.text, list(query.golds)] for query in queries])
    return hashlib.sha256(content.encode("ascii")).hexdigest()[:16]


def _records(file: Path) -> Iterator[tuple[int, Any]]:
    if not file.is_file():
        raise InputError(f"{file} is no file", hint="give a JSONL or a Parquet file")
    suffix = file.suffix.lower()
    if suffix in PARQUET:
        with extra("parquet"):
            from pyarrow import ArrowException
            from pyarrow.parquet import ParquetFile
        try:
            with ParquetFile(file) as table:
                rows = [
                    row for batch in table.iter_batches(columns=_known(table)) for row in batch.to_pylist()
                ]
        except (ArrowException, OSError) as error:
            raise InputError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
        yield from enumerate(rows, start=1)
    elif suffix in JSON_LINES:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise InputError(
                f"{file} cannot be read: {error.strerror}", hint="give a file that this user may read"
            ) from error
        # Editors on Windows put a byte-order mark before the first line.
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
            if line.strip():
                try:
                    yield number, json.loads(line.decode("utf-8"))
                except (ValueError, RecursionError) as error:
                    raise InputError(
                        f"{file}, row {number}: not a JSON object in UTF-8 ({error})",
                        hint="write one JSON object on each line",
                    ) from error
    else:
        raise InputError(
            f"{file} has the unknown format {file.suffix or 'nothing'!r}",
            hint=f"give a file that ends in {', '.join(JSON_LINES + PARQUET)}",
        )


def _known(table: Any) -> list[str]:
    return [name for name in table.schema_arrow.names if name in ("question", "answers", "id")]


def _query(record: Any, place: str) -> Query:
    if not isinstance(record, Mapping) or record.get("question") is None:
        found = ", ".join(map(repr, record)) if isinstance(record, Mapping) else type(record).__name__
        raise InputError(
            f"{place}: the field 'question' is missing; found {found or 'no field'}",
            hint="every row needs 'question'; 'answers' and 'id' are optional",
        )
    golds = record.get("answers")
    golds = [golds] if isinstance(golds, str) else golds or []
    if not isinstance(golds, Sequence):
        raise InputError(f"{place}: the field 'answers' must be a text or a list of texts")
    name = record.get("id")
    return Query(
        _text(record["question"], "question", place),
        tuple(_text(gold, "answers", place) for gold in golds),
        "" if name is None else _text(str(name) if type(name) is int else name, "id", place),
    )


def _text(value: Any, field: str, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        shown = ascii(value) if isinstance(value, str) else type(value).__name__
        raise InputError(
            f"{place}: the field {field!r} must hold texts that are not empty; found {shown[:_SHOWN]}"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: the field {field!r} must be text without lone surrogates") from error
    return value
