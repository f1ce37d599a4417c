"""The answer that a consensus selects, read off the model's reply as a whole or while it is being written."""

from __future__ import annotations

import re

from surerag.types import Generation

_SELECTED = re.compile(r"selected[_ ]answer\W*?:[ \t*]*(?P<answer>[^\n]+)", re.IGNORECASE)
_AROUND = " \t\r\n*"
_REASONING = re.compile(r"reasoning\W*?:\s*(?P<reasoning>.+)", re.IGNORECASE | re.DOTALL)


def selected_answer(reply: str) -> str:
    r"""Return the answer that a reply selects; the whole reply where it keeps to no form.

    Example:
        >>> selected_answer("Reasoning: two of three say so.\nSelected_Answer: **Velm**")
        'Velm'
        >>> selected_answer("Velm it is. ")
        'Velm it is.'
    """
    found = _SELECTED.search(reply)
    return (found["answer"].strip(_AROUND) if found else "") or reply.strip()


def selects(line: str) -> bool:
    """Tell whether a line is the one that names the selected answer."""
    return _SELECTED.search(line) is not None


def reasoning_of(reply: str) -> re.Match[str] | None:
    """Find what stands behind "Reasoning:"."""
    return _REASONING.search(reply)


class SelectedPieces:
    r"""Lets the selected answer through while a reply is written, and nothing else of it.

    The pieces that come out add up to :func:`selected_answer` of the whole reply. A reply that keeps to no
    form comes out at its end.

    Example:
        >>> pieces = SelectedPieces()
        >>> [pieces.feed(piece) for piece in ("Reasoning: ", "two.\nSelected", "_Answer: **Ve", "lm", "**")]
        ['', '', 'Ve', 'lm', '']
        >>> pieces.rest()
        ''
    """

    def __init__(self) -> None:
        self._text = ""
        self._shown = 0

    def feed(self, piece: str) -> str:
        """Take a piece of the reply, and return what may be shown now."""
        self._text += piece
        found = _SELECTED.search(self._text)
        # What may be the end's decoration is held back until something follows it.
        return self._more(found["answer"].strip(_AROUND)) if found else ""

    def rest(self) -> str:
        """Return what is left to show once the reply is complete."""
        return self._more(selected_answer(self._text))

    def _more(self, answer: str) -> str:
        new, self._shown = answer[self._shown :], max(self._shown, len(answer))
        return new


def most_given(candidates: list[str]) -> Generation:
    """Return the answer that most candidates give in the same words, of equals the first one's.

    Letter case, articles and punctuation make no difference.

    Example:
        >>> most_given(["Orun", "Velm.", "the velm"]).text
        'Velm.'
    """
    kept = [re.sub(r"\b(?:a|an|the)\b|[^\w\s]", " ", text.casefold()).split() for text in candidates]
    best = max(range(len(kept)), key=lambda at: (kept.count(kept[at]), -at))
    return Generation(candidates[best].strip())
