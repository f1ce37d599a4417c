"""A sequence while it grows: its tokens, what the model thought of them, and when it ends.

A model may think before it answers. What is a thought and what is the answer is told from the text as it
comes; the answer's tokens, its text and its length are counted from where it begins.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from surerag.errors import ThinkingBudgetError
from surerag.messages import EntropyTrace, FinishReason, Generation, SamplingParams, TokenTrace
from surerag.readers.local.decoding import Draw, Opinion, sequence_key
from surerag.readers.local.detokenizing import Detokenizer, StopScanner, detokenizers_of
from surerag.readers.thinking import CHANNEL, CHANNEL_MARKS, MARKS, ThoughtSplitter

# ThoughtSplitter draw their chance from numbers of their own.
_THOUGHTS = 1 << 63
# Tokens of thoughts that a memory is given room for at a time; where it needs more, it moves.
_THOUGHTS_ROOM = 1024
_LESS = (
    "raise thinking_tokens or the window, shorten the prompt, or have it think less or not at all "
    "(thinking=False, or what its chat template knows, such as template_options={'reasoning_effort': 'low'})"
)


class Asked(NamedTuple):
    """A prompt, and how much may be thought about it.

    Attributes:
        ids: Its tokens.
        opened: The mark of the thoughts that it leaves open; empty if there are none.
        thinks: Whether the answer is known to begin with thoughts.
        thinking_tokens: Tokens that may be thought before the answer.
        limit: The same as the caller set it, where the window leaves no more than ``thinking_tokens``.
    """

    ids: Sequence[int]
    opened: str = ""
    thinks: bool = False
    thinking_tokens: int = 0
    limit: int = 0


class Wanted(NamedTuple):
    """A prompt, and how its answers are to be sampled."""

    asked: Asked
    sampling: SamplingParams

    @property
    def further(self) -> int:
        """Tokens that may follow: thoughts, where they are expected, and the answer."""
        return self.sampling.max_tokens + (self.asked.thinking_tokens if self.asked.thinks else 0)

    @property
    def room(self) -> int:
        """Tokens to make room for before they come; most thoughts are much shorter than they may be."""
        return min(self.further, self.sampling.max_tokens + _THOUGHTS_ROOM)


@dataclass(frozen=True)
class Vocabulary:
    """What a tokenizer's tokens mean to a growing sequence.

    Attributes:
        detokenizer: Makes what turns the tokens of one text into it.
        ends: Tokens that end an answer.
        between: Tokens that end a thought, not the sequence, while it thinks.
        marks: Special tokens that mark thoughts, and their texts.
    """

    detokenizer: Callable[[], Detokenizer]
    ends: frozenset[int]
    between: frozenset[int]
    marks: Mapping[int, str]


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, end_tokens: frozenset[int]) -> Vocabulary:
    """Return what a tokenizer's tokens mean.

    In harmony, the format of gpt-oss, ``<|end|>`` ends a message, ``<|return|>`` and ``<|call|>`` the turn.
    """
    added = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    shown = MARKS
    between: frozenset[int] = frozenset()
    if CHANNEL in added:
        shown |= CHANNEL_MARKS
        between = frozenset(added[text] for text in ("<|end|>",) if text in added)
        end_tokens |= between | {added[text] for text in ("<|return|>", "<|call|>") if text in added}
    marks = {i: text for text, i in added.items() if text in shown}
    return Vocabulary(detokenizers_of(tokenizer), end_tokens, between, marks)


class GrowingSequence:
    """A sample of a prompt, fed one token at a time.

    A token that reaches into a stop text belongs to the answer if it begins before it: its
    probability is then in the trace, and its text is cut. Tokens that begin at the stop text or
    after it are not in the trace. A character of which only some bytes came is not shown.

    Where the answer begins with thoughts, it begins anew after them: with the token that holds the first
    character that is no white space. Stop texts and ``max_tokens`` are about the answer alone. The chance
    of an answer's token depends on its place in the answer, where it can; not on how long was thought.

    Attributes:
        asked: The prompt.
        sampling: How it is sampled.
        ended: Why it ended, or None while it grows; ``"thinking"`` if the thoughts took too long.
        thinking_tokens: Tokens that were thought, marks and white space around them included.
        last_token: The newest token, which the model has not read yet.
    """

    def __init__(self, vocabulary: Vocabulary, wanted: Wanted, sample: int = 0) -> None:
        self.asked, self.sampling = asked, sampling = wanted
        self.ended: Literal["stop", "length", "thinking"] | None = None
        self.thinking_tokens = 0
        self.last_token = asked.ids[-1]
        self._vocabulary = vocabulary
        self._key = sequence_key(asked.ids, sampling.seed, sample)
        self._detokenizer = vocabulary.detokenizer()
        # What may still be thoughts; None once the answer has begun.
        self._thoughts: ThoughtSplitter | None = ThoughtSplitter(opened=asked.opened)
        # Numbers of chance that were drawn for an answer and went to thoughts; draws for its first token.
        self._used = self._tries = 0
        self._scanner = StopScanner(sampling.stop)
        self._opinions: list[Opinion] = []
        self._pieces: list[str] = []

    def __len__(self) -> int:
        return 0 if self._thinks else len(self._opinions)

    def fork(self) -> GrowingSequence:
        """Return a copy that grows on independently."""
        twin = copy.copy(self)
        twin._detokenizer = self._detokenizer.fork()
        twin._scanner, twin._thoughts = copy.copy(self._scanner), copy.copy(self._thoughts)
        twin._opinions, twin._pieces = self._opinions[:], self._pieces[:]
        return twin

    @property
    def draw(self) -> Draw:
        """What the choice of the next token depends on."""
        if self._thoughts is None or not (self._thinks or self.asked.thinks):
            return Draw(self.sampling, self._key, self._used + len(self._opinions))
        if self._awaits_answer and not self._tries:
            return Draw(self.sampling, self._key, self._used)
        return Draw(self.sampling, self._key, _THOUGHTS | (self.thinking_tokens + len(self._opinions)))

    @property
    def settled(self) -> bool:
        """Whether what there is so far is an answer, as far as can be told before anything else is said."""
        if self._thoughts is None or self.ended is not None:
            return True
        return not (self._thinks or self.asked.thinks or self._thoughts.text.strip())

    @property
    def remaining(self) -> int:
        """Tokens that may still come, as far as can be expected."""
        answer = self.sampling.max_tokens - len(self)
        if self._thoughts is None or not (self._thinks or self.asked.thinks):
            return answer
        return answer + self.asked.thinking_tokens - self.thinking_tokens

    @property
    def room(self) -> int:
        """Tokens to make room for before they come."""
        return min(self.remaining, self.sampling.max_tokens + _THOUGHTS_ROOM)

    def accept(self, opinion: Opinion) -> None:
        """Take the next token; an end token ends the sequence and is not kept."""
        token = opinion.token
        self._tries += self._awaits_answer
        inside = self._thinks and self._thoughts is not None and not self._thoughts.closed
        if token in self._vocabulary.ends and not (inside and token in self._vocabulary.between):
            self._end()
            return
        self.last_token = token
        self._opinions.append(opinion)
        if self._thoughts is None:
            self._take(self._detokenizer.feed(token))
            return
        mark = self._vocabulary.marks.get(token)
        self._look(self._thoughts, self._detokenizer.feed(token) if mark is None else mark)

    @property
    def tokens(self) -> list[int]:
        """Ids of what is the answer so far, or may be."""
        return [opinion.token for opinion in self._opinions]

    @property
    def shown(self) -> str:
        """Text that is certain to be part of the answer, white space not yet stripped."""
        return self._scanner.text[: self._scanner.safe] if self.ended is None else self._scanner.text

    def generation(self) -> Generation:
        """Return the answer so far; ``"partial"`` while it grows.

        Raises:
            ThinkingBudgetError: If the thoughts took too long.
        """
        if self.ended == "thinking":
            raise ThinkingBudgetError(self._overrun(), hint=_LESS)
        finish: FinishReason = self.ended or "partial"
        kept, pieces = self._kept()
        columns = [opinion[1:] for opinion in self._opinions[:kept]]
        logprobs, entropies, logsumexps = zip(*columns, strict=True) if columns else ((), (), ())
        trace = TokenTrace(pieces, logprobs, EntropyTrace(entropies, entropies, exact=True), logsumexps)
        return Generation(
            self._scanner.text.strip(), len(self.asked.ids), trace, finish, len(self), self.thinking_tokens
        )

    @property
    def _thinks(self) -> bool:
        """Whether it is known to be inside thoughts, or behind them without an answer yet."""
        return self._thoughts is not None and self._thoughts.has_thoughts

    @property
    def _awaits_answer(self) -> bool:
        """Whether an answer is about to begin: after thoughts and white space."""
        return self._thoughts is not None and self._thoughts.closed and self._thoughts.text[-1:].isspace()

    def _look(self, thoughts: ThoughtSplitter, piece: str) -> None:
        """Take a token that may belong to thoughts."""
        fresh = thoughts.feed(piece)
        self._pieces.append(piece)
        if thoughts.has_thoughts:
            self._think(thoughts, fresh)
        elif not thoughts.thinking:
            self._thoughts = None
            self._retake()
        elif not thoughts.text.strip():
            # White space is an answer until something else is known.
            self._pieces.pop()
            self._take(piece)

    def _think(self, thoughts: ThoughtSplitter, fresh: str) -> None:
        """Take a token of thoughts, or the one with which the answer begins after them."""
        if self._scanner.text:
            self._scanner = StopScanner(self.sampling.stop)
        if not thoughts.thinking:
            self._thoughts = None
            whole = self._pieces[-1]
            # A token's own white space stays; what ends the thoughts goes.
            self._pieces[-1] = fresh if whole[: len(whole) - len(fresh)].strip() else whole
            self._retake()
            return
        if self._pieces[-1] or not self._detokenizer.flush():
            # Otherwise the token began a character, which may be the first of the answer.
            self._forget()
        if self.thinking_tokens > self.asked.thinking_tokens:
            self.ended = "thinking"

    def _forget(self) -> None:
        """Count tokens as thoughts."""
        if not self.asked.thinks and not self.thinking_tokens:
            self._used = len(self._opinions)
        self.thinking_tokens += len(self._opinions)
        self._opinions.clear()
        self._pieces.clear()

    def _retake(self) -> None:
        """Take tokens that were held back, or are to be read anew, as the answer's."""
        opinions, pieces = self._opinions, self._pieces
        self._opinions, self._pieces, self._scanner = [], [], StopScanner(self.sampling.stop)
        for opinion, piece in zip(opinions, pieces, strict=True):
            if self.ended is None:
                self._opinions.append(opinion)
                self._take(piece)

    def _take(self, piece: str) -> None:
        """Take a token as the answer's."""
        self._pieces.append(piece)
        if self._scanner.feed(piece):
            self.ended = "stop"
        elif len(self._opinions) >= self.sampling.max_tokens:
            self.ended = "length"

    def _end(self) -> None:
        """Note that the model has ended; what was held back is the answer, if nothing was thought."""
        if self._thinks:
            self._forget()
        elif self._thoughts is not None:
            self._retake()
        self.ended = self.ended or "stop"

    def _overrun(self) -> str:
        spent, limit = self.thinking_tokens, self.asked.limit
        if limit <= self.asked.thinking_tokens:
            return f"the model was still thinking after {spent} tokens, and thinking_tokens is {limit}"
        return (
            f"the model was still thinking after {spent} tokens: its window leaves no more beside "
            f"{len(self.asked.ids)} of the prompt and {self.sampling.max_tokens} of the answer "
            f"(thinking_tokens is {limit})"
        )

    def _kept(self) -> tuple[int, tuple[str, ...]]:
        """Return how many tokens belong to the answer, and their texts."""
        if not self._scanner.stopped:
            return len(self._pieces), tuple(self._pieces)
        end, position, pieces = len(self._scanner.text), 0, []
        for piece in self._pieces:
            if position >= end:
                break
            pieces.append(piece[: end - position])
            position += len(piece)
        return len(pieces), tuple(pieces)
