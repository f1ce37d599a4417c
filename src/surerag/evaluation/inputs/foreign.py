"""Shapes that data sets are published in, turned into rows under our names."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from surerag.errors import InputError
from surerag.evaluation.inputs.entries import Choose, Entry, Place, Start
from surerag.evaluation.inputs.json_files import json_lines
from surerag.evaluation.inputs.streams import opened
from surerag.places import Anywhere

SPLITS = ("test", "dev", "train")


def unfolded(entries: Iterator[Entry], skip: int = 0) -> Iterator[Entry]:
    """Yield several rows where a record holds several: a SQuAD article, a wrapped row.

    Args:
        entries: As they stand in the file.
        skip: Rows of the first one to leave out.
    """
    for entry in entries:
        rows = _rows_of(entry.record)
        if rows is None:
            yield entry
        else:
            for at, row in islice(enumerate(rows), skip, None):
                yield Entry(entry.start._replace(skip=at), entry.place, row)
        skip = 0


def _rows_of(record: Any) -> list[Any] | None:
    """Return the rows that a record stands for; None if it is one."""
    if not isinstance(record, Mapping):
        return None
    if isinstance(record.get("paragraphs"), list) and all(
        isinstance(part, Mapping) and isinstance(part.get("qas"), list) for part in record["paragraphs"]
    ):
        return [
            {**asked, "contexts": [part.get("context")], "answers": _texts(asked.get("answers"))}
            for part in record["paragraphs"]
            for asked in part["qas"]
        ]
    if isinstance(record.get("row"), Mapping) and "row_idx" in record:
        return _rows_of(record["row"]) or [record["row"]]
    if "supporting_facts" in record and "context" in record and (shown := _titled(record["context"])):
        golds = record.get("answer")
        return [{**record, "contexts": shown, "answers": [golds] if isinstance(golds, str) else golds}]
    return None


def _texts(answers: Any) -> Any:
    if isinstance(answers, list) and all(isinstance(one, Mapping) for one in answers):
        return list(dict.fromkeys(one.get("text") for one in answers))
    return answers


def _titled(context: Any) -> list[str] | None:
    """Return HotpotQA's paragraphs, each under its title."""
    if isinstance(context, str):
        try:
            context = json.loads(context)
        except ValueError:
            return None
    if isinstance(context, Mapping):
        context = list(zip(context.get("title", ()), context.get("sentences", ()), strict=False))
    try:
        return [f"{title}\n{''.join(sentences)}" for title, sentences in context]
    except (TypeError, ValueError):
        return None


def beir_rows(folder: Anywhere, split: str, start: Start, _: Choose | None = None) -> Iterator[Entry]:
    """Yield the queries of a BEIR folder that were judged, with the documents that were found relevant.

    Only the places of relevant documents are held.

    Raises:
        InputError: If a file is missing or damaged.
    """
    judged = _relevant(folder / "qrels" / f"{split}.tsv")
    wanted = {name for names in judged.values() for name in names}
    corpus = folder / "corpus.jsonl"
    places = {
        str(entry.record.get("_id")): entry.start
        for entry in (json_lines(corpus, Start()) if corpus.is_file() else ())
        if isinstance(entry.record, Mapping) and str(entry.record.get("_id")) in wanted
    }
    for entry in json_lines(folder / "queries.jsonl", start):
        record = entry.record
        if not isinstance(record, Mapping) or (names := judged.get(str(record.get("_id")))) is None:
            continue
        shown = [_document(corpus, places[name]) for name in names if name in places]
        more = record.get("metadata")
        row = {**(more if isinstance(more, Mapping) else {}), "id": str(record.get("_id")), "contexts": shown}
        yield Entry(entry.start, entry.place, {**row, "question": record.get("text")})


def beir_split(folder: Anywhere) -> str:
    """Return which judgements of a BEIR folder are taken: the test's, if it has them.

    Raises:
        InputError: If there are none.
    """
    for name in SPLITS:
        if (folder / "qrels" / f"{name}.tsv").is_file():
            return name
    raise InputError(f"{folder}/qrels holds none of {', '.join(f'{name}.tsv' for name in SPLITS)}")


def _relevant(file: Anywhere) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with opened(file) as stream:
        rows = csv.reader((line.decode("utf-8") for line in stream), delimiter="\t")
        for number, cells in enumerate(rows, start=1):
            if len(cells) < 3:
                raise InputError(
                    f"{Place(file, 'line', number)}: a query, a document and a score are expected"
                )
            if number == 1 and not cells[2].lstrip("-").isdigit():
                continue
            if int(cells[2]) > 0:
                found.setdefault(cells[0], []).append(cells[1])
    return found


def _document(corpus: Anywhere, start: Start) -> str:
    record = next(json_lines(corpus, start)).record
    return f"{record.get('title') or ''}\n{record.get('text') or ''}".strip()
