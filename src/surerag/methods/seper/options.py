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
    """The rules that differ between the paper and its authors' code.

    Attributes:
        weights: How sampled answers are weighted; see :func:`surerag.measures.answer_weights`.
        both_directions: Whether ``kernel="soft"`` takes the larger entailment probability of the two
            directions between answer and reference. If False, only the probability that the answer entails
            the reference counts.
        with_question: Whether the question stands before each statement that the entailer judges.
        question_mark: Whether a missing question mark is added to the question.
        linkage: With ``kernel="hard"``: an answer joins a cluster if it means the same as ``"all"`` members
            of the cluster, or as the ``"first"`` member.
        strict: With ``kernel="hard"``: whether an answer matches a reference only if both entail each
            other. If False, no direction may be a contradiction, and at most one direction may be neutral.
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
    """Options of SePer, the same for :class:`surerag.SePer`, LangChain and LlamaIndex.

    The paper's algorithm is ``variant="paper", references="mean", max_tokens=512`` (appendix D.4). The
    algorithm of its authors' code is ``variant="official", max_tokens=512``.
    """

    PROMPTS = PromptSet(closed_book=SEPER_CLOSED_BOOK, from_passages=SEPER_FROM_PASSAGES)

    n_samples: int = Field(10, ge=1)
    """Number of answers to sample in each context (the paper's N)."""

    kernel: Kernel = "soft"
    """How an answer counts for a reference: ``"soft"`` counts the probability that the answer entails the
    reference; ``"hard"`` counts 1 if the answer's meaning cluster matches the reference, else 0 (Eq. 8)."""

    threshold: float | None = Field(None, ge=0, le=1)
    """With ``kernel="hard"``: the minimum probability of entailment, in both directions, with which an answer
    matches a reference (the paper's τ, Definition 2). None: the entailer's most likely labels decide."""

    variant: Variant = "default"
    """The rules for weighting and comparing answers: ``"default"`` are ours, ``"paper"`` those of the paper,
    and ``"official"`` those of the authors' code. Eq. 10 of the paper also needs ``references="mean"``."""

    references: References = "max"
    """How the beliefs in several reference answers are combined: ``"max"`` is the largest belief, ``"mean"``
    the average (Eq. 10), and ``"any"`` the belief that an answer means at least one reference."""

    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Sampling temperature of the answers."""

    max_tokens: int = Field(64, ge=1)
    """Maximum length of a sampled answer, in tokens; the result counts truncated answers. The paper uses 512
    (appendix D.4)."""

    seed: int = Field(0, ge=0)
    """Random seed of the samples."""

    prompts: PromptsOption = prompts_field()
    """Templates by name: ``closed_book`` (slot ``question``) and ``from_passages`` (slots ``passages`` and
    ``question``)."""

    @model_validator(mode="after")
    def _check_threshold(self) -> Any:
        if self.threshold is not None and self.kernel == "soft":
            raise ConfigurationError(
                "the option threshold is for kernel='hard', but kernel is 'soft'",
                hint="set kernel='hard', or leave threshold out",
            )
        return self

    @property
    def rules(self) -> Rules:
        """How answers are weighted and compared, as the option ``variant`` says."""
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
