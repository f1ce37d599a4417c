"""Rewrites and preferences in trl's formats, so that any trainer can be put in between, or any data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from surerag.errors import InputError
from surerag.evaluation.inputs import read_records, text_field
from surerag.prompts import PromptTemplate
from surerag.storage import whole_lines
from surerag.training.rewriter.tables import queries_of

_QUERY: Final = ("query", "question", "input", "instruction", "prompt")
_REWRITE: Final = ("rewrite", "rewritten", "completion", "output", "response")
_MARK: Final = "\U000f5a13"


def export_rewrites(rewrites: Path, file: Path, prompt: PromptTemplate) -> int:
    """Write what a teacher wrote as trl's conversational ``prompt`` and ``completion``, in JSON lines.

    Args:
        rewrites: The first stage's ``rewrites.parquet``.
        file: Where to.
        prompt: That the student will get.

    Returns:
        How many rows there are.
    """
    rows = (row for group in queries_of(rewrites, "rewrites") for row in group if row["learnt"])
    return _written(
        file,
        (
            {
                "prompt": _turn("user", prompt.render(query=row["query"])),
                "completion": _turn("assistant", row["rewrite"]),
            }
            for row in rows
        ),
    )


def export_pairs(pairs: Path, file: Path, prompt: PromptTemplate) -> int:
    """Write preferences as trl's conversational ``prompt``, ``chosen`` and ``rejected``, in JSON lines.

    Args:
        pairs: The third stage's ``pairs.parquet``.
        file: Where to.
        prompt: That the rewriter gets.

    Returns:
        How many rows there are.
    """
    rows = (row for group in queries_of(pairs, "pairs") for row in group)
    return _written(
        file,
        (
            {
                "prompt": _turn("user", prompt.render(query=row["query"])),
                "chosen": _turn("assistant", row["better"]),
                "rejected": _turn("assistant", row["worse"]),
            }
            for row in rows
        ),
    )


def read_rewrites(file: Path, prompt: PromptTemplate) -> list[tuple[str, str]]:
    """Return queries and rewrites of one's own: columns ``query`` and ``rewrite``, or trl's.

    A prompt that is ours with a query in it stands for that query.

    Raises:
        InputError: If a row cannot be used, or there is none.
    """
    found = [
        (_query(_text(record, _QUERY, place), prompt), _text(record, _REWRITE, place))
        for place, record in read_records(file)
    ]
    if not found:
        raise InputError(f"{file} holds no rewrite")
    return found


def read_pairs(file: Path, prompt: PromptTemplate) -> list[tuple[str, str, str]]:
    """Return queries, better and worse rewrites of one's own: ``prompt``, ``chosen`` and ``rejected``.

    Raises:
        InputError: If a row cannot be used, or there is none.
    """
    found = [
        (
            _query(_text(record, _QUERY, place), prompt),
            _text(record, ("chosen", "better"), place),
            _text(record, ("rejected", "worse"), place),
        )
        for place, record in read_records(file)
    ]
    if not found:
        raise InputError(f"{file} holds no pair")
    return found


def _turn(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def _written(file: Path, rows: Iterator[dict[str, Any]]) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with whole_lines(file) as write:
        for row in rows:
            write(json.dumps(row, ensure_ascii=False))
            count += 1
    return count


def _text(record: Any, names: tuple[str, ...], place: Any) -> str:
    """Return a field that is a text, or a conversation, whose last turn counts."""
    known = record if isinstance(record, Mapping) else {}
    value = next((known[name] for name in names if known.get(name)), None)
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        value = value[-1].get("content")
    return text_field(value, names[0], place)


def _query(text: str, prompt: PromptTemplate) -> str:
    before, _, after = prompt.render(query=_MARK).partition(_MARK)
    if text.startswith(before) and text.endswith(after) and len(text) > len(before) + len(after):
        return text[len(before) : len(text) - len(after)]
    return text
