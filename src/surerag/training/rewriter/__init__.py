"""Training a query rewriter in three stages (DynQR, section 2.2): distil, sample, align.

Each stage runs alone, from files, and goes on where it was killed::

    distilled = distil(queries, teacher, "Qwen/Qwen3-0.6B", "run/distil")
    sampled = sample(more_queries, distilled.model, reader, retriever, "run/sample")
    aligned = align(sampled.samples, distilled.model, "run/align", AlignOptions(reward="uncertainty"))
    rewriter = TransformersReader.from_pretrained(str(aligned.model))

Importing this room loads no model library. Weights are read and written as safetensors. While it trains, the
trainer of ``transformers`` keeps its own checkpoints, optimizer states among them as ``.pt`` files; they are
removed when the model is written. Load none that you did not write yourself.
"""

from surerag.training.rewriter.alignment import align, preferences, reward_of
from surerag.training.rewriter.distillation import distil
from surerag.training.rewriter.options import (
    REWARDS,
    AlignOptions,
    DistilOptions,
    FineTuning,
    Lora,
    Reward,
    SampleOptions,
)
from surerag.training.rewriter.pairs import Preference, preference_pairs
from surerag.training.rewriter.queries import Query, read_queries
from surerag.training.rewriter.results import Aligned, Distilled, Sampled, StageProgress
from surerag.training.rewriter.sampling import sample

__all__ = [
    "REWARDS",
    "AlignOptions",
    "Aligned",
    "DistilOptions",
    "Distilled",
    "FineTuning",
    "Lora",
    "Preference",
    "Query",
    "Reward",
    "SampleOptions",
    "Sampled",
    "StageProgress",
    "align",
    "distil",
    "preference_pairs",
    "preferences",
    "read_queries",
    "reward_of",
    "sample",
]
