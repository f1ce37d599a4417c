"""Options of the training of a rewriter."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from surerag.options import Options, PromptsOption, prompts_field
from surerag.prompts import FROM_PASSAGES, REWRITE, PromptSet

Reward = Literal["uncertainty", "answer", "documents", "relevance"]

APPENDIX_B: dict[str, Any] = {
    "distil_rate": 1e-6,
    "distil_epochs": 1,
    "distil_batch": 100,
    "align_rate": 1e-5,
    "align_epochs": 2,
    "align_batch": 20,
    "lora_rank": None,
}
"""The paper's options, for ``RewriterTraining(**APPENDIX_B)``. The paper trains all weights of a model with 7
B parameters on 60,000 queries per stage. On a few thousand queries, these learning rates hardly change a
model."""


class RewriterTraining(Options):
    """Options of :func:`surerag.training.train_rewriter`; :data:`APPENDIX_B` has the paper's values."""

    PROMPTS: ClassVar[PromptSet] = PromptSet(rewrite=REWRITE, answer=FROM_PASSAGES)

    held_out_share: float = Field(0.2, gt=0, lt=1)
    """Share of the queries that no stage learns from; they decide whether the training helped."""
    distil_share: float = Field(0.5, gt=0, lt=1)
    """Share of the other queries for distillation; the rest is sampled for alignment."""
    n_rewrites: int = Field(8, ge=2)
    """Rewrites to sample for each query in the second stage."""
    n_pairs: int = Field(3, ge=1)
    """Pairs of rewrites to keep for each query: those with the largest difference in reward."""
    reward: Reward = "uncertainty"
    """What a rewrite is rewarded for (appendix B): ``"uncertainty"``, a lower perplexity of the reader
    (DynQR); ``"answer"``, a right answer of the reader (RRR); ``"documents"``, a retrieved document with a
    right answer (RetPO); or ``"relevance"``, documents that are more relevant to the query (RaFe).
    ``"answer"`` and ``"documents"`` need references, ``"relevance"`` needs an encoder."""
    top_n: int | None = Field(None, ge=1)
    """Passages to answer from; None takes all that the retriever returns."""
    lora_rank: int | None = Field(16, ge=1)
    """Rank of the adapters, which are merged at the end; None trains all weights."""
    distil_rate: float = Field(2e-4, gt=0)
    """Learning rate of distillation; adapters take about ten times the rate of all weights."""
    distil_epochs: int = Field(3, ge=1)
    """Times that distillation goes through its examples."""
    distil_batch: int | None = Field(None, ge=1)
    """Examples per step of distillation; None takes a 32nd of all examples, but 4 to 32."""
    align_rate: float = Field(1e-5, gt=0)
    """Learning rate of alignment."""
    align_epochs: int = Field(3, ge=1)
    """Times that alignment goes through its examples."""
    align_batch: int | None = Field(None, ge=1)
    """Examples per step of alignment; None takes a 32nd of all examples, but 4 to 32."""
    seed: int = 0
    """Seed of the split, of sampling and of training."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Arguments of TRL's ``SFTConfig`` and ``DPOConfig`` in place of the defaults, such as ``max_steps``."""
    prompts: PromptsOption = prompts_field()
    """Prompts in place of DynQR's: ``rewrite`` (slot ``query``), ``answer`` (``passages``, ``question``)."""
