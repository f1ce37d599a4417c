"""Where an answer begins that a model thought about first; no I/O.

Reasoning models write their thoughts before the answer, between marks. What is measured (entropies,
likelihoods, the first tokens that a gate looks at) and what is counted belongs to the answer alone.

The marks that are known: ``<think>`` (DeepSeek-R1, Qwen3 and most that follow them), ``<thinking>``,
``<thought>``, ``<reasoning>``, ``[THINK]`` (Magistral), ``<seed:think>`` (Seed-OSS), and the channels of
gpt-oss (harmony), in which an analysis, and perhaps a commentary, come before ``final``.
"""

from __future__ import annotations

import re

_PAIRS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
)
_CLOSING = dict(_PAIRS)
_CHANNEL = "<|channel|>"
_OPENINGS = (*_CLOSING, _CHANNEL, "<|start|>assistant<|channel|>")
CLOSING_MARKS = frozenset({*_CLOSING.values(), "<|message|>"})
"""Tokens after the last of which an answer stands, in a list of all tokens."""

_FINAL = re.compile(r"<\|channel\|>final[^<]*<\|message\|>")
_MARK = re.compile(
    r"</?(?:think|thinking|seed:think|thought|reasoning)>|\[/?THINK\]|<\|(?:channel|start)\|>\w*|<\|\w+\|>"
)
_END = re.compile(r"<\|(?:return|end|call)\|>\s*$")


class Thoughts:
    r"""Finds, in text that comes piece by piece, where the thoughts end and the answer begins.

    Args:
        opened: Whether the prompt itself ended with the opening mark, as the templates of some models have
            it, so that the text begins inside the thoughts.

    Attributes:
        text: All text so far.
        begins: Where the answer begins in it: at the first character after the thoughts that is no white
            space. 0 if there are no thoughts, None while that is open.

    Example:
        >>> thoughts = Thoughts()
        >>> for piece in ("<thi", "nk>Rhine? Velm.</think>", "\n\n", "Ve", "lm"):
        ...     thoughts.feed(piece)
        ''
        ''
        ''
        'Ve'
        'lm'
        >>> thoughts.begins, thoughts.thinking
        (29, False)
    """

    def __init__(self, *, opened: bool = False) -> None:
        self.text = ""
        self.begins: int | None = None
        self._closing = "</think>" if opened else None
        self._searched = 0
        self._shown = 0

    @property
    def thinking(self) -> bool:
        """Whether the text so far is, or may become, nothing but thoughts."""
        return self.begins is None

    @property
    def thought(self) -> bool:
        """Whether there are thoughts at all."""
        return self._closing is not None

    @property
    def thoughts(self) -> str:
        """What was thought so far, without its marks; empty where a mark encloses nothing."""
        if self._closing is None:
            return ""
        return _MARK.sub("", self.text if self.begins is None else self.text[: self.begins]).strip()

    @property
    def answer(self) -> str:
        """The answer so far."""
        return "" if self.begins is None else without_end(self.text[self.begins :])

    def feed(self, piece: str) -> str:
        """Take a piece and return what it adds to the answer."""
        self.text += piece
        if self.begins is None:
            self._look()
        if self.begins is None:
            return ""
        fresh, self._shown = self.text[max(self._shown, self.begins) :], len(self.text)
        return fresh

    def end(self) -> str:
        """Note that nothing more comes, and return what was held back and is an answer after all."""
        if self.begins is not None:
            return ""
        if self._closing is None:
            self.begins = 0
            return self.text
        if self._closed_at(self._closing) is not None:
            # Nothing but white space came after the thoughts.
            self.begins = len(self.text)
        return ""

    def _look(self) -> None:
        """Find where the answer begins, if that can be told by now."""
        if self._closing is None:
            start = self.text.lstrip()
            opening = next((mark for mark in _OPENINGS if start.startswith(mark)), None)
            if opening is None:
                # White space, or the beginning of a mark, may still become thoughts.
                self.begins = None if any(mark.startswith(start) for mark in _OPENINGS) else 0
                return
            self._closing = _CLOSING.get(opening, _CHANNEL)
        end = self._closed_at(self._closing)
        if end is not None and (answer := self.text[end:].lstrip()):
            self.begins = len(self.text) - len(answer)

    def _closed_at(self, closing: str) -> int | None:
        """Return where the thoughts end; None while they go on."""
        if closing == _CHANNEL:
            final = _FINAL.search(self.text, self._searched)
            end = final.end() if final else None
            # A mark that has begun may end in the next piece.
            self._searched = final.start() if final else max(self.text.rfind(_CHANNEL), 0)
            return end
        at = self.text.find(closing, self._searched)
        self._searched = at if at >= 0 else max(len(self.text) - len(closing), 0)
        return at + len(closing) if at >= 0 else None


def without_end(text: str) -> str:
    """Return a text without the mark of its end, which harmony's servers may leave in it.

    Example:
        >>> without_end("Velm<|return|>")
        'Velm'
    """
    return _END.sub("", text)


def answer_begins(text: str, *, opened: bool = False) -> int | None:
    """Return where the answer begins in a whole text; None if it ends inside the thoughts.

    Example:
        >>> answer_begins("Velm"), answer_begins("<think>Hm.</think> Velm"), answer_begins("<think>Hm.")
        (0, 19, None)
        >>> answer_begins("Rhine? Velm.</think>Velm", opened=True)
        20
        >>> said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Velm"
        >>> said[answer_begins(said):]
        'Velm'
    """
    thoughts = Thoughts(opened=opened)
    thoughts.feed(text)
    thoughts.end()
    return thoughts.begins
