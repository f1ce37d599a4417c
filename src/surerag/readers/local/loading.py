"""Loading a model and its tokenizer by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from surerag.errors import ConfigurationError


class Loaded(NamedTuple):
    """A model and the tokenizer that belongs to it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def load(
    id_or_path: str,
    *,
    device: str | None,
    dtype: str | None,
    trust_remote_code: bool,
    use_safetensors: bool,
    **options: Any,
) -> Loaded:
    """Load a model, ready to read; see :meth:`TransformersReader.from_pretrained`."""
    device = device or best_device()
    # The weights' own type is for accelerators; most CPUs have no fast arithmetic for it.
    dtype = dtype or ("float32" if device == "cpu" else "auto")
    try:
        tokenizer = AutoTokenizer.from_pretrained(id_or_path, trust_remote_code=trust_remote_code)
        model = AutoModelForCausalLM.from_pretrained(
            id_or_path,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            use_safetensors=use_safetensors,
            **options,
        )
    except (OSError, ValueError) as error:
        raise _not_loaded(id_or_path, error) from error
    # With a device map, the library has placed the parts already.
    return Loaded(model if "device_map" in options else cast(Any, model).to(device), tokenizer)


def _not_loaded(id_or_path: str, error: Exception) -> ConfigurationError:
    if id_or_path.startswith((".", "/", "~")) and not Path(id_or_path).is_dir():
        return ConfigurationError(
            f"the model {id_or_path!r} cannot be loaded: there is no such folder",
            hint="give a saved causal model's folder, or its Hugging Face id",
        )
    return ConfigurationError(
        f"the model {id_or_path!r} cannot be loaded: {str(error).strip().splitlines()[0]}",
        hint="give a causal model's Hugging Face id that can be reached, or a saved one's folder",
    )


def best_device() -> str:
    """Return ``"cuda"``, ``"mps"`` or ``"cpu"``, the first that there is."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
