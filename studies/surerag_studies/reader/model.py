"""The embedded reader's architecture, its first weights, and a forward pass for fast training on a CPU.

The model is a stock Qwen3; the forward pass here computes the same function from the same weights (a
test compares them), with the weights cast once a step and attention written out, so that a compiler can
fuse what lies between the matrix products. That is nearly twice as fast as the general one on two cores.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor
from transformers import Qwen3Config

from surerag_studies.reader.tokenizer import WINDOW

# The slow half of the angles hardly turns within the window: names compare alike at any distance.
ROTARY_BASE = 1_000_000.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a reader."""

    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    inner: int


SHAPES: Mapping[str, Shape] = {
    "default": Shape(width=256, layers=6, heads=6, key_heads=3, head_width=64, inner=512),
    "small": Shape(width=128, layers=4, heads=4, key_heads=2, head_width=64, inner=256),
}


def build_config(shape: Shape, vocabulary: int, end: int, pad: int) -> Qwen3Config:
    """Describe the model in Transformers' terms."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_width,
        max_position_embeddings=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
        initializer_range=0.02,
    )


Weights = Mapping[str, Tensor]
GATHERED = 2
"""Layers after which what a sentence tells, and what a question asks for, is to be known in one place."""


class States(NamedTuple):
    """Hidden states [batch, length, width] early on and at the end."""

    early: Tensor
    last: Tensor


def rotary(
    config: Qwen3Config, length: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each [1, length, 1, head width]."""
    steps = torch.arange(0, config.head_dim, 2, device=device).float() / config.head_dim
    angles = torch.outer(torch.arange(length, device=device).float(), ROTARY_BASE**-steps)
    both = torch.cat([angles, angles], -1)[None, :, None]
    return both.cos().to(dtype), both.sin().to(dtype)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    full = x.float()
    return (full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


def layer(
    x: Tensor,
    norms: tuple[Tensor, Tensor, Tensor, Tensor],
    joint: Tensor,
    output: Tensor,
    gates: Tensor,
    down: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    """Run one layer.

    Args:
        x: Hidden states [batch, length, width].
        norms: Weights of the input, query, key and post-attention norms.
        joint: Query, key and value projections, joined [(heads + 2 key heads) * head width, width].
        output: Output projection [width, heads * head width].
        gates: Gate and up projections, joined [2 * inner, width].
        down: Down projection [width, inner].
        cos: From `rotary`, of at least this length.
        sin: From `rotary`.

    Returns:
        Hidden states [batch, length, width].
    """
    batch, length, _ = x.shape
    size = cos.shape[-1]
    heads = output.shape[1] // size
    key_heads = (joint.shape[0] // size - heads) // 2
    cos, sin = cos[:, :length], sin[:, :length]
    q, k, v = (
        functional.linear(_norm(x, norms[0]), joint)
        .view(batch, length, heads + 2 * key_heads, size)
        .split((heads, key_heads, key_heads), 2)
    )
    q = _rotate(_norm(q, norms[1]), cos, sin).transpose(1, 2)
    k = _rotate(_norm(k, norms[2]), cos, sin).transpose(1, 2).repeat_interleave(heads // key_heads, 1)
    v = v.transpose(1, 2).repeat_interleave(heads // key_heads, 1)
    at = torch.arange(length, device=x.device)
    scores = (q @ k.transpose(2, 3)).float() * size**-0.5
    scores = torch.where(at[:, None] >= at[None, :], scores, -torch.inf)
    y = torch.softmax(scores, -1).to(x.dtype) @ v
    x = x + functional.linear(y.transpose(1, 2).reshape(batch, length, heads * size), output)
    gate, up = functional.linear(_norm(x, norms[3]), gates).chunk(2, -1)
    return x + functional.linear(functional.silu(gate) * up, down)


def attention_scores(early: Tensor, weights: Weights, links: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Score what the first head of the first layer after `GATHERED` ones looks at, before its softmax.

    Args:
        early: From `hidden_states`.
        weights: Parameters under Transformers' names.
        links: Row and position of each token that looks, and of the one to be looked at, [links, 3].
        cos: From `rotary`.
        sin: From `rotary`.

    Returns:
        Scores [links, length]; -inf for tokens that come later.
    """
    at = f"model.layers.{GATHERED}."
    size, length = cos.shape[-1], early.shape[1]
    x = early * weights[at + "input_layernorm.weight"]
    rows, positions = links[:, 0], links[:, 1]
    q = functional.linear(x[rows, positions], weights[at + "self_attn.q_proj.weight"][:size])
    q = _rotate(_norm(q, weights[at + "self_attn.q_norm.weight"]), cos[0, positions, 0], sin[0, positions, 0])
    k = functional.linear(x, weights[at + "self_attn.k_proj.weight"][:size])
    k = _rotate(_norm(k, weights[at + "self_attn.k_norm.weight"]), cos[0, :length, 0], sin[0, :length, 0])
    scores = (k[rows] @ q[:, :, None]).squeeze(-1).float() * size**-0.5
    later = torch.arange(length, device=early.device)[None, :] > positions[:, None]
    masked: Tensor = scores.masked_fill(later, -torch.inf)
    return masked


def hidden_states(
    ids: Tensor,
    weights: Weights,
    cos: Tensor,
    sin: Tensor,
    layers: int,
    run_layer: Callable[..., Tensor] = layer,
) -> States:
    """Run the model up to its last normalisation.

    Args:
        ids: Token ids [batch, length], padded on the right.
        weights: Parameters under Transformers' names, in the dtype to compute in.
        cos: From `rotary`, of at least this length.
        sin: From `rotary`.
        layers: Number of layers.
        run_layer: `layer`, or a compiled form of it.

    Returns:
        Hidden states after `GATHERED` layers and after all, each normalised [batch, length, width].
    """
    x = weights["model.embed_tokens.weight"][ids]
    early = x
    for number in range(layers):
        at = f"model.layers.{number}."
        norms = (
            weights[at + "input_layernorm.weight"],
            weights[at + "self_attn.q_norm.weight"],
            weights[at + "self_attn.k_norm.weight"],
            weights[at + "post_attention_layernorm.weight"],
        )
        joint = torch.cat([weights[f"{at}self_attn.{p}_proj.weight"] for p in "qkv"])
        gates = torch.cat([weights[f"{at}mlp.{p}_proj.weight"] for p in ("gate", "up")])
        output, down = weights[at + "self_attn.o_proj.weight"], weights[at + "mlp.down_proj.weight"]
        torch._dynamo.maybe_mark_dynamic(x, (0, 1))
        x = run_layer(x, norms, joint, output, gates, down, cos, sin)
        if number + 1 == GATHERED:
            early = x
    return States(_norm(early, torch.ones_like(early[0, 0])), _norm(x, weights["model.norm.weight"]))


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
