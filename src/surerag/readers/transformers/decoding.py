"""From token ids back to text, token by token: whole characters, stop texts, streaming."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_INCOMPLETE = "\ufffd"


class Detokenizer:
    """Turns tokens into pieces of text that, joined, are the text of all of them.

    A token that ends inside a character contributes an empty piece; the token that completes the
    character contributes all of it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0
        self._shown = 0

    def fork(self) -> Detokenizer:
        """Return a copy that goes on independently."""
        twin = copy.copy(self)
        twin._ids = self._ids[:]
        return twin

    def feed(self, token: int) -> str:
        """Return the text that this token adds."""
        self._ids.append(token)
        piece = self.flush()
        if not piece or piece.endswith(_INCOMPLETE):
            return ""
        # Decoding goes on from the token before, whose spacing decides that of the next one.
        self._start, self._shown = self._shown, len(self._ids)
        return piece

    def flush(self) -> str:
        """Return what is held back because its last character is not complete."""
        before = self._decode(self._ids[self._start : self._shown])
        return self._decode(self._ids[self._start :])[len(before) :]

    def _decode(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        # The library's own decode does the same at many times the cost.
        if self._tokenizer.is_fast:
            return str(self._tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=True))
        return str(
            self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )


class StopScanner:
    """Watches growing text for stop texts.

    Attributes:
        text: Everything up to the first stop text, if there was one.
        stopped: Whether there was one.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._reach = max(map(len, self._stop), default=1) - 1
        self.text = ""
        self.stopped = False

    def feed(self, piece: str) -> bool:
        """Add text; return whether a stop text is now complete."""
        start = max(0, len(self.text) - self._reach)
        self.text += piece
        ends = [end for end in (self.text.find(stop, start) for stop in self._stop) if end >= 0]
        if ends:
            self.text = self.text[: min(ends)]
            self.stopped = True
        return self.stopped

    @property
    def safe(self) -> int:
        """Characters that can be shown: no stop text can begin in them any more."""
        if self.stopped:
            return len(self.text)
        held = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self.text)), held, -1):
                if self.text.endswith(stop[:length]):
                    held = length
                    break
        return len(self.text) - held
