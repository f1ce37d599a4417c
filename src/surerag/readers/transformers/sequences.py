"""One sample while it grows: its tokens, what the model thought of them, and when it ends."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

from transformers import PreTrainedTokenizerBase

from surerag.readers.transformers.decoding import Detokenizer, StopScanner
from surerag.readers.transformers.sampling import Draw, Opinion, sequence_key
from surerag.types import EntropyTrace, FinishReason, Generation, Sampling, TokenTrace


class GrowingSequence:
    """A sample of a prompt, fed one token at a time.

    A token that reaches into a stop text belongs to the answer if it begins before it: its
    probability is then in the trace, and its text is cut. Tokens that begin at the stop text or
    after it are not in the trace. A character of which only some bytes came is not shown.

    Attributes:
        prompt: Token ids of the prompt.
        sampling: How it is sampled.
        ended: Why it ended, or None while it grows.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_tokens: frozenset[int],
        prompt: Sequence[int],
        sampling: Sampling,
        sample: int = 0,
    ) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self.ended: Literal["stop", "length"] | None = None
        self._end_tokens = end_tokens
        self._key = sequence_key(prompt, sampling.seed, sample)
        self._detokenizer = Detokenizer(tokenizer)
        self._scanner = StopScanner(sampling.stop)
        self._opinions: list[Opinion] = []
        self._pieces: list[str] = []

    def __len__(self) -> int:
        return len(self._opinions)

    def fork(self) -> GrowingSequence:
        """Return a copy that grows on independently."""
        twin = copy.copy(self)
        twin._detokenizer = self._detokenizer.fork()
        twin._scanner = copy.copy(self._scanner)
        twin._opinions, twin._pieces = self._opinions[:], self._pieces[:]
        return twin

    @property
    def draw(self) -> Draw:
        """What the choice of the next token depends on."""
        return Draw(self.sampling, self._key, len(self))

    @property
    def last_token(self) -> int:
        """The newest token, which the model has not read yet."""
        return self._opinions[-1].token if self._opinions else self.prompt[-1]

    @property
    def remaining(self) -> int:
        """Tokens that may still come."""
        return self.sampling.max_tokens - len(self)

    def accept(self, opinion: Opinion) -> None:
        """Take the next token; an end token ends the sequence and is not kept."""
        if opinion.token in self._end_tokens:
            self.ended = "stop"
            return
        self._opinions.append(opinion)
        piece = self._detokenizer.feed(opinion.token)
        self._pieces.append(piece)
        if self._scanner.feed(piece):
            self.ended = "stop"
        elif self.remaining <= 0:
            self.ended = "length"

    @property
    def shown(self) -> str:
        """Text that is certain to be part of the answer, white space not yet stripped."""
        return self._scanner.text[: self._scanner.safe] if self.ended is None else self._scanner.text

    def generation(self) -> Generation:
        """Return the answer so far; ``"partial"`` while it grows."""
        finish: FinishReason = self.ended or "partial"
        kept, pieces = self._kept()
        columns = [opinion[1:] for opinion in self._opinions[:kept]]
        logprobs, entropies, logsumexps = zip(*columns, strict=True) if columns else ((), (), ())
        trace = TokenTrace(pieces, logprobs, EntropyTrace(entropies, entropies, exact=True), logsumexps)
        return Generation(self._scanner.text.strip(), len(self.prompt), trace, finish, len(self))

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
