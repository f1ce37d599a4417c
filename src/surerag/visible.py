"""Texts of strangers as they may be shown: documents, answers and names can hold commands to a terminal."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    # Colours, cursor and screen; titles, links and the clipboard; all else.
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\^-~]"
)
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"
    # What turns the direction of writing can make a text read as another.
    r"\u202a-\u202e\u2066-\u2069]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Take out of a text what a terminal would obey rather than show; line ends and tabs stay.

    A lone surrogate, which no terminal's encoding can hold, becomes ``�``.

    Example:
        >>> visible("Velm\x1b[2J\x1b]0;owned\x07 lies\r on the \u202eOrun")
        'Velm lies on the Orun'
    """
    return _SURROGATE.sub("�", _CONTROL.sub("", _SEQUENCE.sub("", text)))
