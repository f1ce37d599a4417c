"""The papers' formulas, one function each: numpy in, numbers out."""

from surerag.measures.answers import exact_match, normalize_answer, token_f1
from surerag.measures.entropy import EntropyBounds, entropy_bounds, token_entropy
from surerag.measures.latency import break_even_latency, latency_saving
from surerag.measures.likelihood import energy, length_normalized_entropy, lowest_probability, perplexity

__all__ = [
    "EntropyBounds",
    "break_even_latency",
    "energy",
    "entropy_bounds",
    "exact_match",
    "latency_saving",
    "length_normalized_entropy",
    "lowest_probability",
    "normalize_answer",
    "perplexity",
    "token_entropy",
    "token_f1",
]
