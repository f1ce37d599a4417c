"""Text that comes token by token: whole characters only, and nothing that could begin a stop text."""

from __future__ import annotations

import codecs
import copy
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Protocol, Self

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

_INCOMPLETE = "\ufffd"


class Detokenizer(Protocol):
    """Turns tokens into pieces of text that, joined, are the text of all of them.

    A token that ends inside a character contributes an empty piece; the token that completes the
    character contributes all of it.
    """

    def fork(self) -> Self:
        """Return a copy that goes on independently."""

    def feed(self, token: int) -> str:
        """Return the text that this token adds."""

    def flush(self) -> str:
        """Return what is held back because its last character is not complete."""


def detokenizers_of(tokenizer: PreTrainedTokenizerBase) -> Callable[[], Detokenizer]:
    """Return what makes a detokenizer for each text of a tokenizer; special tokens are left out of it."""
    if tokenizer.is_fast and isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel):
        return partial(ByteDetokenizer, _bytes_of(tokenizer))

    @lru_cache(maxsize=1 << 16)
    def decode(ids: tuple[int, ...]) -> str:
        # The library's own decode does the same at many times the cost.
        if tokenizer.is_fast:
            return str(tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=True))
        return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    return partial(TextDetokenizer, decode)


class ByteDetokenizer:
    """For tokenizers whose tokens are bytes, whatever stands before them (GPT-2's way; Llama 3, Qwen).

    Args:
        bytes_of: From a token to its bytes.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._held = b""

    def fork(self) -> Self:
        """Return a copy that goes on independently."""
        return copy.copy(self)

    def feed(self, token: int) -> str:
        """Return the text that this token adds."""
        given = self._held + self._bytes_of(token)
        piece, used = codecs.utf_8_decode(given, "replace", False)
        if piece.endswith(_INCOMPLETE):  # what a text ends in that is no character is not shown
            self._held = given
            return ""
        self._held = given[used:]
        return piece

    def flush(self) -> str:
        """Return what is held back because its last character is not complete."""
        return self._held.decode("utf-8", "replace")


class TextDetokenizer:
    """For tokenizers where a token's text depends on its neighbours.

    Args:
        decode: From token ids to their text, special tokens left out.
    """

    def __init__(self, decode: Callable[[tuple[int, ...]], str]) -> None:
        self._decode = decode
        # Tokens that were shown last, whose spacing decides that of the next one; then those held back.
        self._shown: tuple[int, ...] = ()
        self._held: tuple[int, ...] = ()

    def fork(self) -> Self:
        """Return a copy that goes on independently."""
        return copy.copy(self)

    def feed(self, token: int) -> str:
        """Return the text that this token adds."""
        self._held = (*self._held, token)
        piece = self.flush()
        if not piece or piece.endswith(_INCOMPLETE):
            return ""
        self._shown, self._held = self._held, ()
        return piece

    def flush(self) -> str:
        """Return what is held back because its last character is not complete."""
        before = self._decode(self._shown) if self._shown else ""
        return self._decode(self._shown + self._held)[len(before) :] if self._shown or self._held else ""


def _bytes_of(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], bytes]:
    """Return what tells a token's bytes: as tokenizers' own decoder of this kind has them."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    of_character: dict[str, int] = {character: byte for byte, character in bytes_to_unicode().items()}
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}

    @cache
    def bytes_of(token: int) -> bytes:
        text = backend.id_to_token(token)
        if text is None or token in special:
            return b""
        if all(character in of_character for character in text):
            return bytes(of_character[character] for character in text)
        return text.encode()  # a token that was added as text

    return bytes_of


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
