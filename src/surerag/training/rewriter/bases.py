"""Who learns: a base loaded to be trained, whole, under adapters, or in four bits under them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from surerag.errors import ConfigurationError, MissingExtraError
from surerag.readers.transformers.model import CausalModel
from surerag.training.rewriter.options import FineTuning
from surerag.training.rewriter.processes import number

TENSORBOARD = "tensorboard"


@dataclass(frozen=True, slots=True)
class Base:
    """What is fine-tuned.

    Attributes:
        model: Its weights; in float32, but for frozen ones under adapters on an accelerator.
        tokenizer: Its tokenizer.
        source: Its id or path, as given.
        name: Its id or the last part of its path, and a short hash of its weights.
        dtype: Of the weights as they were published.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str
    name: str
    dtype: torch.dtype


def load_base(id_or_path: str | Path, settings: FineTuning) -> Base:
    """Load a base to be trained, from safetensors only.

    Raises:
        ConfigurationError: If it cannot be loaded, or not be trained here as it is to be.
        MissingExtraError: If a package for that is not installed.
    """
    check_machine(settings)
    where, trusted = str(id_or_path), {"trust_remote_code": settings.trust_remote_code}
    frozen = settings.lora is not None and accelerated(settings)
    more: dict[str, Any] = dict(trusted)
    if settings.attention is not None:
        more["attn_implementation"] = settings.attention
    if settings.four_bit:
        more["quantization_config"] = _four_bit()
    try:
        config = AutoConfig.from_pretrained(where, **trusted)
        tokenizer = AutoTokenizer.from_pretrained(where, **trusted)
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype="auto" if frozen else torch.float32, use_safetensors=True, **more
        )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigurationError(
            f"the base {where!r} cannot be loaded: {str(error).strip().splitlines()[0]}",
            hint="give a causal model's Hugging Face id that can be reached, or the folder of a saved one, "
            "with weights as safetensors",
        ) from error
    known = CausalModel(model, tokenizer)
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    return Base(model, tokenizer, where, f"{known.origin}@{known.fingerprint}", dtype)


def lora_of(settings: FineTuning) -> LoraConfig | None:
    """Return the adapters in peft's terms; None for full fine-tuning."""
    lora = settings.lora
    if lora is None:
        return None
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear" if lora.targets is None else list(lora.targets),
        task_type="CAUSAL_LM",
    )


def accelerated(settings: FineTuning) -> bool:
    """Whether training is on an accelerator."""
    return settings.device != "cpu" and (torch.cuda.is_available() or torch.backends.mps.is_available())


def window_of(base: Base) -> int | None:
    """Return how many tokens a base reads; None if it does not say."""
    window = getattr(base.model.config, "max_position_embeddings", None)
    return window if isinstance(window, int) else None


def check_machine(settings: FineTuning) -> None:
    """Refuse what cannot be had here, before anything is paid for.

    Raises:
        ConfigurationError: If weights in four bits, or in pieces, need what there is not.
        MissingExtraError: If a package for these, or for curves, is not installed.
    """
    cuda = accelerated(settings) and torch.cuda.is_available()
    if settings.four_bit and not cuda:
        raise ConfigurationError("weights in four bits need CUDA", hint="leave four_bit (--four-bit) out")
    if settings.four_bit and importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError(
            "weights in four bits need bitsandbytes", hint="run: pip install bitsandbytes"
        )
    if settings.trainer.get("fsdp") and not (cuda and number() > 1):
        # accelerate would leave it out without a word.
        raise ConfigurationError(
            "fsdp needs several processes, each with a GPU of its own",
            hint="start it with torchrun --nproc-per-node=N, or leave fsdp out",
        )
    if settings.report_to == TENSORBOARD and importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError(
            "curves for TensorBoard need its package", hint="run: pip install tensorboard"
        )


def _four_bit() -> BitsAndBytesConfig:
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
