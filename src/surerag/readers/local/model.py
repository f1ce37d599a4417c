"""A causal language model as the reader sees it: token ids and a cache in, logits out."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicCache

from surerag.entailment.judgements import state_of
from surerag.errors import ConfigurationError
from surerag.readers.local.lent import wait_for

_BATCH_TOKENS = 1 << 15
_MOST_BATCH_TOKENS = 1 << 20
# Products of queries and keys held at a time: 128 MiB in float32.
_PRODUCTS = 1 << 25
_WINDOW_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len")


class CausalModel:
    """Wraps a ``transformers`` model; knows which arguments it takes, its window and its end tokens.

    Attributes:
        window: Tokens that fit its positions, or None where neither caller nor config names a limit.
        arguments: Names of what its forward pass takes.
        end_tokens: Tokens that end an answer.
        pad_token: Fills places where no token stands; which token it is changes nothing.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        window: int | None = None,
        end_tokens: Sequence[int | str] = (),
    ) -> None:
        _check_causal(model)
        self._model = model
        wait_for(self.bare)
        if str(getattr(self.config, "_attn_implementation", "")).startswith("paged|"):
            raise ConfigurationError(
                f"this {type(self.bare).__name__} runs in the batch of another reader",
                hint="ask that reader, drop it first, or load the model anew",
            )
        self.window = window or _window(model)
        self.arguments = frozenset(inspect.signature(_unwrapped(model).forward).parameters)
        self.end_tokens = _end_tokens(model, tokenizer) | _ids_of(end_tokens, tokenizer)
        pad = tokenizer.pad_token_id
        self.pad_token = pad if isinstance(pad, int) and 0 <= pad < self.vocabulary else 0

    @property
    def device(self) -> torch.device:
        """Where token ids go in."""
        return self._embeddings.device

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the embedding table."""
        return int(self._embeddings.shape[0])

    @property
    def batch_tokens(self) -> int:
        """Tokens that one batch may hold, where nobody says how many.

        On a CPU as many as keep it busy. On a CUDA device as many as half of the memory that is free has room
        for: encoders and judges may come after, and activations need some.
        """
        if self.device.type != "cuda":
            return _BATCH_TOKENS
        free, _ = torch.cuda.mem_get_info(self.device)
        return max(_BATCH_TOKENS, min(free // (2 * self.bytes_per_token), _MOST_BATCH_TOKENS))

    def tokens_before(self, prefix: int) -> int:
        """Return how many tokens to read at once that attend to a shared prefix, whose products take room."""
        heads = getattr(self._model.config.get_text_config(decoder=True), "num_attention_heads", None) or 1
        return int(max(1, _PRODUCTS // (heads * max(prefix, 1))))

    @property
    def bytes_per_token(self) -> int:
        """Memory that the keys and values of one token take in all layers."""
        config = self._model.config.get_text_config(decoder=True)
        heads = getattr(config, "num_attention_heads", None) or 1
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        key_value_heads = getattr(config, "num_key_value_heads", None) or heads
        return 2 * int(config.num_hidden_layers * key_value_heads * width) * self._embeddings.element_size()

    @property
    def bare(self) -> PreTrainedModel:
        """The library's own model, without what was put around it."""
        return _unwrapped(self._model)

    @property
    def config(self) -> Any:
        """The config that its layers look at."""
        return self.bare.config

    @property
    def devices(self) -> int:
        """How many devices its parts lie on."""
        return len({parameter.device for parameter in self._model.parameters()})

    @property
    def state(self) -> Hashable:
        """What changes when its weights do; None where adapters are switched, and it cannot be told."""
        if self.bare is not self._model or getattr(self.bare, "_hf_peft_config_loaded", False):
            return None
        return state_of(self.bare)

    @property
    def compiled(self) -> bool:
        """Whether something compiled it, so that nothing can be changed in how it computes."""
        modules = (self._model, _unwrapped(self._model))
        return any(
            hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
            for module in modules
        )

    @property
    def exact(self) -> bool:
        """Whether it computes in float32 or better."""
        return self._embeddings.element_size() >= 4

    @property
    def stateful(self) -> bool:
        """Whether the library says that it keeps a state which cannot be cut or rolled back."""
        return bool(getattr(self._model, "_is_stateful", False))

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of the architecture and of a sample of every weight; equal weights, equal hash."""
        digest = hashlib.sha256()
        for name, parameter in sorted(self._model.named_parameters()):
            flat = parameter.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // 64)][:64].to("cpu", torch.float32)
            digest.update(f"{name}{tuple(parameter.shape)}".encode())
            digest.update(sample.numpy().tobytes())
        return digest.hexdigest()[:10]

    @property
    def origin(self) -> str:
        """Hub id, last part of a local path, or the architecture where the model was built in place."""
        name = str(getattr(self._model.config, "name_or_path", "") or "")
        if not name:
            return type(self._model).__name__
        return Path(name).name if Path(name).exists() else name

    def forward(
        self, tokens: Tensor, cache: Cache | None, mask: Tensor | None, positions: Tensor, keep: int
    ) -> Tensor:
        """Run the model once; return float32 logits [rows, keep, vocabulary] of the last positions."""
        arguments = self._inputs(tokens, cache, mask, positions)
        if "logits_to_keep" in self.arguments:
            arguments["logits_to_keep"] = keep
        with torch.inference_mode():
            logits: Tensor = self._model(**arguments).logits
            if logits.shape[1] > keep:
                # A view would keep the logits of the whole prompt alive.
                logits = logits[:, -keep:].clone()
            return logits.float()

    def hidden(self, tokens: Tensor, cache: Cache | None, mask: Tensor | None, positions: Tensor) -> Tensor:
        """Run the model without its head; return what :meth:`logits` takes, [rows, steps, width]."""
        with torch.inference_mode():
            states: Tensor = self._body(**self._inputs(tokens, cache, mask, positions)).last_hidden_state
            return states

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head to hidden states; return float32 logits [rows, steps, vocabulary]."""
        with torch.inference_mode():
            logits: Tensor = cast(Any, self._model).get_output_embeddings()(hidden)
            return logits.float()

    @cached_property
    def head_apart(self) -> bool:
        """Whether :meth:`hidden` and :meth:`logits` together are :meth:`forward`; found out by trying.

        Some models scale or cap what their head says.
        """
        tokens = self.tensor([[0, 1, 2, 1]])
        positions = torch.arange(4, device=self.device)[None]
        try:
            apart = self.logits(self.hidden(tokens, None, None, positions))
        except (AttributeError, TypeError):
            return False
        whole = self.forward(tokens, None, None, positions, 4)
        return apart.shape == whole.shape and bool(torch.allclose(apart, whole, rtol=1e-3, atol=1e-3))

    def _inputs(
        self, tokens: Tensor, cache: Cache | None, mask: Tensor | None, positions: Tensor
    ) -> dict[str, object]:
        arguments: dict[str, object] = {"input_ids": tokens, "use_cache": cache is not None}
        if cache is not None:
            arguments[self._cache_argument] = cache
        if mask is not None:
            arguments["attention_mask"] = mask
        if "position_ids" in self.arguments:
            arguments["position_ids"] = positions
        return arguments

    @property
    def _body(self) -> torch.nn.Module:
        """The model without its head."""
        whole = _unwrapped(self._model)
        return cast("torch.nn.Module", getattr(whole, whole.base_model_prefix))

    def fresh_cache(self) -> Cache:
        """Return an empty cache of the model's own layers."""
        return DynamicCache(config=self._model.config)

    def tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return rows of equal lengths, on the model's device, [rows, length]."""
        return torch.tensor([list(row) for row in rows], dtype=torch.long, device=self.device)

    def column(self, tokens: Sequence[int]) -> Tensor:
        """Return one next token for each row, [rows, 1]."""
        return self.tensor([[token] for token in tokens])

    def padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return rows padded on the right, [rows, longest]; what comes later changes nothing before."""
        longest = max(map(len, rows))
        return self.tensor([[*row, *[self.pad_token] * (longest - len(row))] for row in rows])

    @property
    def _embeddings(self) -> Tensor:
        return cast("Tensor", self._model.get_input_embeddings().weight)

    @cached_property
    def _cache_argument(self) -> str:
        return "past_key_values" if "past_key_values" in self.arguments else "cache_params"


def _check_causal(model: PreTrainedModel) -> None:
    """Refuse what has no head for the next token.

    Raises:
        ConfigurationError: If it is an encoder, has an encoder, or is the body of a model alone.
    """
    inner = _unwrapped(model)
    reason = None
    if getattr(inner.config, "is_encoder_decoder", False):
        reason = "has an encoder and a decoder"
    elif isinstance(inner, PreTrainedModel) and not inner.can_generate():
        reason = "does not say which token comes next"
    if reason is not None:
        raise ConfigurationError(
            f"{type(inner).__name__} {reason}, and a reader is a causal language model",
            hint="pass a model that AutoModelForCausalLM loads, such as LlamaForCausalLM",
        )


def _unwrapped(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model inside of what ``torch.compile`` or PEFT put around it, whose signatures tell nothing.

    Adapters of PEFT stand in the layers of the model inside, so that it is the adapted model.
    """
    inner: Any = getattr(model, "_orig_mod", model)
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    return cast("PreTrainedModel", inner)


