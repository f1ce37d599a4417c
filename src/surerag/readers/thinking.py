"""Separate a model's thoughts from its answer, in text, and in streams; no I/O.

Reasoning models write their thoughts before the answer, between marks. What is measured and
counted belongs to the answer alone::

    thoughts, answer = split_thoughts("<think>Rhine? Velm.</think>Velm")

    splitter = ThoughtSplitter()                            # a stream
    for piece in pieces:
        show(splitter.feed(piece))
    show(splitter.end())

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

_OPENINGS = (*_CLOSING, CHANNEL, f"<|start|>assistant{CHANNEL}")
_FINAL = re.compile(r"<\|channel\|>final[^<]*<\|message\|>")
_MARK = re.compile(
    r"</?(?:think|thinking|seed:think|thought|reasoning)>|\[/?THINK\]|<\|(?:channel|start)\|>\w*|<\|\w+\|>"
)
_END = re.compile(r"<\|(?:return|end|call)\|>\s*$")

THINKING_TOKENS = 4096
"""Tokens that may be thought before an answer, where nobody sets another limit."""

MARKS = frozenset({*_CLOSING, *_CLOSING.values(), "<|channel>", CHANNEL})
"""Marks, and the tokens of marks; a decoder that leaves special tokens out has to show these."""

CLOSING_MARKS = (*_CLOSING.values(), "<|message|>")
"""Marks after the last of which an answer stands, in a list of all tokens."""

CHANNEL_MARKS = frozenset({"<|start|>", "<|message|>", "<|constrain|>", "<|end|>"})
"""Tokens that stand between harmony's channels. Elsewhere, the same texts mean other things."""


class ThoughtSplitter:
    r"""Separates thoughts from the answer in text that comes piece by piece.

    Args:
        opened: Whether the prompt itself ended with the opening mark, as the templates of some models have
            it, so that the text begins inside the thoughts; or that mark, where it is not ``<think>``.

    Attributes:
        text: All text so far.
        begins: Where the answer begins in it: at the first character after the thoughts that is no white
            space. 0 if there are no thoughts, None while that is open.
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

    def __init__(self, *, opened: bool | str = False) -> None:
        self.text = ""
        self.begins: int | None = None
        self.closed = False
        mark = "<think>" if opened is True else opened
        self._closing = _CLOSING.get(mark, CHANNEL) if mark else None
        self._searched = 0
        self._shown = 0

    @property
    def thinking(self) -> bool:
        """Whether the text so far is, or may become, nothing but thoughts."""
        return self.begins is None

    @property
    def has_thoughts(self) -> bool:
        """Whether there are thoughts at all."""
        return self._closing is not None

    @property
    def thoughts(self) -> str:
        """The thoughts so far, without their marks; empty where a mark encloses nothing."""
        return _MARK.sub("", self.text[: self.begins]).strip() if self._closing is not None else ""

    @property
    def answer(self) -> str:
        """The answer so far."""
        return "" if self.begins is None else without_end(self.text[self.begins :])

    def feed(self, piece: str) -> str:
        """Take a piece of text and return what it adds to the answer."""
        self.text += piece
        if self.begins is None:
            self._search()
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
        if self.closed:
            self.begins = len(self.text)
        return ""

    def _search(self) -> None:
        """Find where the answer begins, if that can be told by now."""
        if self._closing is None:
            start = self.text.lstrip()
            opening = next((mark for mark in _OPENINGS if start.startswith(mark)), None)
            if opening is None:
                # White space, or the beginning of a mark, may still become thoughts.
                self.begins = None if any(mark.startswith(start) for mark in _OPENINGS) else 0
                return
            self._closing = _CLOSING.get(opening, CHANNEL)
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


def split_thoughts(text: str, *, opened: bool | str = False) -> tuple[str, str]:
    """Split a whole text into thoughts and answer; an empty answer if it ends inside the thoughts.

    Example:
        >>> split_thoughts("Velm"), split_thoughts("<think>Hm.</think> Velm"), split_thoughts("<think>Hm.")
        (('', 'Velm'), ('Hm.', 'Velm'), ('Hm.', ''))
        >>> split_thoughts("Rhine? Velm.</think>Velm", opened=True)
        ('Rhine? Velm.', 'Velm')
    """
    splitter = ThoughtSplitter(opened=opened)
    splitter.feed(text)
    splitter.end()
    return splitter.thoughts, splitter.answer


def without_end(text: str) -> str:
    """Return a text without the mark of its end, which harmony's servers may leave in it.

    Example:
        >>> without_end("Velm<|return|>")
        'Velm'
    """
    return _END.sub("", text)


def open_mark(text: str) -> str:
    r"""Return the mark of the thoughts that a prompt's text opens and does not close; empty if there is none.

    Example:
        >>> open_mark("assistant\n<think>\n"), open_mark("assistant\n<think>\n\n</think>\n\n")
        ('<think>', '')
    """
    places = {text.rfind(opening): opening for opening in (*_CLOSING, CHANNEL)}
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
