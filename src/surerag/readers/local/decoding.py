"""One step of decoding: how a token is chosen, and what the model thought of it.

Chance is drawn for a sequence and a step, never for a batch: the noise of step ``t`` of a sequence is
a function of that sequence's key and ``t`` alone, so a sequence takes the same path whatever it is
batched with. Tokens are chosen by perturbed maxima (the Gumbel-max trick, which samples exactly), since
the runner-up is then far behind: rounding that differs between batch sizes by 1e-6 changes a choice
about once in a million tokens, where a cumulative sum over a large vocabulary would let it often.
The vocabulary is drawn from in two stages, a block of 256 tokens and then a token in it, which is the
same distribution and takes some hundred random numbers a step, not one for every word.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from surerag.errors import LogprobsError
from surerag.messages import SamplingParams

_BLOCK = 256
# exp(-200) is zero in float32; keeps 0 * -inf out of the entropy where a logit is minus infinity.
_FLOOR = -200.0
_WORD = (1 << 64) - 1
_NOTHING = np.zeros(4, dtype=np.uint64)
# Tokens to look for the end of a nucleus among, at first.
_LIKELIEST = 1024
# Log-probabilities are told apart by bins where a nucleus is wider; the last holds all below -32, no mass.
_BINS_A_NAT = 128
_BINS = 4096


class Opinion(NamedTuple):
    """The model's view of one token: natural log of its probability, entropy and log-sum-exp at its step."""

    token: int
    logprob: float
    entropy: float
    logsumexp: float


class Draw(NamedTuple):
    """What a choice depends on besides the logits."""

    sampling: SamplingParams
    key: int
    step: int


def sequence_key(prompt: Sequence[int], seed: int, sample: int) -> int:
    """Return 128 bits that belong to one sample of one prompt."""
    material = np.asarray(prompt, dtype="<i8").tobytes() + f"|{seed}|{sample}".encode()
    return int.from_bytes(hashlib.sha256(material).digest()[:16], "little")


def choose(logits: Tensor, draws: Sequence[Draw]) -> list[Opinion]:
    """Choose the next token of each row.

    Args:
        logits: Raw logits [rows, vocabulary], float32.
        draws: How, and with what chance, for each row.

    Returns:
        The chosen tokens, with the model's unwarped opinion of each.
    """
    tokens = torch.empty(len(draws), dtype=torch.long, device=logits.device)
    groups: dict[tuple[float, int | None, float], list[int]] = {}
    for row, (sampling, _, _) in enumerate(draws):
        greedy = sampling.temperature == 0
        warp = (0.0, None, 1.0) if greedy else (sampling.temperature, sampling.top_k, sampling.top_p)
        groups.setdefault(warp, []).append(row)
    for (temperature, top_k, top_p), rows in groups.items():
        part = logits if len(rows) == len(draws) else logits[rows]
        if temperature == 0:
            tokens[rows] = part.argmax(-1)
        else:
            warped = warp_logits(part / temperature, top_k, top_p)
            tokens[rows] = _perturbed_maximum(warped, [draws[row] for row in rows])
    return opinions(logits, tokens)


def opinions(logits: Tensor, tokens: Tensor) -> list[Opinion]:
    """Return what the model thinks of one given token a row.

    Args:
        logits: Raw logits [rows, vocabulary], float32.
        tokens: Token ids [rows].

    Raises:
        LogprobsError: If logits are not numbers.
    """
    top = logits.amax(-1, keepdim=True)
    centred = (logits - top).clamp_(min=_FLOOR)
    weights = centred.exp()
    total = weights.sum(-1)
    log_total = total.log()
    entropy = (log_total - (weights * centred).sum(-1) / total).clamp_(min=0)
    logsumexp = top.squeeze(-1) + log_total
    # Centred first: the difference of two large numbers would lose digits.
    logprob = (logits.gather(-1, tokens[:, None]) - top).squeeze(-1) - log_total
    # One transfer a step; token ids are whole numbers far below 2**24, so float32 holds them.
    columns = torch.stack([tokens.float(), logprob, entropy, logsumexp], dim=1)
    rows = [Opinion(int(row[0]), *row[1:]) for row in columns.tolist()]
    if not all(np.isfinite(row.logsumexp) for row in rows):
        raise LogprobsError(
            "the model's logits are not all numbers",
            hint="load it with dtype='bfloat16' or 'float32'; float16 overflows in some models",
        )
    return rows


