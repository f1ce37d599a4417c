"""Train a query rewriter in three stages with the library TRL (DynQR, section 2.2)."""

from __future__ import annotations

from surerag.training.options import APPENDIX_B, RewriterTraining
from surerag.training.pipeline import StageMeans, TrainingReport, train_rewriter
from surerag.training.sampling import (
    Preference,
    Query,
    collect_rewrites,
    preference_pairs,
    sample_preferences,
)

__all__ = [
    "APPENDIX_B", "Preference", "Query", "RewriterTraining", "StageMeans", "TrainingReport",
    "collect_rewrites", "preference_pairs", "sample_preferences", "train_rewriter",
]  # fmt: skip
