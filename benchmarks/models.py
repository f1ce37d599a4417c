"""Random models in given shapes, a tokenizer for them, and the work that every benchmark gives them."""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from surerag.readers.transformers import TransformersReader


class Shape(NamedTuple):
    """A Llama's size."""

    layers: int
    width: int
    inner: int
    heads: int
    key_value_heads: int
    vocabulary: int


TINY = Shape(layers=2, width=32, inner=48, heads=4, key_value_heads=2, vocabulary=512)
SMALL = Shape(layers=8, width=384, inner=1024, heads=6, key_value_heads=6, vocabulary=32_000)
LLAMA_1B = Shape(layers=16, width=2048, inner=8192, heads=32, key_value_heads=8, vocabulary=128_256)
LLAMA_8B = Shape(layers=32, width=4096, inner=14_336, heads=32, key_value_heads=8, vocabulary=128_256)


class Bench(NamedTuple):
    """A model, and the reader around it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    reader: TransformersReader

    def prompt(self, tokens: int, variant: int = 0) -> str:
        """Return a prompt of exactly so many tokens; variants differ from their first token on."""
        return f"{chr(97 + variant % 26)}bcdefg " * (tokens // 8) + "x" * (tokens % 8)

    def generate(self, prompts: list[str], new_tokens: int, *, samples: int = 1) -> torch.Tensor:
        """Do the same work with the library's own ``generate``: greedy for one sample, else by chance."""
        ids = torch.tensor(
            [self.tokenizer(prompt)["input_ids"] for prompt in prompts], device=self.model.device
        )
        return self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=samples > 1,
            num_return_sequences=samples,
            pad_token_id=0,
        )


def build(shape: Shape, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Bench:
    """Build a random Llama that never ends by itself, so that all contenders generate the same length."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    tokenizer = _tokenizer(shape.vocabulary)
    return Bench(model, tokenizer, TransformersReader(model, tokenizer))


def arguments(description: str, *, turns: int = 5) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--turns", type=int, default=turns, help="how often each contender runs")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads for both")
    parser.add_argument(
        "--cpu-time",
        dest="clock",
        action="store_const",
        const=time.process_time,
        default=time.perf_counter,
        help="count the processor's seconds, not the clock's: for busy machines, with one thread",
    )
    parser.add_argument("--tiny", action="store_true", help="a toy size, to see that it runs")
    return parser


def _tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer that encodes bytes, and decodes every token that the model can say."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(f"Ġw{i}" for i in range(vocabulary - len(alphabet)))]
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)
