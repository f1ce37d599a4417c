"""Options of the training of a rewriter."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from surerag.options import Options, PromptsOption, prompts_field
from surerag.prompts import DYNQR_ANSWER, REWRITE, PromptSet


class RewriterTraining(Options):
    """Options of :func:`surerag.training.train_rewriter`.

    The paper trains on 60,000 queries with rates of 1e-6 (distillation, batches of 100, one epoch) and 1e-5
    (alignment, batches of 20, two epochs); on a few thousand queries these rates change hardly anything.
    """

    PROMPTS: ClassVar[PromptSet] = PromptSet(rewrite=REWRITE, answer=DYNQR_ANSWER)

    held_out_share: float = Field(0.2, gt=0, lt=1)
    """Share of the queries that no stage learns from; they decide whether the training helped."""
    distil_share: float = Field(0.5, gt=0, lt=1)
    """Share of the other queries for distillation; the rest is sampled for alignment."""
    n_rewrites: int = Field(8, ge=2)
    """Rewrites to sample for each query in the second stage."""
    n_pairs: int = Field(3, ge=1)
    """Pairs of rewrites to keep for each query: those with the largest difference in reward."""
    reward: Literal["uncertainty", "answer"] = "uncertainty"
    """What a rewrite is rewarded for: the reader's lower perplexity, or a right answer (needs references)."""
    top_n: int | None = Field(None, ge=1)
    """Passages to answer from; None takes all that the retriever returns."""
    lora_rank: int | None = Field(16, ge=1)
    """Rank of the adapters, which are merged at the end; None trains all weights."""
    distil_rate: float = Field(2e-4, gt=0)
    """Learning rate of distillation; adapters take about ten times the rate of all weights."""
    align_rate: float = Field(1e-5, gt=0)
    """Learning rate of alignment."""
    seed: int = 0
    """Seed of the split, of sampling and of training."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Arguments of TRL's ``SFTConfig`` and ``DPOConfig`` in place of the defaults, such as ``max_steps``."""
    prompts: PromptsOption = prompts_field()
    """Prompts in place of DynQR's: ``rewrite`` (slot ``query``), ``answer`` (``passages``, ``question``)."""
