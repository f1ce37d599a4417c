"""Models that are no readers are refused by name, and those whose cache cannot be used are told of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import transformers as hf

from surerag.errors import ConfigurationError
from surerag.messages import SamplingParams
from surerag.readers.local import TransformersReader
from tests.readers.sizes import VOCABULARY
from tests.readers.tiny_models import tiny_tokenizer

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: hf.T5ForConditionalGeneration(
                hf.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
            ),
            "T5ForConditionalGeneration has an encoder and a decoder",
        ),
        (lambda: hf.BertForMaskedLM(hf.BertConfig(**SMALL)), "BertForMaskedLM does not say which token"),
        (lambda: hf.LlamaModel(hf.LlamaConfig(**SMALL)), "LlamaModel does not say which token"),
        (
            lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**SMALL)),
            "LlamaForSequenceClassification does not say which token",
        ),
    ],
    ids=["T5", "BERT", "body", "classifier"],
)
def test_what_is_no_causal_model_is_refused(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        TransformersReader(build(), tiny_tokenizer())
    assert "AutoModelForCausalLM" in str(refused.value)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: hf.MiniMaxForCausalLM(
                hf.MiniMaxConfig(**SMALL, num_key_value_heads=2, head_dim=8, num_local_experts=2)
            ),
            "MiniMax uses cache of its own",
        ),
        (
            lambda: hf.xLSTMForCausalLM(
                hf.xLSTMConfig(
                    vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_blocks=2, num_heads=4
                )
            ),
            "cannot be used",
        ),
    ],
    ids=["MiniMax", "xLSTM"],
)
def test_a_cache_that_cannot_be_used_is_told_of_and_done_without(
    build: Callable[[], Any], words: str
) -> None:
    with pytest.warns(UserWarning, match=words):
        reader = TransformersReader(build().eval(), tiny_tokenizer())
    prompts, sampling = ["Where was Ada born?", "x"], SamplingParams(max_tokens=4)
    together = reader.generate(prompts, sampling)
    for prompt, (answer,) in zip(prompts, together, strict=True):
        assert answer.completion_tokens
        assert reader.generate([prompt], sampling)[0][0].text == answer.text
