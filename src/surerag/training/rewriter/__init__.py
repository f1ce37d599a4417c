"""Training a query rewriter in three stages (DynQR, section 2.2): distil, sample, align.

Each stage runs alone, from files, and goes on where it was killed::

    drawn = draw(read_queries(Path("queries.csv")), Shares())
    distilled = distil(drawn.distil, teacher, "Qwen/Qwen3-0.6B", "run/distil")
    sampled = sample(drawn.sample, distilled.model, reader, retriever, "run/sample")
    aligned = align(sampled.samples, distilled.model, "run/align", AlignOptions(reward="uncertainty"))
    rewriters = {"base": "Qwen/Qwen3-0.6B", "distilled": distilled.model, "aligned": aligned.model}
    print(measure(drawn.held_out, rewriters, reader, retriever, "run/held-out"))
    rewriter = TransformersReader.from_pretrained(str(aligned.model))

Importing this room loads no model library. Weights are read and written as safetensors. While it trains, the
trainer of ``transformers`` keeps its own checkpoints, optimizer states among them as ``.pt`` files; they are
removed when the model is written. Load none that you did not write yourself.
"""

from surerag.training.rewriter.alignment import align, least_difference, preferences, reward_of
from surerag.training.rewriter.distillation import distil, distil_from
from surerag.training.rewriter.draws import Draw, Shares, draw
from surerag.training.rewriter.formats import export_pairs, export_rewrites, read_pairs, read_rewrites
from surerag.training.rewriter.held_out import HeldOut, Measured, measure
from surerag.training.rewriter.options import (
    PAPER_ALIGN,
    PAPER_DISTIL,
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
from surerag.training.rewriter.results import Aligned, Distilled, Learnt, Sampled, StageProgress
from surerag.training.rewriter.sampling import sample

__all__ = [
    "PAPER_ALIGN",
    "PAPER_DISTIL",
    "REWARDS",
    "AlignOptions",
    "Aligned",
    "DistilOptions",
    "Distilled",
    "Draw",
    "FineTuning",
    "HeldOut",
    "Learnt",
    "Lora",
    "Measured",
    "Preference",
    "Query",
    "Reward",
    "SampleOptions",
    "Sampled",
    "Shares",
    "StageProgress",
    "align",
    "distil",
    "distil_from",
    "draw",
    "export_pairs",
    "export_rewrites",
    "least_difference",
    "measure",
    "preference_pairs",
    "preferences",
    "read_pairs",
    "read_queries",
    "read_rewrites",
    "reward_of",
    "sample",
]