def warp_logits(logits: Tensor, top_k: int | None, top_p: float) -> Tensor:
    """Set the logits [rows, vocabulary] of tokens outside top-k and the nucleus to minus infinity.

    Tokens as likely as the last one that stays, stay as well.
    """
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1:
        logits = logits.masked_fill(logits < _least_of_nucleus(logits, top_p), -torch.inf)
    return logits


def _least_of_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Return the smallest logit of each row's nucleus, [rows, 1]."""
    total = logits.logsumexp(-1, keepdim=True)
    # The nucleus is nearly always among the likeliest few, which are found without sorting the rest.
    likeliest = logits.topk(min(_LIKELIEST, logits.shape[-1]), dim=-1).values
    least, mass = _reached(likeliest, total, top_p, 0.0)
    wide = (mass < top_p).squeeze(-1)
    if likeliest.shape[-1] < logits.shape[-1] and bool(wide.any()):
        least[wide] = _least_of_wide_nucleus(logits[wide], total[wide], top_p)
    return least


def _least_of_wide_nucleus(logits: Tensor, total: Tensor, top_p: float) -> Tensor:
    """Return the smallest logit of each row's nucleus, [rows, 1], by sorting those near it alone.

    Args:
        logits: Of tokens [rows, vocabulary].
        total: Their log-sum-exp [rows, 1].
        top_p: The mass.
    """
    logprobs = logits - total
    bins = (logprobs * -_BINS_A_NAT).clamp_(max=_BINS - 1).long()
    masses = torch.zeros(len(logits), _BINS, device=logits.device).scatter_add_(-1, bins, logprobs.exp())
    place = (masses.cumsum(-1) < top_p).sum(-1, keepdim=True).minimum(bins.amax(-1, keepdim=True))
    held = torch.where(bins < place, logprobs.exp(), 0).sum(-1, keepdim=True)
    here = bins == place
    near = logits.masked_fill(~here, -torch.inf).topk(int(here.sum(-1).max()), dim=-1).values
    return _reached(near, total, top_p, held)[0]


def _reached(ordered: Tensor, total: Tensor, top_p: float, held: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return the logit [rows, 1] with which a mass is reached, and the mass [rows, 1] of them all.

    Args:
        ordered: Logits of tokens [rows, tokens], the likeliest first.
        total: Log-sum-exp [rows, 1] of all logits.
        top_p: The mass.
        held: What still likelier tokens have of it.
    """
    masses = held + (ordered - total).exp().cumsum(-1)
    # A token stays if the likelier ones do not yet hold the mass; so the likeliest always stays.
    inside = (masses < top_p).sum(-1, keepdim=True).clamp_(max=ordered.shape[-1] - 1)
    return ordered.gather(-1, inside), masses[:, -1:]


def _perturbed_maximum(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Sample one token a row from logits [rows, vocabulary]."""
    rows, vocabulary = logits.shape
    blocks = -(-vocabulary // _BLOCK)
    padded = torch.nn.functional.pad(logits, (0, blocks * _BLOCK - vocabulary), value=-torch.inf)
    in_blocks = padded.view(rows, blocks, _BLOCK)
    noise = torch.from_numpy(_gumbel(draws, blocks + _BLOCK)).to(logits.device)
    block = (in_blocks.logsumexp(-1) + noise[:, :blocks]).argmax(-1)
    inside = in_blocks[torch.arange(rows, device=logits.device), block] + noise[:, blocks:]
    return block * _BLOCK + inside.argmax(-1)


class _Generator(threading.local):
    """One generator for each thread, put to where it is needed: making one costs more than its numbers."""

    def __init__(self) -> None:
        self._bits = np.random.Philox(0)
        self._numbers = np.random.Generator(self._bits)

    def exponentials(self, draw: Draw, into: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """Fill an array with what belongs to a sequence and a step."""
        # Counter-based: the step stands in the counter's high word, each draw moves the low one.
        self._bits.state = {
            "bit_generator": "Philox",
            "state": {
                "counter": np.array((0, 0, 0, draw.step), dtype=np.uint64),
                "key": np.array((draw.key & _WORD, draw.key >> 64), dtype=np.uint64),
            },
            "buffer": _NOTHING,
            "buffer_pos": len(_NOTHING),
            "has_uint32": 0,
            "uinteger": 0,
        }
        self._numbers.standard_exponential(out=into)


_generator = _Generator()


def _gumbel(draws: Sequence[Draw], count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return noise [rows, count]."""
    # Drawn in float64: a float32 exponential is exactly 0 once in ten million, and would then win.
    noise = np.empty((len(draws), count))
    for draw, row in zip(draws, noise, strict=True):
        _generator.exponentials(draw, row)
    np.log(noise, out=noise)
    return (-noise).astype(np.float32)
