"""Choose the next token of each sequence, and compute the token's log-probability and the step's entropy.

Random numbers depend on the sequence and the step, never on the batch, so a sample is the same in any batch.
The sampled token is the maximum of logits plus Gumbel noise. This samples exactly from the distribution, and
rounding errors of the logits hardly matter. A token is drawn in two stages, first a block of 256 tokens and
then a token in the block: this gives the same distribution with only some hundred random numbers a step.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from surerag.errors import LogprobsError
from surerag.messages import SamplingParams

_BLOCK = 256
# exp(-200) is zero in float32. The floor avoids 0 * -inf in the entropy if a logit is minus infinity.
_FLOOR = -200.0
_COLDEST = 1e-6


class ScoredToken(NamedTuple):
    """A token, its log-probability, and the entropy and log-sum-exp of its step, in nats."""

    token: int
    logprob: float
    entropy: float
    logsumexp: float


class Draw(NamedTuple):
    """The inputs of a random choice: sampling parameters, the sequence's random key, the step's number."""

    sampling: SamplingParams
    key: int
    step: int


def is_greedy(sampling: SamplingParams) -> bool:
    """Return whether decoding is greedy; a temperature too small to divide by counts as zero."""
    return sampling.temperature < _COLDEST


def sequence_key(prompt: Sequence[int], seed: int, sample: int) -> int:
    """Return the 128-bit key of the random numbers for one sample of one prompt."""
    material = np.asarray(prompt, dtype="<i8").tobytes() + f"|{seed}|{sample}".encode()
    return int.from_bytes(hashlib.sha256(material).digest()[:16], "little")


def choose(logits: Tensor, draws: Sequence[Draw]) -> list[ScoredToken]:
    """Choose the next token of each row of raw float32 logits [rows, vocabulary]."""
    tokens = torch.empty(len(draws), dtype=torch.long, device=logits.device)
    groups: dict[float, list[int]] = {}
    for row, draw in enumerate(draws):
        groups.setdefault(0.0 if is_greedy(draw.sampling) else draw.sampling.temperature, []).append(row)
    for temperature, rows in groups.items():
        part = logits if len(rows) == len(draws) else logits[rows]
        if temperature:
            tokens[rows] = _sample(part / temperature, [draws[row] for row in rows])
        else:
            tokens[rows] = part.argmax(-1)
    return score_tokens(logits, tokens)


def score_tokens(logits: Tensor, tokens: Tensor) -> list[ScoredToken]:
    """For each row of raw float32 logits [rows, vocabulary], score the token that ``tokens`` has for it.

    Raises LogprobsError if a log-sum-exp is not finite.
    """
    top = logits.amax(-1, keepdim=True)
    centred = (logits - top).clamp_(min=_FLOOR)
    weights = centred.exp()
    total = weights.sum(-1)
    log_total = total.log()
    entropy = (log_total - (weights * centred).sum(-1) / total).clamp_(min=0)
    # The maximum is subtracted first, because the difference of two large numbers would lose digits.
    logprob = (logits.gather(-1, tokens[:, None]) - top).squeeze(-1) - log_total
    # One tensor needs one transfer from the device. Token ids are below 2**24, so float32 holds them exactly.
    columns = torch.stack([tokens.float(), logprob, entropy, top.squeeze(-1) + log_total], dim=1)
    rows = [ScoredToken(int(row[0]), *row[1:]) for row in columns.tolist()]
    if not all(math.isfinite(row.logsumexp) for row in rows):
        raise LogprobsError(
            "the model's logits are not all numbers",
            hint="load the model with the dtype bfloat16 or float32; float16 overflows in some models",
        )
    return rows


def _sample(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    rows, vocabulary = logits.shape
    blocks = -(-vocabulary // _BLOCK)
    padded = torch.nn.functional.pad(logits, (0, blocks * _BLOCK - vocabulary), value=-torch.inf)
    in_blocks = padded.view(rows, blocks, _BLOCK)
    # Noise is float64: a float32 exponential is exactly 0 once in ten million, and its token would then win.
    uniform = np.stack([_exponentials(draw, blocks + _BLOCK) for draw in draws])
    noise = torch.from_numpy((-np.log(uniform)).astype(np.float32)).to(logits.device)
    block = (in_blocks.logsumexp(-1) + noise[:, :blocks]).argmax(-1)
    inside = in_blocks[torch.arange(rows, device=logits.device), block] + noise[:, blocks:]
    return block * _BLOCK + inside.argmax(-1)


def _exponentials(draw: Draw, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    # The counter's high word holds the step; each random number increases the low word.
    bits = np.random.Philox(key=draw.key, counter=[0, 0, 0, draw.step])
    return np.random.Generator(bits).standard_exponential(count)
