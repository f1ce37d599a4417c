"""What is searched: a folder of documents or a file of passages, and an index of it that is made once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from surerag.documents import load_documents
from surerag.errors import InputError
from surerag.evaluation.inputs import read_records
from surerag.evaluation.inputs.fields import from_cell, name_field, text_field
from surerag.retrieval import PassageIndex, chunk_documents
from surerag.services import Encoder
from surerag.storage import storing, write_whole
from surerag.types import Passage

TEXTS: Final = ("text", "page_content", "content", "contents", "passage", "chunk", "document")
IDS: Final = ("id", "_id", "doc_id", "docid", "pid", "passage_id")
_VECTORS, _ABOUT = "vectors.npy", "index.json"


def read_corpus(path: Path) -> list[Passage]:
    """Return passages: of a folder, cut from its documents; of a table, a row each.

    A row has a text, perhaps an id, and perhaps an object ``metadata``; its other columns are metadata, too.

    Args:
        path: A folder of txt, md, html and pdf files; or a file in JSONL, CSV, Parquet and the like.

    Raises:
        InputError: If there is nothing, or a row cannot be used, naming it.
    """
    if not path.exists():
        raise InputError(f"{path} is not there", hint="give a folder of documents, or a file of passages")
    if path.is_dir():
        passages = chunk_documents(load_documents(path).documents)
    else:
        passages = [_passage(record, place) for place, record in read_records(path)]
    if not passages:
        raise InputError(f"{path} holds no passage", hint="give some text to search")
    return passages


def digest_of(passages: Sequence[Passage]) -> str:
    """Return how many passages there are, and a digest of their ids and texts."""
    digest = hashlib.sha256()
    for passage in passages:
        digest.update(f"{passage.id}\n{passage.text}\n".encode("utf-8", "backslashreplace"))
    return f"{len(passages)} passages, digest {digest.hexdigest()[:16]}"


def indexed(passages: Sequence[Passage], encoder: Encoder, folder: Path) -> PassageIndex:
    """Return an index of passages; its vectors are kept, and used again while both are the same.

    Args:
        passages: The corpus.
        encoder: Encodes it.
        folder: Where vectors are kept.

    Raises:
        StorageError: If they cannot be written.
    """
    about = {"corpus": digest_of(passages), "encoder": encoder.name}
    vectors, described = folder / _VECTORS, folder / _ABOUT
    if described.is_file() and json.loads(described.read_text(encoding="utf-8")) == about:
        return PassageIndex(passages, np.load(vectors, allow_pickle=False), encoder)
    index = PassageIndex.from_passages(passages, encoder)
    described.unlink(missing_ok=True)
    with storing(vectors):
        folder.mkdir(parents=True, exist_ok=True)
        np.save(vectors, index.vectors)
    write_whole(described, json.dumps(about, indent=2) + "\n")
    return index


def _passage(record: Any, place: Any) -> Passage:
    if isinstance(record, str):
        return Passage(text_field(record, "text", place))
    if not isinstance(record, Mapping):
        raise InputError(f"{place}: a passage is an object with a text, found {type(record).__name__}")
    text = next((name for name in TEXTS if record.get(name) is not None), None)
    if text is None:
        raise InputError(
            f"{place}: the field 'text' is missing; found {', '.join(map(repr, record)) or 'no field'}",
            hint=f"call the column one of {', '.join(TEXTS)}",
        )
    known = next((name for name in IDS if record.get(name) is not None), None)
    inner = from_cell(record.get("metadata"))
    other = {
        name: value
        for name, value in record.items()
        if name not in (text, known, "metadata") and value is not None
    }
    return Passage(
        text_field(record[text], "text", place),
        id="" if known is None else name_field(record[known], "id", place),
        metadata={**other, **(inner if isinstance(inner, Mapping) else {})},
    )
