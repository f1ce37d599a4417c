"""Configs of many model families, each as small as it can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as hf

from tests.readers.sizes import EXPERTS, SMALL, VOCABULARY

_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
_LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_SLIDING = ["sliding_attention", "full_attention"]

HYBRIDS: dict[str, Callable[[], Any]] = {
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
    "falcon_mamba": lambda: hf.FalconMambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8, time_step_rank=4
    ),
    "bamba": lambda: hf.BambaConfig(**SMALL, **_MAMBA, attn_layer_indices=[1]),
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
    "granitemoehybrid": lambda: hf.GraniteMoeHybridConfig(
        **SMALL,
        **_MAMBA,
        layer_types=["mamba", "attention"],
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=16,
    ),
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        **SMALL, **EXPERTS, **_LINEAR, head_dim=8, shared_expert_intermediate_size=16
    ),
    "qwen3_5": lambda: hf.Qwen3_5TextConfig(**SMALL, **_LINEAR, head_dim=8),
    "nemotron_h": lambda: hf.NemotronHConfig(
        **SMALL,
        layers_block_type=["mamba", "attention"],
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=1,
        chunk_size=16,
    ),
    "olmo_hybrid": lambda: hf.OlmoHybridConfig(**SMALL, **_LINEAR, pad_token_id=0, eos_token_id=1),
}
"""State-space models, and those that hold recurrent states beside keys and values."""

TRANSFORMERS: dict[str, Callable[[], Any]] = {
    "gpt_oss": lambda: hf.GptOssConfig(
        **SMALL, head_dim=8, num_local_experts=4, sliding_window=8, layer_types=_SLIDING
    ),
    "olmo2": lambda: hf.Olmo2Config(**SMALL),
    "olmo3": lambda: hf.Olmo3Config(**SMALL, sliding_window=8, layer_types=_SLIDING),
    "granite": lambda: hf.GraniteConfig(**SMALL),
    "cohere": lambda: hf.CohereConfig(**SMALL, logit_scale=1.0),
    "cohere2": lambda: hf.Cohere2Config(**SMALL, logit_scale=1.0, sliding_window=8, layer_types=_SLIDING),
    "stablelm": lambda: hf.StableLmConfig(**SMALL),
    "starcoder2": lambda: hf.Starcoder2Config(**SMALL, sliding_window=8),
    "glm": lambda: hf.GlmConfig(**SMALL, head_dim=8, pad_token_id=0),
    "glm4": lambda: hf.Glm4Config(**SMALL, head_dim=8, pad_token_id=0),
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
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(**SMALL, **EXPERTS, head_dim=8),
    "smollm3": lambda: hf.SmolLM3Config(**SMALL, pad_token_id=0),
    "exaone4": lambda: hf.Exaone4Config(**SMALL, sliding_window=8, layer_types=_SLIDING),
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
    "nemotron": lambda: hf.NemotronConfig(**SMALL),
    "ernie4_5": lambda: hf.Ernie4_5Config(**SMALL, head_dim=8),
    "codegen": lambda: hf.CodeGenConfig(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=512, rotary_dim=4
    ),
}
"""Families of attention beside those of :mod:`tests.readers.tiny_models`."""
