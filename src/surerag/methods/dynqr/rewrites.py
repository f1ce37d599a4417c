"""A rewriter's reply: the query in it, and the documents that the query adds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

from surerag.types import Generation, Passage

Trouble = Literal["empty", "unchanged", "too long"]

_LABEL = re.compile(
    r"(?:here is (?:the|a) )?(?:the )?(?:rewritten|rewrite|reformulated|improved|standalone|stand-alone)?\s*"
    r"(?:search )?(?:query|question|rewrite|output)\s*:\s*(?=\S)",
    re.IGNORECASE,
)
_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "«": "»"}
_FRAME = " \t\r\n\"'`.?!“”«»"


class Rewrite(NamedTuple):
    """A query in other words, and why it cannot be used, if it cannot."""

    text: str
    trouble: Trouble | None = None


def read_rewrite(reply: Generation, query: str, max_words: int) -> Rewrite:
    """Read a rewriter's reply: its label and quotes are removed, its lines joined.

    Args:
        reply: What the rewriter said.
        query: What it was asked to rewrite; the same words again are no rewrite.
        max_words: A longer reply is no query; one that was cut off at its limit is half of one.

    Example:
        >>> read_rewrite(Generation('Rewritten query: "Where was Ada born?"'), "Where was she born?", 64)
        Rewrite(text='Where was Ada born?', trouble=None)
        >>> read_rewrite(Generation("where was Ada  born"), "Where was Ada born?", 64).trouble
        'unchanged'
    """
    text = " ".join(reply.text.split())
    text = _unquoted(_LABEL.sub("", text, count=1) if _LABEL.match(text) else text)
    if not text.strip(_FRAME):
        return Rewrite("", "empty")
    if reply.finish == "length" or len(text.split()) > max_words:
        return Rewrite(text, "too long")
    if _bare(text) == _bare(query):
        return Rewrite(text, "unchanged")
    return Rewrite(text)


def alternated(first: Sequence[Passage], second: Sequence[Passage], top_n: int | None) -> list[Passage]:
    """Gather passages from two lists in turn, no text twice (DynQR, section 3.2: EXPAND).

    Args:
        first: Found by the original query, best first.
        second: Found by the rewrite, best first.
        top_n: How many, at most; None for as many as the longer list has.

    Example:
        >>> a, b, c = (Passage(text) for text in "abc")
        >>> "".join(passage.text for passage in alternated([a, b], [b, c], 3))
        'abc'
    """
    limit = max(len(first), len(second)) if top_n is None else top_n
    found: dict[str, Passage] = {}
    for pair in zip_longest(first, second):
        for passage in pair:
            if passage is not None:
                found.setdefault(passage.text, passage)
    return list(found.values())[:limit]


def _unquoted(text: str) -> str:
    inner = text[1:-1]
    framed = len(text) > 1 and _QUOTES.get(text[0]) == text[-1]
    return inner.strip() if framed and text[0] not in inner and text[-1] not in inner else text


def _bare(text: str) -> str:
    return " ".join(text.strip(_FRAME).casefold().split())
