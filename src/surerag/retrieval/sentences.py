"""Where sentences begin and end."""

from __future__ import annotations

import re
from typing import NamedTuple

from sentencex import get_sentence_boundaries

_SURROGATE = re.compile("[\ud800-\udfff]")


class Sentence(NamedTuple):
    """A sentence as it stands in its text: ``text[start:end]``, without surrounding white space."""

    text: str
    start: int
    end: int


def split_sentences(text: str, language: str = "en") -> list[Sentence]:
    """Split a text into its sentences, verbatim, with offsets in characters.

    Args:
        text: Any text; a blank line ends a sentence too.
        language: ISO 639 code, for its abbreviations and marks.

    Example:
        >>> [s.text for s in split_sentences("Dr. Voss left. She was tired!")]
        ['Dr. Voss left.', 'She was tired!']
    """
    found: list[Sentence] = []
    # A model's answer may hold lone surrogates, which UTF-8 cannot.
    for boundary in get_sentence_boundaries(language, _SURROGATE.sub("\ufffd", text)):
        piece: str = boundary["text"]
        stripped = piece.strip()
        if stripped:
            start = boundary["start_index"] + len(piece) - len(piece.lstrip())
            end = start + len(stripped)
            found.append(Sentence(text[start:end], start, end))
    return found
