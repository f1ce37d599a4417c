"""Options of SePer."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from surerag.errors import ConfigurationError
from surerag.measures.semantic import Linkage
from surerag.measures.seper import Kernel, References, Weights
from surerag.messages import SamplingParams
from surerag.options import Options, PromptsOption, prompts_field
from surerag.prompts import SEPER_CLOSED_BOOK, SEPER_FROM_PASSAGES, PromptSet

Variant = Literal["default", "paper", "official"]


class Rules(NamedTuple):
    """Rules in which the paper and its authors' code differ.

    Attributes:
        weights: How sampled answers are weighted; see :func:`surerag.measures.answer_weights`.
        both_directions: Whether the soft kernel is the larger entailment of both directions.
        with_question: Whether the entailer sees the question with both statements.
        question_mark: Whether a question mark is added to a question that the entailer sees without one.
        linkage: Hard kernel: whether an answer must mean ``"all"`` members of its cluster, or the
            ``"first"``.
        strict: Hard kernel: whether a match needs entailment in both directions; if False, it needs no
            contradiction, and not neutral in both directions.
    """

    weights: Weights
    both_directions: bool
    with_question: bool
    question_mark: bool
    linkage: Linkage
    strict: bool


RULES: dict[Variant, Rules] = {
    "default": Rules("horvitz-thompson", True, True, False, "all", False),
    "paper": Rules("probability", False, False, False, "all", True),
    "official": Rules("official", True, True, True, "first", False),
}


class SePerOptions(Options):
    """Options of :class:`surerag.SePer` and its adapters.

    The paper's own algorithm is ``variant="paper", references="mean", max_tokens=512``; its authors' code is
    ``variant="official", max_tokens=512`` (appendix D.4 has the 512 tokens).
    """

    PROMPTS = PromptSet(closed_book=SEPER_CLOSED_BOOK, from_passages=SEPER_FROM_PASSAGES)

    n_samples: int = Field(10, ge=1)
    """Answers sampled in each context (the paper's N)."""

    kernel: Kernel = "soft"
    """``"soft"`` (probability of entailment) or ``"hard"`` (1 for clusters that mean a reference, Eq. 8)."""

    threshold: float | None = Field(None, ge=0, le=1)
    """Hard kernel: a statement entails another if the probability of entailment is at least this number (the
    paper's τ), and a match needs both directions (Definition 2). None: entailment must be the likeliest
    label."""

    variant: Variant = "default"
    """``"paper"`` and ``"official"`` (the authors' code) weight and compare answers as their names say; Eq.
    10 also needs ``references="mean"``."""

    references: References = "max"
    """How the beliefs in several reference answers are combined: ``"max"``, the largest; ``"mean"`` (Eq. 10);
    or ``"any"``, the belief that an answer means any reference."""

    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Temperature of the samples."""

    max_tokens: int = Field(64, ge=1)
    """Maximum length of a sampled answer, in tokens; the result counts answers that were cut off. The paper
    allows 512 (D.4)."""

    seed: int = Field(0, ge=0)
    """Seed of the samples."""

    prompts: PromptsOption = prompts_field()
    """Templates by name: ``closed_book`` (slot ``question``), ``from_passages`` (also ``passages``)."""

    @model_validator(mode="after")
    def _check_threshold(self) -> Any:
        if self.threshold is not None and self.kernel == "soft":
            raise ConfigurationError(
                "threshold is for the hard kernel, but kernel is 'soft'",
                hint="set kernel='hard', or leave threshold out",
            )
        return self

    @property
    def rules(self) -> Rules:
        """The variant's rules."""
        return RULES[self.variant]

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters of the answers."""
        return SamplingParams(
            n=self.n_samples,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed,
            trace="optional",
        )
