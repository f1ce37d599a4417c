"""Sizes of tiny models, and of the vocabulary that they share."""

from __future__ import annotations

from typing import Any

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
