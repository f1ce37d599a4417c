"""Tiny random models of many architectures, and byte-level tokenizers, all built in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

BYTES = 256
SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwxyz" for vowel in "aeiou"]
WORDS = range(BYTES + len(SYLLABLES), BYTES + 2 * len(SYLLABLES))
"""Tokens of a space and a syllable: what tiny models say, so that their answers are words."""
BEGIN_ID, END_ID, PAD_ID, ROLE_ID = range(WORDS.stop, WORDS.stop + 4)
VOCABULARY = WORDS.stop + 4

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

DEVICE = os.environ.get("SURERAG_TEST_DEVICE", "cpu")
"""Where tiny models are: ``make test-gpu`` has the tests of local readers run on a GPU."""
BEGIN, END, PAD, ROLE = "<|begin|>", "<|end|>", "<|pad|>", "<|turn|>"
CHAT_TEMPLATE = (
    "<|begin|>{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


@cache
def _backend() -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *SYLLABLES, *("Ġ" + syllable for syllable in SYLLABLES)]
    merges = [(s[0], s[1]) for s in SYLLABLES] + [("Ġ", s) for s in SYLLABLES]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


def tiny_tokenizer(*, chat: bool = False) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer that knows some syllables, with four control tokens."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_backend()),
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[ROLE],
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


_LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_SLIDING = ["sliding_attention", "full_attention"]
_ATTENTION: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**SMALL),
    "qwen3": lambda: hf.Qwen3Config(**SMALL, head_dim=8),
    "mistral": lambda: hf.MistralConfig(**SMALL, sliding_window=8),
    "gemma2": lambda: hf.Gemma2Config(**SMALL, head_dim=8, sliding_window=8),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **SMALL, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": lambda: hf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=512),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}),
    "mixtral": lambda: hf.MixtralConfig(**SMALL, num_local_experts=4, sliding_window=None),
    "bloom": lambda: hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4),
    "gpt_oss": lambda: hf.GptOssConfig(
        **SMALL, head_dim=8, num_local_experts=4, sliding_window=8, layer_types=_SLIDING
    ),
    "cohere2": lambda: hf.Cohere2Config(**SMALL, logit_scale=1.0, sliding_window=8, layer_types=_SLIDING),
    "falcon": lambda: hf.FalconConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=False
    ),
    "opt": lambda: hf.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
    ),
    "gptj": lambda: hf.GPTJConfig(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=512, rotary_dim=4
    ),
    "mpt": lambda: hf.MptConfig(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=512),
    "deepseek_v3": lambda: hf.DeepseekV3Config(
        **{**SMALL, "num_key_value_heads": 4},
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
    ),
    "granite": lambda: hf.GraniteConfig(**SMALL),
}
_OTHERS: dict[str, Callable[[], Any]] = {
    "mamba": lambda: hf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8, time_step_rank=4
    ),
    "falcon_h1": lambda: hf.FalconH1Config(
        **SMALL, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=16
    ),
    "lfm2": lambda: hf.Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]),
    "mamba2": lambda: hf.Mamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        num_heads=8,
        head_dim=8,
        expand=2,
        n_groups=1,
        chunk_size=16,
    ),
    "jamba": lambda: hf.JambaConfig(
        **SMALL,
        num_experts=4,
        num_experts_per_tok=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=4,
    ),
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        **SMALL, **EXPERTS, **_LINEAR, head_dim=8, shared_expert_intermediate_size=16
    ),
    "zamba2": lambda: hf.Zamba2Config(
        **{**SMALL, "num_key_value_heads": 4},
        mamba_d_state=8,
        mamba_ngroups=1,
        mamba_headdim=8,
        n_mamba_heads=8,
        chunk_size=16,
        layers_block_type=["mamba", "hybrid"],
        num_mem_blocks=1,
        attention_head_dim=16,
    ),
}
ATTENTION = tuple(_ATTENTION)
"""Architectures whose state is keys and values."""
OTHERS = tuple(_OTHERS)
"""State-space models, and those that hold recurrent states beside keys and values."""


@cache
def tiny_model(architecture: str) -> PreTrainedModel:
    """Return a random model, the same at every call, whose distributions are neither flat nor certain."""
    torch.manual_seed(7)
    config = (_ATTENTION | _OTHERS)[architecture]()
    # A random model with tied embeddings does nothing but repeat its last token.
    config.tie_word_embeddings = False
    config.bos_token_id, config.eos_token_id, config.pad_token_id = BEGIN_ID, END_ID, PAD_ID
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    model.generation_config.eos_token_id = END_ID
    # Recurrences would blow up what is left of rounding.
    scale = 6.0 if architecture in ATTENTION else 2.0
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
        head = model.get_output_embeddings()
        head.weight.mul_(3.0 / model(input_ids=torch.arange(64)[None], use_cache=False).logits.std())
    words = torch.full((VOCABULARY,), -15.0)
    words[WORDS.start : WORDS.stop] = 0.0
    words[END_ID] = -2.0
    head.register_forward_hook(lambda module, inputs, logits: logits + words.to(logits.device))
    return model.to(DEVICE)


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    """Like those of Llama 2: words begin with a mark, texts with a space and a begin token."""
    words = ["<s>", "</s>", "<unk>", "▁", "▁In", "▁Velm", "▁is", "s", "▁Where", "?", "[", "]", "<", ">", "/"]
    backend = Tokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=2))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.add_tokens([AddedToken("[INST]", special=False, normalized=False, rstrip=True)])
    tokenizer.chat_template = "<s>[INST]  {{ messages[0]['content'] }}</s>"
    return tokenizer
