"""Teacher forcing: log-probabilities of given text, a few steps of logits at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from surerag.messages import EntropyTrace, TokenTrace
from surerag.readers.local.attention_memory import AttentionMemory
from surerag.readers.local.decoding import Opinion, opinions
from surerag.readers.local.detokenizing import Detokenizer
from surerag.readers.local.memory import Memory
from surerag.readers.local.model import CausalModel
from surerag.readers.local.prefill import following
from surerag.readers.local.prompt_store import Read

# Logits held at a time: 64 MiB in float32.
_LOGITS = 1 << 24


def score_rows(
    model: CausalModel, memory: Memory, reads: Sequence[Read], tails: Sequence[Sequence[int]]
) -> list[list[Opinion]]:
    """Feed each row of a memory its continuation.

    A continuation is read in one pass where the model's head can be applied to its hidden states apart,
    a slice at a time; else in as many passes as its logits need.

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
    for logits, targets in _steps(model, memory, tokens):
        steps = targets.shape[1]
        flat = opinions(logits.flatten(0, 1), targets.flatten())
        for row, opinion_row in enumerate(found):
            opinion_row += flat[row * steps : (row + 1) * steps]
    return [row[: len(tail)] for row, tail in zip(found, tails, strict=True)]


def score_at_once(
    model: CausalModel, rows: Sequence[Sequence[int]], tails: Sequence[int]
) -> list[list[Opinion]]:
    """Read each row, prompt and continuation, in one pass without any memory.

    Args:
        model: The model. It leaves masked padding alone, or the rows have one length.
        rows: Token ids of prompts and continuations.
        tails: How many of each row's last tokens are the continuation.

    Returns:
        The model's opinion of every token of every continuation.
    """
    length, most = max(map(len, rows)), max(tails)
    few = len(rows) if model.head_apart else max(1, _LOGITS // (most * model.vocabulary))
    if len(rows) > few:
        found = [
            score_at_once(model, rows[i : i + few], tails[i : i + few]) for i in range(0, len(rows), few)
        ]
        return [row for part in found for row in part]
    tokens = model.tensor([[*[model.pad_token] * (length - len(row)), *row] for row in rows])
    padding = torch.tensor([[length - len(row)] for row in rows], device=tokens.device)
    slots = torch.arange(length, device=tokens.device)
    mask = (slots >= padding).long() if bool(padding.any()) else None
    positions = (slots - padding).clamp(min=0)
    targets = tokens[:, length - most :]
    slices: Iterable[tuple[Tensor, int]]
    if model.head_apart:
        said = model.hidden(tokens, None, mask, positions)[:, -most - 1 : -1]
        steps = max(1, _LOGITS // (len(rows) * model.vocabulary))
        slices = ((model.logits(said[:, i : i + steps]), i) for i in range(0, most, steps))
    else:
        slices = [(model.forward(tokens, None, mask, positions, most + 1)[:, :-1], 0)]
    found_for: list[list[Opinion]] = [[] for _ in rows]
    for logits, start in slices:
        steps = logits.shape[1]
        flat = opinions(logits.flatten(0, 1), targets[:, start : start + steps].flatten())
        for place, row in enumerate(found_for):
            row += flat[place * steps : (place + 1) * steps]
    return [row[most - tail :] for row, tail in zip(found_for, tails, strict=True)]


def _steps(model: CausalModel, memory: Memory, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits [rows, steps, vocabulary] and what follows, [rows, steps], a few steps at a time."""
    rows, length = tokens.shape
    few = max(1, _LOGITS // (rows * model.vocabulary))
    hidden = None
    if length > 1 and few < length - 1 and model.head_apart and isinstance(memory, AttentionMemory):
        hidden = memory.feed_hidden(tokens[:, :-1])
    for start in range(0, length - 1, few):
        end = min(start + few, length - 1)
        if hidden is None:
            logits = memory.feed(tokens[:, start:end], keep=end - start)
        else:
            logits = model.logits(hidden[:, start:end])
        yield logits, tokens[:, start + 1 : end + 1]


def trace_of(detokenizer: Detokenizer, scored: Sequence[Opinion]) -> TokenTrace:
    """Return opinions as a trace, with the text of each token."""
    pieces = [detokenizer.feed(opinion.token) for opinion in scored]
    pieces[-1] += detokenizer.flush()
    _, logprobs, entropies, logsumexps = zip(*scored, strict=True)
    return TokenTrace(tuple(pieces), logprobs, EntropyTrace(entropies, entropies, exact=True), logsumexps)
