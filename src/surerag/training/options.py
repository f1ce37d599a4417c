"""Options of the training of a query rewriter."""

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
billion parameters, on 60,000 queries per stage. With a few thousand queries, these learning rates are too
small to change a model much."""


class RewriterTraining(Options):
    """Options of :func:`surerag.training.train_rewriter`; :data:`APPENDIX_B` has the paper's values."""

    PROMPTS: ClassVar[PromptSet] = PromptSet(rewrite=REWRITE, answer=FROM_PASSAGES)

    held_out_share: float = Field(0.2, gt=0, lt=1)
    """Share of the queries that are held out from training, to test whether the training helped."""
    distil_share: float = Field(0.5, gt=0, lt=1)
    """Share of the training queries that are used for distillation; the other queries are for alignment."""
    n_rewrites: int = Field(8, ge=2)
    """Number of rewrites to sample for each query before alignment."""
    n_pairs: int = Field(3, ge=1)
    """Maximum number of pairs of rewrites for each query; pairs with the most different rewards are used."""
    reward: Reward = "uncertainty"
    """The reward of a rewrite (appendix B). ``"uncertainty"``: a low perplexity of the reader's answer
    (DynQR). ``"answer"``: a right answer of the reader (Rewrite-Retrieve-Read); needs references.
    ``"documents"``: a retrieved document that contains a right answer (RetPO); needs references.
    ``"relevance"``: documents that are similar to the query (RaFe); needs an encoder."""
    top_n: int | None = Field(None, ge=1)
    """Maximum number of retrieved passages in a prompt; None means all that the retriever returns."""
    lora_rank: int | None = Field(16, ge=1)
    """Rank of the LoRA adapters, which are merged into the model at the end; None trains all weights."""
    distil_rate: float = Field(2e-4, gt=0)
    """Learning rate of distillation. LoRA adapters need about ten times the rate of training all weights."""
    distil_epochs: int = Field(3, ge=1)
    """Number of epochs of distillation."""
    distil_batch: int | None = Field(None, ge=1)
    """Batch size of distillation; None means 1/32 of the examples, but at least 4 and at most 32."""
    align_rate: float = Field(1e-5, gt=0)
    """Learning rate of alignment."""
    align_epochs: int = Field(3, ge=1)
    """Number of epochs of alignment."""
    align_batch: int | None = Field(None, ge=1)
    """Batch size of alignment; None means 1/32 of the examples, but at least 4 and at most 32."""
    seed: int = 0
    """Random seed for splitting the queries, sampling and training."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Arguments of TRL's ``SFTConfig`` and ``DPOConfig`` that replace our values, such as ``max_steps``."""
    prompts: PromptsOption = prompts_field()
    """Prompts that replace the default prompts, by name: ``rewrite`` (slot ``query``) and ``answer`` (slots
    ``passages`` and ``question``)."""
