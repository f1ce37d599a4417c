"""A base that thinks by default is trained to answer at once, and used so, whoever loads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers as hf
from transformers import AutoTokenizer

from surerag.errors import ConfigurationError
from surerag.prompts import REWRITE
from surerag.readers.transformers import TransformersReader
from surerag.training.rewriter import AlignOptions, DistilOptions, FineTuning, align, distil
from surerag.training.rewriter.encoding import RewriteEncoder
from surerag.training.rewriter.exporting import settled_template
from surerag.types import Sampling
from tests.readers.sizes import SMALL
from tests.readers.thinking_models import DEEPSEEK_R1, QWEN3, thinking_tokenizer
from tests.training.rewriter_models import QUERIES, Talker, teaching

NO_THOUGHT = "<think>\n\n</think>\n\n"
PROMPT = REWRITE.render(query=QUERIES[0].text)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    torch.manual_seed(3)
    tokenizer = thinking_tokenizer(QWEN3)
    config = hf.Qwen3Config(**{**SMALL, "vocab_size": len(tokenizer)}, head_dim=8)
    hf.Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_what_is_learnt_comes_behind_the_empty_thought() -> None:
    tokenizer = thinking_tokenizer(QWEN3)
    encoder = RewriteEncoder(tokenizer, {})
    assert encoder.variables == {"enable_thinking": False}
    assert tokenizer.decode(encoder.prompt(PROMPT)).endswith(f"assistant\n{NO_THOUGHT}")
    assert tokenizer.decode(encoder.rewrite(PROMPT, "Where was Ada born?")) == "Where was Ada born?<|end|>"


def test_a_thinking_base_is_trained_and_used_without_its_thoughts(tmp_path: Path, qwen: Path) -> None:
    tune = FineTuning(learning_rate=1e-2, batch=10, epochs=60, validation=0, device="cpu")
    distilled = distil(QUERIES, Talker(teaching), qwen, tmp_path / "a", DistilOptions(tune))
    few = FineTuning(learning_rate=1e-5, batch=10, epochs=1, validation=0, device="cpu")
    triplets = [(query.text, "Where was she born?", "no idea") for query in QUERIES]
    made = align(triplets, distilled.model, tmp_path / "b", AlignOptions(fine_tuning=few))
    for folder in (distilled.model, made.model):
        rewriter = TransformersReader.from_pretrained(str(folder), device="cpu")
        assert rewriter.capabilities.thinking == "off"
        said = [
            replies[0].text
            for replies in rewriter.generate([REWRITE.render(query=q.text) for q in QUERIES], Sampling())
        ]
        assert sum(text.startswith("Where was ") for text in said) >= 8, said
        assert not any("think" in text for text in said)
        # A server that knows nothing of us writes the same prompt.
        turns = [{"role": "user", "content": PROMPT}]
        tokenizer = AutoTokenizer.from_pretrained(folder)
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert text.endswith(NO_THOUGHT)
        on = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
        assert not on.endswith(NO_THOUGHT), "who wants thoughts can have them"
    base = AutoTokenizer.from_pretrained(qwen)
    text = base.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert not text.endswith(NO_THOUGHT), "the base's own default"


def test_variables_of_every_plain_kind_become_the_templates_own() -> None:
    tokenizer = thinking_tokenizer("{{ a }}|{{ b }}|{{ c }}|{{ d }}")
    settled_template(tokenizer, {"a": "x", "b": 3, "c": True, "d": None})
    turns = [{"role": "user", "content": "said"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == "x|3|True|None"
    assert tokenizer.apply_chat_template(turns, tokenize=False, b=4) == "x|4|True|None"
    before = tokenizer.chat_template
    settled_template(tokenizer, {"a": "x", "b": 3, "c": True, "d": None})
    assert tokenizer.chat_template == before


def test_a_base_that_cannot_but_think_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="opens thoughts"):
        RewriteEncoder(thinking_tokenizer(DEEPSEEK_R1), {})
