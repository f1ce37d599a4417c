"""Separate a model's thoughts from its answer, in text, and in streams; no I/O.

Most mark them as DeepSeek-R1 and Qwen3 do (``<think>``); Magistral, Seed-OSS and Gemma 4 have marks of their
own, and gpt-oss (harmony) writes channels, in which an analysis comes before ``final``. In a list of tokens
with log-probabilities, :func:`surerag.readers.logprobs.answer_tokens` separates them.
"""

from __future__ import annotations

import re

_CLOSING = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<seed:think>": "</seed:think>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "[THINK]": "[/THINK]",
    "<|channel>thought": "<channel|>",
}
CHANNEL = "<|channel|>"
"""The mark by which a vocabulary is recognised as that of harmony."""
_BEGINNINGS = (*_CLOSING, CHANNEL, f"<|start|>assistant{CHANNEL}")
_LONGEST = max(map(len, _BEGINNINGS))
_FINAL = re.compile(r"<\|channel\|>final[^<]*<\|message\|>")
_END = re.compile(r"<\|(?:return|end|call)\|>\s*\Z")
"""Text that servers of harmony may leave after an answer."""
_MARK = re.compile(
    r"</?(?:think|thinking|seed:think|thought|reasoning)>|\[/?THINK\]|<\|(?:channel|start)\|>\w*|<\|\w+\|>"
)

THINKING_TOKENS = 4096
"""Default limit on the tokens of thoughts before an answer."""
MARKS = frozenset({*_CLOSING, *_CLOSING.values(), "<|channel>", CHANNEL})
"""Marks, and the tokens of marks; a decoder that leaves special tokens out has to show these."""
CLOSING_MARKS = (*_CLOSING.values(), "<|message|>")
"""Marks after the last of which an answer stands, in a list of all tokens."""
CHANNEL_MARKS = frozenset({"<|start|>", "<|message|>", "<|constrain|>", "<|end|>"})
"""Tokens that stand between harmony's channels. Elsewhere, the same texts mean other things."""


class ThoughtSplitter:
    r"""Separates thoughts from the answer in text that comes piece by piece.

    Args:
        inside: Mark of the thoughts inside which the text begins, where the prompt itself ends with it, as
            the templates of some models have it.
        plain: Whether all of the text is an answer, marks among it.

    Attributes:
        begins: Where the answer begins in it: at the first character after the thoughts that is no white
            space. 0 if there are no thoughts, None while that cannot be told.
        closed: Whether thoughts have ended; if ``begins`` is None then, only white space came after them.

    Example:
        >>> splitter = ThoughtSplitter()
        >>> for piece in ("<thi", "nk>Rhine? Velm.</think>", "\n\n", "Ve", "lm"):
        ...     splitter.feed(piece)
        ''
        ''
        ''
        'Ve'
        'lm'
        >>> splitter.thoughts, splitter.answer
        ('Rhine? Velm.', 'Velm')
    """

    def __init__(self, *, inside: str = "", plain: bool = False) -> None:
        self.text = ""
        self.begins: int | None = 0 if plain else None
        self.closed = False
        self._closing = _CLOSING.get(inside, CHANNEL) if inside else None
        self._searched = 0
        self._shown_length = 0

    @property
    def thinking(self) -> bool:
        """Whether the text so far has only thoughts, or may turn out to."""
        return self.begins is None

    @property
    def has_thoughts(self) -> bool:
        """Whether the text has thoughts."""
        return self._closing is not None

    @property
    def unclosed(self) -> bool:
        """Whether the text is inside thoughts whose end would have a mark of its own."""
        return self.thinking and not self.closed and self._closing not in (None, CHANNEL)

    @property
    def thoughts(self) -> str:
        """The thoughts so far, without their marks; empty where a mark encloses nothing."""
        return _MARK.sub("", self.text[: self.begins]).strip() if self._closing is not None else ""

    @property
    def answer(self) -> str:
        """The answer so far."""
        return "" if self.begins is None else _END.sub("", self.text[self.begins :])

    def feed(self, piece: str) -> str:
        """Take a piece of text and return what it adds to the answer."""
        self.text += piece
        if self.begins is None:
            self._search()
        if self.begins is None:
            return ""
        fresh, self._shown_length = self.text[max(self._shown_length, self.begins) :], len(self.text)
        return _END.sub("", fresh) if self.has_thoughts else fresh

    def end(self) -> str:
        """End the text; return the text that was held back and turned out to be part of the answer."""
        if self.begins is not None:
            return ""
        if self._closing is None:
            self.begins = 0
            return self.text
        if self.closed:
            self.begins = len(self.text)
        return ""

    def _search(self) -> None:
        """Find where the answer begins, if this is already known."""
        if self._closing is None:
            start = self.text.lstrip()
            if not start.startswith(_BEGINNINGS):
                # White space, or the beginning of a mark, may still become thoughts.
                may_be_mark = len(start) < _LONGEST and any(mark.startswith(start) for mark in _BEGINNINGS)
                self.begins = None if may_be_mark else 0
                return
            first = next(mark for mark in _BEGINNINGS if start.startswith(mark))
            self._closing = _CLOSING.get(first, CHANNEL)
        end = self._closed_at(self._closing)
        self.closed = end is not None
        if end is not None and (answer := self.text[end:].lstrip()):
            self.begins = len(self.text) - len(answer)

    def _closed_at(self, closing: str) -> int | None:
        """Return where the thoughts end; None while they go on."""
        if closing == CHANNEL:
            final = _FINAL.search(self.text, self._searched)
            # A mark that has begun may end in the next piece.
            self._searched = final.start() if final else max(self.text.rfind(CHANNEL), 0)
            return final.end() if final else None
        at = self.text.find(closing, self._searched)
        self._searched = at if at >= 0 else max(len(self.text) - len(closing), 0)
        return at + len(closing) if at >= 0 else None


def split_thoughts(text: str) -> tuple[str, str]:
    """Split a whole text into thoughts and answer; an empty answer if it ends inside the thoughts.

    Example:
        >>> split_thoughts("Velm"), split_thoughts("<think>Hm.</think> Velm"), split_thoughts("<think>Hm.")
        (('', 'Velm'), ('Hm.', 'Velm'), ('Hm.', ''))
    """
    splitter = ThoughtSplitter()
    splitter.feed(text)
    splitter.end()
    return splitter.thoughts, splitter.answer


def begun_thoughts(text: str) -> str:
    r"""Return the mark of the thoughts that a prompt's text begins and does not end; empty if there are none.

    Example:
        >>> begun_thoughts("assistant\n<think>\n"), begun_thoughts("assistant\n<think>\n\n</think>\n\n")
        ('<think>', '')
    """
    places = {text.rfind(mark): mark for mark in (*_CLOSING, CHANNEL)}
    last = max(places)
    if last < 0:
        return ""
    splitter = ThoughtSplitter()
    splitter.feed(text[last:] + "x")
    return places[last] if splitter.thinking else ""


def mentions_thoughts(template: str) -> bool:
    """Return whether a chat template contains marks of thoughts, so that its model may write them.

    Example:
        >>> mentions_thoughts("{{ content.split('</think>')[-1] }}"), mentions_thoughts("{{ content }}")
        (True, False)
    """
    return any(mark in template for mark in (*_CLOSING, *_CLOSING.values(), CHANNEL))
