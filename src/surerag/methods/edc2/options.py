"""Options of EDC²-RAG."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from surerag.messages import SamplingParams
from surerag.options import Options, PromptsOption, prompts_field
from surerag.prompts import EXTRACT, PromptSet

Guard = Literal["overlap", "entailment", "off"]
OnFailure = Literal["original", "raise"]


class EDC2Options(Options):
    """Options of :class:`surerag.ClusterCompressor` and its adapters."""

    PROMPTS = PromptSet(extract=EXTRACT)

    threshold: int | None = Field(None, ge=0)
    """Compress only contexts of more tokens; None compresses all."""

    first_cluster_size: int = Field(3, ge=1)
    """Size of the first cluster (the paper's τ); each further one is twice as large."""

    max_cluster_size: int = Field(20, ge=1)
    """Size of a cluster at most (the paper's Λ)."""

    min_tokens: int = Field(32, ge=0)
    """Clusters of at most so many tokens stay as they are: a call would gain nothing."""

    guard: Guard = "overlap"
    """Remove sentences that no source supports: by their words (``"overlap"``), by the entailer
    (``"entailment"``), or not at all (``"off"``)."""

    token_limit: int | None = Field(None, ge=1)
    """Tokens of the new context at most: whole passages, then first sentences of compressions."""

    max_tokens: int = Field(256, ge=1)
    """Longest compression of a cluster in tokens; one that is cut gives way to its passages."""

    on_failure: OnFailure = "original"
    """If a model fails: keep the ``"original"`` passages, with a warning, or ``"raise"``."""

    prompts: PromptsOption = prompts_field()
    """Templates by name: ``extract`` (slots ``question``, ``passages``)."""

    @property
    def sampling(self) -> SamplingParams:
        """How clusters are compressed: greedily."""
        return SamplingParams(max_tokens=self.max_tokens, trace="none")