def _window(model: PreTrainedModel) -> int | None:
    config = model.config.get_text_config(decoder=True)
    sizes = [getattr(config, name, None) for name in _WINDOW_NAMES]
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    configured = getattr(model.generation_config, "eos_token_id", None)
    ends = configured if isinstance(configured, list) else [configured]
    return frozenset(end for end in (*ends, tokenizer.eos_token_id) if isinstance(end, int))


def _ids_of(tokens: Sequence[int | str], tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of tokens that are given by id or by their text.

    Raises:
        ConfigurationError: If a text is no single token of the vocabulary, or an id outside of it.
    """
    if isinstance(tokens, str):
        raise ConfigurationError(f"end_tokens is the text {tokens!r}", hint=f"pass end_tokens=[{tokens!r}]")
    known = tokenizer.get_vocab() if tokens else {}
    texts = [token for token in tokens if isinstance(token, str)]
    unknown = [text for text in texts if text not in known]
    unknown += [str(token) for token in tokens if isinstance(token, int) and not 0 <= token < len(tokenizer)]
    if unknown:
        raise ConfigurationError(
            f"the tokenizer has no token {', '.join(unknown)} to end an answer with",
            hint="pass ids, or tokens as they stand in its vocabulary; texts of several tokens go to "
            "SamplingParams(stop=…)",
        )
    return frozenset(known[token] if isinstance(token, str) else token for token in tokens)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that a batch was too large for the device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def release_memory() -> None:
    """Give back what the allocator of an accelerator holds in reserve."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
