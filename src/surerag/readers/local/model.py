"""A causal language model: how it is loaded, its limits, and one forward pass."""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from surerag.errors import ConfigurationError
from surerag.readers.failures import reason_of
from surerag.readers.local.cache import join_rows, new_cache, take_row

_BATCH_TOKENS = 1 << 15
_WINDOW_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len")


class CausalModel:
    """A ``transformers`` model with its window and end tokens, and with a method for one forward pass.

    Attributes:
        model: The model as it was passed in, with wrappers of PEFT or ``torch.compile``; ``bare`` is the
            ``transformers`` model inside the wrappers.
        window: Maximum number of tokens of prompt and answer together; None if neither the caller nor the
            model's config sets a limit.

    Raises:
        ConfigurationError: If the model has an encoder, or no head for the next token.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, window: int | None = None
    ) -> None:
        inner: Any = getattr(model, "_orig_mod", model)
        # PEFT puts its adapters into the layers of the inner model, so the inner model is the adapted model.
        self.bare: Any = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
        self.model: Any = model
        encodes = getattr(self.bare.config, "is_encoder_decoder", False)
        if encodes or (isinstance(self.bare, PreTrainedModel) and not self.bare.can_generate()):
            reason = "has an encoder and a decoder" if encodes else "does not predict the next token"
            raise ConfigurationError(
                f"{type(self.bare).__name__} {reason}, but a reader needs a causal language model",
                hint="pass a model that AutoModelForCausalLM loads, such as LlamaForCausalLM",
            )
        model.eval()
        self._config = self.bare.config.get_text_config(decoder=True)
        sizes = [getattr(self._config, name, None) for name in _WINDOW_NAMES]
        self.window = window or next((size for size in sizes if isinstance(size, int) and size > 0), None)
        self._arguments = frozenset(inspect.signature(self.bare.forward).parameters)
        ends = getattr(model.generation_config, "eos_token_id", None)
        ends = ends if isinstance(ends, list) else [ends]
        self.end_tokens = frozenset(end for end in (*ends, tokenizer.eos_token_id) if isinstance(end, int))

    @property
    def _embeddings(self) -> Tensor:
        return cast("Tensor", self.model.get_input_embeddings().weight)

    @property
    def device(self) -> torch.device:
        """Device on which the model expects token ids."""
        return self._embeddings.device

    @property
    def vocabulary(self) -> int:
        """Number of rows of the embedding table."""
        return int(self._embeddings.shape[0])

    @property
    def batch_tokens(self) -> int:
        """Default maximum of tokens in a batch: 32,768, or more with CUDA.

        With CUDA, it is the number that fits into half of the free memory, at least 32,768 and at most 2**20.
        """
        if self.device.type != "cuda":
            return _BATCH_TOKENS
        heads = getattr(self._config, "num_attention_heads", None) or 1
        width = getattr(self._config, "head_dim", None) or self._config.hidden_size // heads
        values = (
            self._config.num_hidden_layers
            * width
            * (getattr(self._config, "num_key_value_heads", None) or heads)
        )
        free, _ = torch.cuda.mem_get_info(self.device)
        fits = free // (4 * values * self._embeddings.element_size())
        return int(max(_BATCH_TOKENS, min(fits, 1 << 20)))

    @cached_property
    def name(self) -> str:
        """The model's hub id, folder or class name, and a hash of some values of each weight matrix."""
        digest = hashlib.sha256()
        for name, parameter in sorted(self.model.named_parameters()):
            flat = parameter.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // 64)][:64].to("cpu", torch.float32)
            digest.update(f"{name}{tuple(parameter.shape)}".encode() + sample.numpy().tobytes())
        origin = str(getattr(self.bare.config, "name_or_path", "") or "") or type(self.bare).__name__
        return f"{Path(origin).name if Path(origin).exists() else origin}@{digest.hexdigest()[:10]}"

    @cached_property
    def cacheable(self) -> bool:
        """Whether the model's state is keys and values that can be cut, padded and joined.

        The config is checked first. Then the model runs on six tokens, once as a whole and once in parts, and
        the results must agree.
        """
        layers = DynamicCache(config=self.bare.config).layers
        stateful = "past_key_values" not in self._arguments or getattr(self.bare, "_is_stateful", False)
        if stateful or not all(isinstance(layer, DynamicLayer) for layer in layers):
            return False
        ids = [token % self.vocabulary for token in (5, 3, 8, 4, 7, 6)]
        try:
            with torch.inference_mode():
                expected = self.forward(self.tensor([ids]), None)
                cache = new_cache()
                self.forward(self.tensor([ids[:4], ids[3:5]]), cache)
                joined = join_rows([take_row(cache, 0, 0, 4), take_row(cache, 1, 0, 2)], 2)
                positions = self.tensor([[4, 5], [2, 3]])
                last = self.tensor([ids[4:], ids[4:]])
                result = self.forward(last, joined, self.padding_mask([0, 2], 6), positions)[:1]
        except (AttributeError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return False
        spread = (expected - expected.mean()).abs().max()
        return bool((result - expected).abs().max() <= 0.1 * spread)

    def forward(
        self, tokens: Tensor, cache: Cache | None, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Run the model once.

        Args:
            tokens: Token ids [rows, steps].
            cache: Keys and values of earlier tokens; the keys and values of ``tokens`` are appended.
            mask: See :meth:`padding_mask`.
            positions: Position of each token [rows, steps]; by default, the tokens follow the cached tokens.

        Returns:
            Raw logits of the last step [rows, vocabulary] in float32.
        """
        arguments: dict[str, object] = {"input_ids": tokens, "use_cache": cache is not None}
        if cache is not None:
            arguments["past_key_values"] = cache
        if mask is not None:
            arguments["attention_mask"] = mask
        if positions is not None and "position_ids" in self._arguments:
            arguments["position_ids"] = positions
        if "logits_to_keep" in self._arguments:
            arguments["logits_to_keep"] = 1
        logits: Tensor = self.model(**arguments).logits
        # Without the copy, the logits of the whole prompt would stay in memory.
        return (logits[:, -1] if logits.shape[1] == 1 else logits[:, -1].clone()).float()

    def padding_mask(self, starts: Sequence[int], slots: int) -> Tensor | None:
        """Return a mask [rows, slots], 0 before each row's start and 1 from there on; None if all are 1."""
        if not any(starts):
            return None
        first = torch.tensor(starts, device=self.device)[:, None]
        return (torch.arange(slots, device=self.device) >= first).long()

    def tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return token ids on the model's device as [rows, longest]; shorter rows are padded on the right."""
        longest = max(map(len, rows))
        padded = [[*row, *[0] * (longest - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=self.device)


def load(
    id_or_path: str, device: str | None, dtype: str | None, use_safetensors: bool, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer; see :meth:`TransformersReader.from_pretrained`."""
    device = device or _best_device()
    shared = {name: options[name] for name in ("revision", "trust_remote_code") if name in options}
    options |= {"use_safetensors": use_safetensors, "output_loading_info": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(id_or_path, **shared)
        options["dtype"] = dtype or (_dtype_on_cpu(id_or_path, **shared) if device == "cpu" else "auto")
        loaded: Any = AutoModelForCausalLM.from_pretrained(id_or_path, **options)
        model, info = loaded
        # With a device map, the library has already put the layers on their devices.
        model = model if "device_map" in options else model.to(device)
    except Exception as error:
        absent = id_or_path.startswith((".", "/", "~")) and not Path(id_or_path).is_dir()
        reason = "there is no such folder" if absent else reason_of(error)
        raise ConfigurationError(
            f"the model {id_or_path!r} cannot be loaded: {reason}",
            hint="pass a causal model's Hugging Face id (the hub must be reachable), or its folder",
        ) from error
    missing = sorted(info["missing_keys"])
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ConfigurationError(
            f"the model {id_or_path!r} lacks weights: {', '.join(missing[:3])}{more}",
            hint="the missing weights would be random; save or download the whole model again",
        )
    return model, tokenizer


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _dtype_on_cpu(id_or_path: str, **shared: Any) -> str:
    """Return "bfloat16" for 16-bit weights if the processor computes in bfloat16 itself, else "float32"."""
    if not has_native_bfloat16():
        return "float32"
    try:
        config = AutoConfig.from_pretrained(id_or_path, **shared)
        own = config.get_text_config(decoder=True).dtype or config.dtype
    except (OSError, ValueError):  # a folder of an adapter, or of GGUF files, has no config
        own = None
    return "bfloat16" if own in (torch.bfloat16, torch.float16) else "float32"


def has_native_bfloat16() -> bool:
    """Tell whether this processor multiplies bfloat16 itself: AVX512-BF16, AMX, or ARM's BF16."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        # mkldnn also reports bfloat16 where AVX-512 only emulates bfloat16, which is slower than float32.
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, name, lambda: False)() for name in checks)
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that a batch was too large for the device's memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
