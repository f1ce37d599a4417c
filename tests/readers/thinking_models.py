"""Tiny random models that think before they answer, in the manners of Qwen3, DeepSeek-R1 and gpt-oss.

After some tokens only some others may follow, so that what is said has a form: a thought of some words, its
marks, an answer. What the model chooses among those is its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import transformers as hf
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tests.readers.tiny_models import END, END_ID, PAD_ID, SMALL, VOCABULARY, WORDS, tiny_tokenizer

OPEN, CLOSE, GAP = "<think>", "</think>", "\n\n"
THOUGHTS = tuple(f" hm{place}" for place in range(12))
START, CHANNEL, MESSAGE, RETURN, CALL = "<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"
_TEXTS = (OPEN, CLOSE, GAP, *THOUGHTS, "assistant", "analysis", "final", " END")
_SPECIAL = (START, CHANNEL, MESSAGE, RETURN, CALL)
IDS = {text: VOCABULARY + place for place, text in enumerate((*_TEXTS, *_SPECIAL))}

QWEN3 = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
DEEPSEEK_R1 = (
    "{% for m in messages %}<|turn|>{{ m.role }}|{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant|<think>\n{% endif %}"
)
DEEPSEEK_V31 = (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    "{% for m in messages %}<|turn|>{{ m.role }}|{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant|{% if thinking %}<think>{% else %}</think>{% endif %}"
    "{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>"
    "{{ m.content }}<|return|>{% if m.thinking %}{{ m.thinking }}{% endif %}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)

Flow = Mapping[str, tuple[str, ...]]
"""What may follow a token: tokens, and ``"words"`` for all words."""


def _thoughts(close: str) -> Flow:
    """One thought or more; each goes on with a later one, or is the last."""
    return {text: (*THOUGHTS[at + 1 : at + 3], close) for at, text in enumerate(THOUGHTS)}


MARKED: Flow = {"\n": (OPEN,), OPEN: THOUGHTS[:2], **_thoughts(CLOSE), CLOSE: (GAP,)}
"""``<think>``, one thought or more, ``</think>``, two line breaks; then words, or the end."""
OPENED: Flow = {**MARKED, "\n": THOUGHTS[:2]}
ENDLESS: Flow = {**MARKED, **dict.fromkeys(THOUGHTS, THOUGHTS)}
EMPTY: Flow = {**MARKED, OPEN: (CLOSE,)}
CHANNELS: Flow = {
    "assistant": (CHANNEL,),
    CHANNEL: ("analysis", "final"),
    "analysis": (MESSAGE,),
    "final": (MESSAGE,),
    MESSAGE: (THOUGHTS[0], "words"),
    **_thoughts(END),
    END: (START,),
    START: ("assistant",),
}


def thinking_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """Return the tiny tokenizer with the tokens of thoughts, and a chat template."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(list(_TEXTS))
    if template == HARMONY:
        tokenizer.add_special_tokens(
            {"additional_special_tokens": list(_SPECIAL)}, replace_extra_special_tokens=False
        )
        tokenizer.eos_token = RETURN
    tokenizer.chat_template = template
    return tokenizer


@cache
def _model(architecture: str) -> PreTrainedModel:
    torch.manual_seed(11)
    sizes = {**SMALL, "vocab_size": VOCABULARY + len(IDS)}
    config: Any = {
        "llama": lambda: hf.LlamaConfig(**sizes),
        "qwen3": lambda: hf.Qwen3Config(**sizes, head_dim=8),
        "gpt_oss": lambda: hf.GptOssConfig(
            **sizes, head_dim=8, num_local_experts=4, num_experts_per_tok=4, sliding_window=8
        ),
        "mamba": lambda: hf.MambaConfig(
            vocab_size=sizes["vocab_size"],
            hidden_size=32,
            num_hidden_layers=2,
            state_size=8,
            time_step_rank=4,
        ),
    }[architecture]()
    config.tie_word_embeddings = False
    config.eos_token_id, config.pad_token_id = END_ID, PAD_ID
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0 if architecture in {"llama", "qwen3"} else 2.0)
        head = model.get_output_embeddings()
        head.weight.mul_(3.0 / model(input_ids=torch.arange(64)[None], use_cache=False).logits.std())
    return model


@contextmanager
def thinking_model(
    architecture: str, flow: Flow, *, ends: tuple[int, ...] = (END_ID,)
) -> Iterator[PreTrainedModel]:
    """Lend a random model whose words follow each other as a flow allows.

    Args:
        architecture: Which.
        flow: What may follow a token; after others, words and the end.
        ends: The end tokens of its generation config; what may end an answer.
    """
    model, tokenizer = _model(architecture), tiny_tokenizer()
    vocabulary = {**tokenizer.get_vocab(), **IDS, "\n": tokenizer.get_vocab()["Ċ"]}
    words = torch.full((VOCABULARY + len(IDS),), -1e4)
    words[WORDS.start : WORDS.stop] = 0.0
    # In harmony, where messages follow each other, they are short.
    words[list(ends)] = 1.5 if len(ends) > 1 else -1.0
    following = words.repeat(len(words), 1)
    # The random model is very sure of what it says; thoughts are to differ in length.
    sureness = torch.ones(len(words))
    for text, allowed in flow.items():
        following[vocabulary[text]] = words if "words" in allowed else torch.full_like(words, -1e4)
        following[vocabulary[text], [vocabulary[token] for token in allowed if token != "words"]] = 0.0
        sureness[vocabulary[text]] = 0.2

    def guide(module: Any, arguments: Any, keywords: dict[str, Any], output: Any) -> Any:
        said = keywords["input_ids"][:, -output.logits.shape[1] :]
        output.logits = output.logits * sureness[said][..., None] + following[said]
        return output

    model.generation_config.eos_token_id = list(ends)
    hook = model.register_forward_hook(guide, with_kwargs=True)
    try:
        yield model
    finally:
        hook.remove()
