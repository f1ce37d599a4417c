"""Remove thoughts and surrounding white space from answers, and cut answers at stop texts; no I/O.

Most models mark thoughts with ``<think>``, as DeepSeek-R1 and Qwen3 do. Magistral, Seed-OSS and Gemma 4 have
other marks. gpt-oss writes the format harmony, whose parts are named channels: the channel ``analysis`` has
the thoughts, and the channel ``final`` has the answer. In a list of tokens,
:func:`surerag.readers.logprobs.answer_tokens` separates thoughts and answer.
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
"""Token before the name of a channel (a part of the output) in harmony, the format of gpt-oss. If a tokenizer
has this token, its model writes harmony."""
_BEGINNINGS = (*_CLOSING, CHANNEL, f"<|start|>assistant{CHANNEL}")
_LONGEST = max(map(len, _BEGINNINGS))
_FINAL = re.compile(r"<\|channel\|>final[^<]*<\|message\|>")
_END = re.compile(r"<\|(?:return|end|call)\|>\s*\Z")
"""End tokens of harmony (the format of gpt-oss) that a server may leave at the end of an answer's text."""
_MARK = re.compile(
    r"</?(?:think|thinking|seed:think|thought|reasoning)>|\[/?THINK\]|<\|(?:channel|start)\|>\w*|<\|\w+\|>"
)

THINKING_TOKENS = 4096
"""Default limit on the tokens of thoughts before an answer."""
MARKS = frozenset({*_CLOSING, *_CLOSING.values(), "<|channel>", CHANNEL})
"""Marks that open or close thoughts, and special tokens with which such marks begin. A decoder must keep
these texts, even if it omits other special tokens."""
CLOSING_MARKS = (*_CLOSING.values(), "<|message|>")
"""Marks after which the answer may begin; in a list of all tokens, it follows the last of these marks."""
CHANNEL_MARKS = frozenset({"<|start|>", "<|message|>", "<|constrain|>", "<|end|>"})
"""Tokens between harmony's channels. In other vocabularies the same texts have other meanings."""


class ThoughtSplitter:
    r"""Separates thoughts from the answer in text that comes piece by piece.

    Args:
        opening_mark: Mark such as ``<think>`` if the prompt already ends with it, so that the text begins
            inside the thoughts; empty if the prompt ends without a mark.
        plain: Whether the whole text is an answer, including any marks.

    Attributes:
        begins: Index of the answer's first character in the text, after the thoughts and white space; 0 if
            there are no thoughts; None while the index is not known.
        closed: Whether thoughts have ended; ``begins`` stays None until more than white space follows.

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

    def __init__(self, *, opening_mark: str = "", plain: bool = False) -> None:
        self.text = ""
        self.begins: int | None = 0 if plain else None
        self.closed = False
        self._closing = _CLOSING.get(opening_mark, CHANNEL) if opening_mark else None
        self._searched = 0
        self._shown_length = 0

    @property
    def thinking(self) -> bool:
        """Whether the text so far consists, or may consist, only of thoughts."""
        return self.begins is None

    @property
    def has_thoughts(self) -> bool:
        """Whether the text has thoughts."""
        return self._closing is not None

    @property
    def unclosed(self) -> bool:
        """Whether the text ends inside thoughts that need a closing mark (gpt-oss needs no such mark)."""
        return self.thinking and not self.closed and self._closing not in (None, CHANNEL)

    @property
    def thoughts(self) -> str:
        """The thoughts so far, without their marks; empty if the marks enclose nothing."""
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
        if closing == CHANNEL:
            final = _FINAL.search(self.text, self._searched)
            # A mark that has begun may end in the next piece.
            self._searched = final.start() if final else max(self.text.rfind(CHANNEL), 0)
            return final.end() if final else None
        at = self.text.find(closing, self._searched)
        self._searched = at if at >= 0 else max(len(self.text) - len(closing), 0)
        return at + len(closing) if at >= 0 else None


def split_thoughts(text: str) -> tuple[str, str]:
    """Split a whole text into thoughts and answer; the answer is empty if the text ends inside thoughts.

    Example:
        >>> split_thoughts("Velm"), split_thoughts("<think>Hm.</think> Velm"), split_thoughts("<think>Hm.")
        (('', 'Velm'), ('Hm.', 'Velm'), ('Hm.', ''))
    """
    splitter = ThoughtSplitter()
    splitter.feed(text)
    splitter.end()
    return splitter.thoughts, splitter.answer


def begun_thoughts(text: str) -> str:
    r"""Return the mark of the thoughts that a prompt begins but does not end; empty if there are none.

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
    """Return whether a chat template contains marks of thoughts; if so, its model may think.

    Example:
        >>> mentions_thoughts("{{ content.split('</think>')[-1] }}"), mentions_thoughts("{{ content }}")
        (True, False)
    """
    return any(mark in template for mark in (*_CLOSING, *_CLOSING.values(), CHANNEL))


class TrimmedPieces:
    r"""Strips an answer's surrounding white space while it streams.

    Example:
        >>> pieces = TrimmedPieces()
        >>> [pieces.feed(text) for text in ["  The", " ", "Orun. ", "\n"]]
        ['The', '', ' Orun.', '']
    """

    def __init__(self) -> None:
        self._started = False
        self._held = ""

    def feed(self, text: str) -> str:
        """Take the next piece and return the text to pass on now."""
        text = self._held + text
        if not self._started:
            text = text.lstrip()
        ready = text.rstrip()
        self._held = text[len(ready) :]
        self._started = self._started or bool(ready)
        return ready


def cut_at_stop(text: str, stop: tuple[str, ...]) -> str | None:
    r"""Return the text before the first stop text, or None if the text contains no stop text.

    Example:
        >>> cut_at_stop("Velm.\nQuestion", ("\n", "Q"))
        'Velm.'
    """
    ends = [position for position in map(text.find, stop) if position >= 0]
    return text[: min(ends)] if ends else None


def held_for_stop(text: str, stop: tuple[str, ...]) -> int:
    r"""Return how many characters at the end of a text may begin a stop text that is not complete yet.

    Example:
        >>> held_for_stop("Velm. Ques", ("\nA", "Question")), held_for_stop("Velm", ("\n",))
        (4, 0)
    """
    return max(
        (size for item in stop for size in range(1, len(item)) if text.endswith(item[:size])), default=0
    )
