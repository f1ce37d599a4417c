"""The papers' formulas, and other measures, as pure functions of numbers, arrays and texts."""

from surerag.measures.answers import contains, exact_match, same_answer, token_f1
from surerag.measures.certainty import auroc, greatest_entropy, mean_entropy, negative_log_likelihood
from surerag.measures.cost import api_cost, break_even_latency, latency_overhead, latency_saving
from surerag.measures.entropy import entropy_bounds, token_entropy
from surerag.measures.likelihood import (
    energy,
    length_normalized_entropy,
    lowest_probability,
    margin_bounds,
    perplexity,
)
from surerag.measures.normalization import normalize_answer
from surerag.measures.semantic import (
    degree_semantic_entropy,
    discrete_semantic_entropy,
    equivalence_clusters,
    semantic_entropy,
)
from surerag.measures.seper import answer_weights, seper_hard, seper_soft
from surerag.measures.statistics import Interval

__all__ = [
    "Interval", "answer_weights", "api_cost", "auroc", "break_even_latency", "contains",
    "degree_semantic_entropy", "discrete_semantic_entropy", "energy", "entropy_bounds",
    "equivalence_clusters", "exact_match", "greatest_entropy", "latency_overhead", "latency_saving",
    "length_normalized_entropy", "lowest_probability", "margin_bounds", "mean_entropy",
    "negative_log_likelihood", "normalize_answer", "perplexity", "same_answer",
    "semantic_entropy", "seper_hard", "seper_soft", "token_entropy", "token_f1",
]  # fmt: skip
