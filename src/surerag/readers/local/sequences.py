"""One answer while it grows: its tokens, where thoughts end and the answer begins, and when it ends."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from surerag.errors import ThinkingBudgetError
from surerag.messages import EntropyTrace, Generation, SamplingParams, TokenTrace
from surerag.readers.local.sampling import Draw, ScoredToken, sequence_key
from surerag.readers.pieces import CHANNEL, CHANNEL_MARKS, MARKS, ThoughtSplitter, cut_at_stop, held_for_stop


class Detokenizer:
    """Turns tokens into pieces of text; the joined pieces are the text of all tokens except special tokens.

    A token that ends inside a character adds no text; the token that completes the character adds it whole.
    """

    def __init__(self, decode: Callable[[tuple[int, ...]], str]) -> None:
        self._decode = decode
        # Tokens whose text was returned last; the spacing before the next token depends on these tokens.
        self._before: tuple[int, ...] = ()
        # Tokens without returned text, because they end inside a character.
        self._held: tuple[int, ...] = ()

    def feed(self, token: int) -> str:
        """Return the text that this token adds."""
        self._held = (*self._held, token)
        piece = self.flush()
        if not piece or piece.endswith("\ufffd"):
            return ""
        self._before, self._held = self._held, ()
        return piece

    def flush(self) -> str:
        """Return the text of the tokens that were held back."""
        before = self._decode(self._before) if self._before else ""
        return self._decode(self._before + self._held)[len(before) :] if self._held else ""


class Vocabulary(NamedTuple):
    """Meaning of a tokenizer's tokens.

    Attributes:
        decode: Function from tokens to their text, without special tokens.
        ends: Tokens that end an answer.
        between: Tokens that, while the model thinks, end a part of the thoughts but not the output.
        marks: Special tokens that mark thoughts, with their texts.
    """

    decode: Callable[[tuple[int, ...]], str]
    ends: frozenset[int]
    between: frozenset[int]
    marks: Mapping[int, str]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, ends: frozenset[int]) -> Vocabulary:
        """Return the vocabulary of a tokenizer; ``ends`` are the ids of tokens that end an answer.

        Further tokens end answers in harmony. In harmony, the format of gpt-oss, ``<|end|>`` ends a message,
        and ``<|return|>`` or ``<|call|>`` ends the turn. All three end an answer; inside thoughts,
        ``<|end|>`` only ends a part of the thoughts.
        """
        added = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        mark_texts, between = MARKS, frozenset[int]()
        if CHANNEL in added:
            mark_texts |= CHANNEL_MARKS
            between = frozenset(added[text] for text in ("<|end|>",) if text in added)
            ends |= between | {added[text] for text in ("<|return|>", "<|call|>") if text in added}
        marks = {i: text for text, i in added.items() if text in mark_texts}

        @lru_cache(1 << 16)
        def decode(ids: tuple[int, ...]) -> str:
            if tokenizer.is_fast:  # the library's own decode takes many times as long
                return str(tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=True))
            return str(
                tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
            )

        return cls(decode, ends, between, marks)


class EncodedPrompt(NamedTuple):
    """A prompt's tokens, and how to answer the prompt.

    Attributes:
        opening_mark: Mark such as ``<think>`` if the prompt already ends with it, so that the output begins
            inside the thoughts; empty if the prompt ends without a mark.
        thinks: Whether the output is known to begin with thoughts.
        thinking_tokens: Maximum tokens of thoughts that the caller and the model's window allow.
    """

    ids: tuple[int, ...]
    sampling: SamplingParams
    opening_mark: str = ""
    thinks: bool = False
    thinking_tokens: int = 0

    @property
    def further(self) -> int:
        """Maximum number of tokens after the prompt: tokens of the answer and of any expected thoughts."""
        return self.sampling.limit + (self.thinking_tokens if self.thinks else 0)


class GrowingAnswer:
    """One sampled answer to a prompt; the answer receives one token at a time.

    After the thoughts, the answer begins at the first token that has more than white space. If a token begins
    before a stop text and reaches into the stop text, the token belongs to the answer, and its text is cut.
    Stop texts and ``max_tokens`` apply to the answer, not to the thoughts.

    Attributes:
        ended: Why the answer ended, or None while it grows; ``"thinking"`` if the thoughts were too long.
        thinking_tokens: Tokens of thoughts, including marks and white space around the thoughts.
        last_token: The newest token, which the model has not processed yet.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: EncodedPrompt, sample: int = 0) -> None:
        self.prompt = prompt
        self.ended: Literal["stop", "length", "thinking"] | None = None
        self.thinking_tokens = 0
        self.last_token = prompt.ids[-1]
        self._vocabulary = vocabulary
        self._key = sequence_key(prompt.ids, prompt.sampling.seed, sample)
        self._steps = 0
        self._detokenizer = Detokenizer(vocabulary.decode)
        # The splitter is None once the answer has begun.
        self._thoughts: ThoughtSplitter | None = ThoughtSplitter(opening_mark=prompt.opening_mark)
        self._tokens: list[ScoredToken] = []
        self._pieces: list[str] = []
        self._text = ""
        self._end_logprob: float | None = None

    def __len__(self) -> int:
        return 0 if self._thinks else len(self._tokens)

    def copy(self) -> GrowingAnswer:
        """Return an independent copy, which can grow further."""
        twin = copy.copy(self)
        twin._detokenizer, twin._thoughts = copy.copy(self._detokenizer), copy.copy(self._thoughts)
        twin._tokens, twin._pieces = self._tokens[:], self._pieces[:]
        return twin

    @property
    def _thinks(self) -> bool:
        return self._thoughts is not None and self._thoughts.has_thoughts

    @property
    def draw(self) -> Draw:
        """The inputs of the random choice of the next token."""
        return Draw(self.prompt.sampling, self._key, self._steps)

    @property
    def remaining(self) -> int:
        """Maximum number of further tokens, including thoughts if they are expected."""
        answer = self.prompt.sampling.limit - len(self)
        if self._thoughts is None or not (self._thinks or self.prompt.thinks):
            return answer
        return answer + self.prompt.thinking_tokens - self.thinking_tokens

    @property
    def certain_text(self) -> str:
        """Text that is sure to belong to the answer; white space around the text is not stripped yet."""
        held = 0 if self.ended else held_for_stop(self._text, self.prompt.sampling.stop)
        return self._text[: len(self._text) - held]

    def has_begun(self, n_tokens: int) -> bool:
        """Tell whether the answer has at least ``n_tokens`` tokens that are certainly not thoughts."""
        pending = self._thoughts is not None and (self.prompt.thinks or self._thoughts.text.strip())
        return len(self) >= n_tokens and not pending

    def accept(self, scored: ScoredToken) -> None:
        """Take the next token; a token that ends the answer is not kept."""
        self._steps += 1
        if self._is_end(scored.token):
            self._end(scored.logprob)
            return
        self.last_token = scored.token
        if self._thoughts is None:
            self._add(scored, self._detokenizer.feed(scored.token))
            self._update()
        else:
            self._accept_before_answer(scored, self._thoughts)

    def _is_end(self, token: int) -> bool:
        thoughts = self._thoughts
        inside = thoughts is not None and thoughts.has_thoughts and not thoughts.closed
        return token in self._vocabulary.ends and not (inside and token in self._vocabulary.between)

    def _end(self, logprob: float) -> None:
        if self._thinks:
            self._count_as_thoughts()
        else:
            self._update()
            self._end_logprob = None if self.ended else logprob
        self.ended = self.ended or "stop"

    def _add(self, scored: ScoredToken, piece: str) -> None:
        self._tokens.append(scored)
        self._pieces.append(piece)

    def _accept_before_answer(self, scored: ScoredToken, thoughts: ThoughtSplitter) -> None:
        mark = self._vocabulary.marks.get(scored.token)
        piece = self._detokenizer.feed(scored.token) if mark is None else mark
        self._add(scored, piece)
        fresh = thoughts.feed(piece)
        if thoughts.begins is not None:
            self._thoughts = None
            # If the token also ends the thoughts, only its text after the thoughts belongs to the answer.
            # White space at the beginning of any other token stays.
            if thoughts.has_thoughts and piece[: len(piece) - len(fresh)].strip():
                self._pieces[-1] = fresh
            self._update()
        elif thoughts.has_thoughts:
            # A token without text may begin a character, which may be the first character of the answer. Such
            # a token does not count as thoughts yet.
            if piece or not self._detokenizer.flush():
                self._count_as_thoughts()
            if self.thinking_tokens > self.prompt.thinking_tokens:
                self.ended = "thinking"
        elif not thoughts.text.strip():
            # White space belongs to the answer for now. A text that may begin a mark does not.
            self._update()

    def _count_as_thoughts(self) -> None:
        self.thinking_tokens += len(self._tokens)
        self._tokens, self._pieces, self._text = [], [], ""

    def _update(self) -> None:
        most = self.prompt.sampling.limit
        self._tokens, self._pieces = self._tokens[:most], self._pieces[:most]
        text = "".join(self._pieces)
        cut = cut_at_stop(text, self.prompt.sampling.stop)
        self._text = text if cut is None else cut
        if cut is not None:
            self.ended = "stop"
        elif len(self._tokens) == most:
            self.ended = "length"

    def generation(self) -> Generation:
        """Return the answer so far; its ``finish`` is "partial" while the answer grows.

        Raises:
            ThinkingBudgetError: If the model was still thinking when its tokens for thoughts were used up.
        """
        if self.ended == "thinking":
            raise ThinkingBudgetError(
                f"the model was still thinking after {self.thinking_tokens} tokens; the option "
                f"thinking_tokens and the window, which also holds the {len(self.prompt.ids)} tokens of the "
                f"prompt, allow at most {self.prompt.thinking_tokens} tokens for thoughts",
                hint="raise thinking_tokens or the window, shorten the prompt, or have the model think less "
                "or not at all (thinking=False)",
            )
        pieces, position = [], 0
        for piece in self._pieces:
            if piece and position >= len(self._text):
                break
            pieces.append(piece[: len(self._text) - position])
            position += len(piece)
        _, logprobs, entropies, logsumexps = (
            zip(*self._tokens[: len(pieces)], strict=True) if pieces else ((),) * 4
        )
        entropy = EntropyTrace(entropies, entropies, exact=True)
        trace = TokenTrace(tuple(pieces), logprobs, entropy, logsumexps, self._end_logprob)
        prompt, thought = len(self.prompt.ids), self.thinking_tokens
        return Generation(self._text.strip(), prompt, trace, self.ended or "partial", len(self), thought)
