"""Teacher forcing: log-probabilities of given text, a few steps of logits at a time."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from surerag.readers.transformers.decoding import Detokenizer, Opinion, opinions
from surerag.readers.transformers.memory import Memory
from surerag.readers.transformers.model import CausalModel
from surerag.readers.transformers.prefill import Read, following
from surerag.types import EntropyTrace, TokenTrace

# Logits held at a time: 64 MiB in float32.
_LOGITS = 1 << 24


def score_rows(
    model: CausalModel, memory: Memory, reads: Sequence[Read], tails: Sequence[Sequence[int]]
) -> list[list[Opinion]]:
    """Feed each row of a memory its continuation.

    Args:
        model: The model.
        memory: One row for each continuation; it is used up.
        reads: The prompt of each row.
        tails: Token ids of the continuations.

    Returns:
        The model's opinion of every token of every continuation.
    """
    tokens = model.padded(tails)
    found = [[opinion] for opinion in opinions(following(reads), tokens[:, 0])]
    chunk = max(1, _LOGITS // (len(tails) * model.vocabulary))
    for start in range(0, tokens.shape[1] - 1, chunk):
        end = min(start + chunk, tokens.shape[1] - 1)
        logits = memory.feed(tokens[:, start:end], keep=end - start)
        targets = tokens[:, start + 1 : end + 1]
        flat = opinions(logits.flatten(0, 1), targets.flatten())
        for row, opinion_row in enumerate(found):
            opinion_row += flat[row * (end - start) : (row + 1) * (end - start)]
    return [row[: len(tail)] for row, tail in zip(found, tails, strict=True)]


def trace_of(tokenizer: PreTrainedTokenizerBase, scored: Sequence[Opinion]) -> TokenTrace:
    """Return opinions as a trace, with the text of each token."""
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.feed(opinion.token) for opinion in scored]
    pieces[-1] += detokenizer.flush()
    _, logprobs, entropies, logsumexps = zip(*scored, strict=True)
    return TokenTrace(tuple(pieces), logprobs, EntropyTrace(entropies, entropies, exact=True), logsumexps)
