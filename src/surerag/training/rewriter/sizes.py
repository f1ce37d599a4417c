"""How large a base is, without loading its weights: what it needs of memory, disk and time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from surerag.errors import ConfigurationError, InputError
from surerag.training.rewriter.encoding import RewriteEncoder
from surerag.training.rewriter.options import FineTuning
from surerag.training.rewriter.recipe import Stage

_SHARE = 0.35
"""Of what a device multiplies at its best, training reaches about a third."""
_ADAPTERS = 0.02
"""Adapters are a small part of the weights."""


class Size(NamedTuple):
    """What a base takes.

    Attributes:
        weights: Their number.
        width: Bytes of each as published.
        window: Tokens it reads; None if it does not say.
    """

    weights: int
    width: int
    window: int | None


def size_of(base: str | Path, *, trust_remote_code: bool = False) -> Size:
    """Return a base's size from its configuration.

    Raises:
        ConfigurationError: If there is none.
    """
    try:
        config = AutoConfig.from_pretrained(str(base), trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the base {str(base)!r} cannot be loaded: {str(error).strip().splitlines()[0]}",
            hint="give a causal model's Hugging Face id that can be reached, or the folder of a saved one",
        ) from error
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    window = getattr(config, "max_position_embeddings", None)
    return Size(sum(p.numel() for p in model.parameters()), dtype.itemsize, window)


def check_base(base: str | Path, settings: FineTuning, prompts: Sequence[str], answer: int) -> list[int]:
    """Return the places of prompts that a base cannot read, an answer behind them; the others fit.

    Args:
        base: Of which only configuration and tokenizer are loaded.
        settings: How it will be trained.
        prompts: What it is to learn to answer.
        answer: Tokens of an answer, at most.

    Raises:
        ConfigurationError: If it cannot be loaded, or has no template that lets it answer at once.
        InputError: If it can read none of them.
    """
    size = size_of(base, trust_remote_code=settings.trust_remote_code)
    tokenizer = AutoTokenizer.from_pretrained(str(base), trust_remote_code=settings.trust_remote_code)
    encoder = RewriteEncoder(tokenizer, settings.template_options)
    limit = min(settings.max_tokens, size.window or settings.max_tokens)
    long = [place for place, prompt in enumerate(prompts) if len(encoder.prompt(prompt)) + answer > limit]
    if prompts and len(long) == len(prompts):
        raise InputError(
            f"a prompt and {answer} tokens of an answer are more than the {limit} that {base} is trained on",
            hint="raise max_tokens, shorten the prompt, or take a base with a longer window",
        )
    return long


def memory_of(size: Size, settings: FineTuning, stage: Stage) -> int:
    """Return bytes that weights, gradients, the optimizer and a reference take; activations come on top."""
    if settings.lora is None:
        reference = 4 if stage == "align" and not settings.trainer.get("precompute_ref_log_probs") else 0
        return size.weights * (16 + reference)
    held = 0.6 if settings.four_bit else size.width
    return round(size.weights * (held + 16 * _ADAPTERS))


def disk_of(size: Size, settings: FineTuning) -> int:
    """Return bytes that a stage takes on the disk: three checkpoints for a moment, and the model."""
    trained = 1.0 if settings.lora is None else _ADAPTERS
    return round(size.weights * (3 * 12 * trained + size.width))


def hours_of(size: Size, tokens: int, settings: FineTuning, stage: Stage) -> float:
    """Return about how long training takes on this machine's device, which multiplies a little for it.

    A token costs six operations a weight, four where most weights are frozen; a reference two more.
    """
    each = (6 if settings.lora is None else 4) + (2 if stage == "align" else 0)
    return each * size.weights * tokens / (_SHARE * _speed(settings)) / 3600


def _speed(settings: FineTuning) -> float:
    fast = settings.device != "cpu" and torch.cuda.is_available()
    side, dtype = (8192, torch.bfloat16) if fast else (1024, torch.float32)
    one = torch.randn(side, side, device="cuda" if fast else "cpu", dtype=dtype)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        product = one @ one
        product[0, 0].item()  # waits for the device
        times.append(time.perf_counter() - began)
    return 2 * side**3 / min(times)
