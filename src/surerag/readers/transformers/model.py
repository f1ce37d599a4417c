"""A causal language model as the reader sees it: token ids in, logits out, a memory beside it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from surerag.errors import ConfigurationError
from surerag.readers.transformers.memory import AttentionMemory, Memory, OpaqueMemory, Part, RecomputedMemory
from surerag.readers.transformers.prefixes import Reading, plan_readings

MemoryKind = Literal["attention", "opaque", "recomputed"]
_WINDOW_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len")
# A further pass costs about as much as reading this many tokens; padding beyond that does not pay.
_PASS_COST_CPU = 32
_PASS_COST_ACCELERATOR = 512
_TOKENS_A_PASS = 8192


class Read(NamedTuple):
    """A prompt that was read: where its memory is, and the logits [vocabulary] of what follows."""

    part: Part
    logits: Tensor


class CausalModel:
    """Wraps a ``transformers`` model; knows which arguments and which memory it takes.

    Attributes:
        window: Tokens that fit its positions, or None where neither caller nor config names a limit.
        kind: What it can remember by; see :mod:`~surerag.readers.transformers.memory`.
        end_tokens: Tokens that end an answer.
        tokens_read: Tokens that went through the model as prompts: each shared prefix once, and again
            what was read twice to bring rows to one length. Padding is not counted.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        window: int | None = None,
        end_tokens: Sequence[int | str] = (),
    ) -> None:
        self._model = model
        self.window = window or _window(model)
        self._arguments = frozenset(inspect.signature(model.forward).parameters)
        self.tokens_read = 0
        self.end_tokens = _end_tokens(model, tokenizer) | _ids_of(end_tokens, tokenizer)
        pad = tokenizer.pad_token_id
        self._pad_token = pad if isinstance(pad, int) and 0 <= pad < self.vocabulary else 0
        self.kind = self._memory_kind()

    @property
    def device(self) -> torch.device:
        """Where token ids go in."""
        return self._embeddings.device

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the embedding table."""
        return int(self._embeddings.shape[0])

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
        arguments: dict[str, object] = {"input_ids": tokens, "use_cache": cache is not None}
        if cache is not None:
            arguments[self._cache_argument] = cache
        if mask is not None:
            arguments["attention_mask"] = mask
        if "position_ids" in self._arguments:
            arguments["position_ids"] = positions
        if "logits_to_keep" in self._arguments:
            arguments["logits_to_keep"] = keep
        with torch.inference_mode():
            logits: Tensor = self._model(**arguments).logits
            if logits.shape[1] > keep:
                # A view would keep the logits of the whole prompt alive.
                logits = logits[:, -keep:].clone()
            return logits.float()

    def read(self, prompts: Sequence[Sequence[int]], room: int, min_shared: int) -> list[Read]:
        """Read different prompts, each shared prefix once.

        Args:
            prompts: Token ids of each.
            room: Tokens that each memory should be able to grow by without being copied.
            min_shared: Shortest prefix worth sharing.

        Returns:
            One :class:`Read` a prompt, in order.
        """
        if self.kind == "attention":
            return self._read_tree(prompts, room, min_shared)
        reads: dict[int, Read] = {}
        by_length: dict[int, list[int]] = {}
        for index, prompt in enumerate(prompts):
            by_length.setdefault(len(prompt), []).append(index)
        for length, group in by_length.items():
            step = max(1, _TOKENS_A_PASS // length)
            for start in range(0, len(group), step):
                chosen = group[start : start + step]
                memory, logits = self._read_equal(self._tensor([prompts[i] for i in chosen]))
                reads |= {i: Read(memory.part(row), logits[row]) for row, i in enumerate(chosen)}
        self.tokens_read += sum(map(len, prompts))
        return [reads[index] for index in range(len(prompts))]

    def join(self, parts: Sequence[Part], room: int) -> Memory:
        """Bring rows into one memory of their own, without copying where they already are just that.

        Rows of different memories can be joined only if these hold keys and values.
        """
        memory = parts[0].memory
        if all(part.memory is memory for part in parts) and [
            (part.row, part.length) for part in parts
        ] == list(enumerate(memory.lengths)):
            return memory.share()
        if self.kind == "attention":
            return AttentionMemory.gather(self, parts, room)
        return memory.select([part.row for part in parts], room)

    def stack(self, reads: Sequence[Read]) -> Tensor:
        """Return what follows each prompt, as logits [rows, vocabulary]."""
        return torch.stack([read.logits for read in reads])

    def column(self, tokens: Sequence[int]) -> Tensor:
        """Return one next token for each row, [rows, 1]."""
        return self._tensor([[token] for token in tokens])

    def padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return rows padded on the right, [rows, longest]; what comes later changes nothing before."""
        longest = max(map(len, rows))
        return self._tensor([[*row, *[self._pad_token] * (longest - len(row))] for row in rows])

    @property
    def _embeddings(self) -> Tensor:
        return cast("Tensor", self._model.get_input_embeddings().weight)

    @cached_property
    def _cache_argument(self) -> str:
        return "past_key_values" if "past_key_values" in self._arguments else "cache_params"

    def _memory_kind(self) -> MemoryKind:
        if not self._arguments & {"past_key_values", "cache_params"}:
            return "recomputed"
        layers = self._fresh_cache().layers
        plain = all(type(layer) in {DynamicLayer, DynamicSlidingWindowLayer} for layer in layers)
        masked = {"past_key_values", "attention_mask", "position_ids"} <= self._arguments
        if plain and masked and not getattr(self._model, "_is_stateful", False) and self._pads_well():
            return "attention"
        return "opaque" if self._goes_on_from_cache() else "recomputed"

    def _pads_well(self) -> bool:
        """Try whether a row says the same alone and behind padding, before and after it goes on."""
        token, row = self._tensor([[1]]), self._tensor([[0, 1, 0]])
        alone = AttentionMemory.empty(self, 1, 1)
        padded = AttentionMemory.empty(self, 2, 1)
        expected = [alone.feed(row), alone.feed(token)]
        longer = torch.cat([self._tensor([[self._pad_token] * 4, [1, 1, 0, 1]]), row.expand(2, -1)], dim=1)
        found = [padded.feed_until([3, 7], longer)[:1], padded.feed(token.expand(2, -1))[:1]]
        return all(_alike(one, other) for one, other in zip(expected, found, strict=True))

    def _goes_on_from_cache(self) -> bool:
        """Try whether the model's state is in the cache that it is given, and nowhere else.

        Some models keep their state in their own modules: reading something else in between, as every
        batch does, would overwrite it.
        """
        first, second = self._tensor([[0]]), self._tensor([[1]])
        both = torch.cat([first, second], dim=1)
        expected = RecomputedMemory(self, both[:, :0]).feed(both)
        memory, other = (OpaqueMemory(self, self._fresh_cache(), [0]) for _ in range(2))
        memory.feed(first)
        other.feed(second)
        return _alike(memory.feed(second), expected)

    def _fresh_cache(self) -> Cache:
        return DynamicCache(config=self._model.config)

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([list(row) for row in rows], dtype=torch.long, device=self.device)

    def _read_equal(self, tokens: Tensor) -> tuple[Memory, Tensor]:
        if self.kind == "recomputed":
            memory: Memory = RecomputedMemory(self, tokens[:, :0])
        else:
            memory = OpaqueMemory(self, self._fresh_cache(), [0] * len(tokens))
        return memory, memory.feed(tokens)[:, -1]

    def _read_tree(self, prompts: Sequence[Sequence[int]], room: int, min_shared: int) -> list[Read]:
        plan = plan_readings(prompts, min_shared)
        reads: dict[int, Read] = {}
        for wave in range(max(reading.wave for reading in plan) + 1):
            members = [i for i, reading in enumerate(plan) if reading.wave == wave]
            tails = {i: len(prompts[i]) - plan[i].shared for i in members}
            for batch in self._passes(tails):
                steps = max(tails[i] for i in batch)
                # Rows with a shorter tail read the end of their prefix again: padding would cost the
                # same, and would tear slots and positions apart.
                kept = [max(len(prompts[i]) - steps, 0) if wave else 0 for i in batch]
                memory = self._prefixes([plan[i] for i in batch], kept, reads, steps + room)
                fresh = [prompts[i][start:] for i, start in zip(batch, kept, strict=True)]
                tokens = self._tensor([[*[self._pad_token] * (steps - len(ids)), *ids] for ids in fresh])
                logits = memory.feed_until([len(prompts[i]) for i in batch], tokens)[:, -1]
                self.tokens_read += sum(map(len, fresh))
                reads |= {i: Read(memory.part(row), logits[row]) for row, i in enumerate(batch)}
        return [reads[index] for index in range(len(prompts))]

    def _prefixes(
        self, plan: Sequence[Reading], kept: Sequence[int], reads: dict[int, Read], room: int
    ) -> AttentionMemory:
        parents = [reads[reading.parent].part for reading in plan if reading.parent is not None]
        if not any(kept):
            return AttentionMemory.empty(self, len(kept), room)
        parts = [Part(parent.memory, parent.row, n) for parent, n in zip(parents, kept, strict=True)]
        return AttentionMemory.gather(self, parts, room)

    def _passes(self, tails: dict[int, int]) -> list[list[int]]:
        """Cut a wave into passes of similar lengths, so that little is read in vain."""
        cost = _PASS_COST_CPU if self.device.type == "cpu" else _PASS_COST_ACCELERATOR
        passes: list[list[int]] = []
        waste = 0
        for index in sorted(tails, key=lambda i: -tails[i]):
            if passes:
                longest = tails[passes[-1][0]]
                waste += longest - tails[index]
                fits = longest * (len(passes[-1]) + 1) <= _TOKENS_A_PASS
                if fits and waste <= cost + longest * len(passes[-1]) // 8:
                    passes[-1].append(index)
                    continue
            passes.append([index])
            waste = 0
        return passes


def _alike(one: Tensor, other: Tensor) -> bool:
    # Wide enough for half precision, which is off by a hundredth; a wrong mask is off by most of it.
    return bool((one - other).square().mean().sqrt() <= 0.1 * one.std())


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
            "Sampling(stop=…)",
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
