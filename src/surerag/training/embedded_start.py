"""Weights to begin with that already look back and compare.

From random weights a small model spends most of a short training on finding out that it can compare names:
what copies a name, what carries it to where it is needed and what compares two copies must all agree before
any of them helps. Mimetic initialisation (Trockman and Kolter, "Mimetic Initialization of Self-Attention
Layers", ICML 2023) begins with attention that resembles what training arrives at. Here, in each layer, a
third of the heads compare tokens and a third carry them, all through one projection of the embeddings, so
that a copy is comparable with its original; in the first two layers, the heads that carry look back a few
words. The last third is left random. Everything goes on to be trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from surerag.training.embedded_model import ROTARY_BASE, Shape

_GAIN = 0.35
_LOOKING_BACK = 2
"""Number of layers whose carrying heads look back by position."""
_KEY_TONES = range(2, 9)
_NEAR, _FAR = (2, 3, 4, 5, 6), (5, 6, 7, 8)
"""Rotary frequencies, by number, of which a head's sense of distance is made: the lower the wider."""


@torch.no_grad()
def set_out(weights: Mapping[str, Tensor], shape: Shape, *, seed: int) -> None:
    """Overwrite a part of random weights with heads that look back, carry and compare.

    Args:
        weights: Parameters under Transformers' names; changed in place.
        shape: Size of the model; it needs two key heads at least.
        seed: Seed of the projection.
    """
    size, group = shape.head_width, shape.heads // shape.key_heads
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(shape.width, shape.width, generator=generator)
    embedding = weights["model.embed_tokens.weight"]
    basis = torch.linalg.qr(random)[0].T.to(embedding.device)
    # What is compared lives in `names`; `always`, which all embeddings share, lets a head ask by position.
    names, always = basis[:size], basis[size]
    embedding.mul_(3)
    embedding.add_(always * embedding.norm(dim=1).mean())
    for number in range(shape.layers):
        q, k, v, o = (weights[f"model.layers.{number}.self_attn.{part}_proj.weight"] for part in "qkvo")
        looks_back = number < _LOOKING_BACK
        v[: 2 * size] = _GAIN * names.repeat(2, 1)
        for head in range(2 * group):
            carries = head < group
            columns = slice(head * size, (head + 1) * size)
            o[:, columns] = (2 if carries and looks_back else 1) * _GAIN * names.T
            if not carries:
                q[columns] = _GAIN * names
        k[size : 2 * size] = _GAIN * names
        if looks_back:
            k[:size] += torch.outer(_tone(_KEY_TONES, 0.0, size).to(always), always)
            q[:size] += torch.outer(_tone(_NEAR, 1.5, size).to(always), always)
            for head in range(1, group):
                q[head * size : (head + 1) * size] += torch.outer(_tone(_FAR, 4.0, size).to(always), always)


def _tone(frequencies: Sequence[int], back: float, size: int) -> Tensor:
    """Make a unit vector [size] whose rotary product with key tones is largest so many tokens back."""
    half = size // 2
    tone = torch.zeros(size)
    for number in frequencies:
        angle = ROTARY_BASE ** (-number / half) * back
        tone[number], tone[number + half] = math.cos(angle), -math.sin(angle)
    unit: Tensor = tone / tone.norm()
    return unit
