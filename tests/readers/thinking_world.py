"""The embedded reader with a scripted thought before its answers, which changes nothing about them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from surerag.readers.local import TransformersReader
from world import embedded_reader_path

THOUGHT = ("<think>", "\nWhich river? The Orun. No: Tarn, so Velm", "\n. ", "</think>", "\n\n")
"""Tokens that are said before every answer; an answer's stop texts may stand in it."""

# A logit whose probability is zero in any precision, and a number all the same.
_NEVER = -1e4


@cache
def plain_reader() -> TransformersReader:
    """Return the embedded reader, in float64 so that no rounding hides in a comparison."""
    return TransformersReader.from_pretrained(str(embedded_reader_path()), device="cpu", dtype="float64")


@cache
def thinking_reader() -> TransformersReader:
    """Return the same model behind a scripted thought, with marks in its vocabulary and its chat template."""
    path = str(embedded_reader_path())
    tokenizer = AutoTokenizer.from_pretrained(path)
    known = len(tokenizer)
    tokenizer.add_tokens(list(THOUGHT))
    thought = tokenizer.convert_tokens_to_ids(list(THOUGHT))
    assert thought == list(range(known, known + len(THOUGHT)))
    tokenizer.chat_template += "{# It writes <think> before it answers. #}"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    return TransformersReader(
        ThinkingModel(model, thought, tokenizer.convert_tokens_to_ids("<|assistant|>")),  # type: ignore[arg-type]  # all of a model that a reader uses
        tokenizer,
        thinking=True,
        thinking_tokens=8,
    )


class ThinkingModel(torch.nn.Module):
    """Says a thought after each prompt, and keeps it out of its memory: the answer knows nothing of it.

    The model reads the last token of a prompt when the thought is over. Rows of one memory think in step.

    Args:
        model: Who answers.
        thought: Ids of what is said before, beyond the model's vocabulary.
        asked: The token with which every prompt ends.
    """

    def __init__(self, model: Any, thought: list[int], asked: int) -> None:
        super().__init__()
        self.model = model
        self.config, self.generation_config = model.config, model.generation_config
        self._thought = thought
        self._asked = asked

    def get_input_embeddings(self) -> torch.nn.Module:
        """The model's own."""
        return self.model.get_input_embeddings()  # type: ignore[no-any-return]  # the model is any

    def forward(
        self, input_ids: Tensor, past_key_values: Cache | None = None, use_cache: bool = False
    ) -> CausalLMOutputWithPast:
        """Return logits of the last position [rows, 1, vocabulary and thought]."""
        # A row that ended without an answer keeps its last thought while others go on.
        last = int(input_ids[:, -1].min())
        assert past_key_values is not None or input_ids.max() < self._thought[0], "it has a memory"
        if last == self._asked and input_ids.shape[1] > 1:
            self._read(input_ids[:, :-1], past_key_values)
            return self._said(input_ids, self._thought[0])
        if last in self._thought[:-1]:
            return self._said(input_ids, last + 1)
        ids = torch.where(input_ids < self._thought[0], input_ids, self._asked)
        logits = self._read(ids, past_key_values)
        return CausalLMOutputWithPast(
            logits=torch.nn.functional.pad(logits, (0, len(self._thought)), value=_NEVER)
        )

    def _read(self, ids: Tensor, memory: Cache | None) -> Tensor:
        logits: Tensor = self.model(
            input_ids=ids, past_key_values=memory, use_cache=memory is not None
        ).logits
        return logits[:, -1:]

    def _said(self, ids: Tensor, token: int) -> CausalLMOutputWithPast:
        logits = torch.full((len(ids), 1, self._thought[-1] + 1), _NEVER)
        logits[..., token] = 0.0
        return CausalLMOutputWithPast(logits=logits)
