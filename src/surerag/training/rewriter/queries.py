"""Training queries, from data sets as people have them; of their columns only the question is needed."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from surerag.errors import InputError
from surerag.evaluation.inputs import Field, source_of
from surerag.evaluation.inputs.entries import Start
from surerag.evaluation.inputs.reading import QUESTION, parsed

logger = logging.getLogger("surerag")


@dataclass(frozen=True, slots=True)
class Query:
    """A query to train with.

    Attributes:
        text: As asked.
        golds: Gold answers; needed for the rewards ``"answer"`` and ``"retrieval"``.
        id: Identifier; the text itself if it is left out.
        kind: What queries are drawn by in equal parts, if they are.
    """

    text: str
    golds: tuple[str, ...] = ()
    id: str = ""
    kind: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", self.text)


def merged(first: Query, other: Query) -> Query:
    """Return a query with the gold answers of both."""
    return replace(first, golds=tuple(dict.fromkeys((*first.golds, *other.golds))))


def as_queries(queries: Iterable[Query | str]) -> list[Query]:
    """Return queries, each text once, with the gold answers of all that have it.

    Raises:
        InputError: If there is none, or one without a word.
    """
    found: dict[str, Query] = {}
    rows = 0
    for given in queries:
        rows += 1
        query = Query(given) if isinstance(given, str) else given
        if not query.text.strip():
            raise InputError("a query is empty", hint="leave empty queries out")
        found[query.text] = merged(found[query.text], query) if query.text in found else query
    if not found:
        raise InputError("there is no query", hint="give at least one")
    if rows > len(found):
        logger.info("%d of %d queries are duplicates; gold answers were merged", rows - len(found), rows)
    return list(found.values())


def read_queries(
    file: Path, columns: Mapping[Field, str] | None = None, *, kind: str | None = None
) -> Iterator[Query]:
    """Yield queries of a data set, with gold answers and ids where there are some; none is kept.

    Args:
        file: JSONL, CSV, Parquet, or any other format that :func:`surerag.evaluation.inputs.source_of` knows.
        columns: Which column is what, where it is not found by its name.
        kind: The column by which queries are to be drawn in equal parts.

    Raises:
        InputError: If a row cannot be used, naming file, row and field.
        MissingExtraError: If it is a table in Parquet or Arrow and pyarrow is not installed.
    """
    # A data set's systems are of no matter here: a column for them is one that tells queries apart.
    given: dict[Field, str] = {**(columns or {}), **({} if kind is None else {"system": kind})}
    for one in parsed(source_of(file), Start(), given, QUESTION):
        yield Query(one.question, one.golds, one.id or "", (one.system or "") if kind else "")


def digest_of(queries: Sequence[Query]) -> str:
    """Return a digest of the queries' texts, in order."""
    content = json.dumps([query.text for query in queries])
    return hashlib.sha256(content.encode("ascii")).hexdigest()[:16]
