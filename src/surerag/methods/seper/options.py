"""The options of SePer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from surerag.clustering import Linkage
from surerag.errors import ConfigurationError
from surerag.measures.seper import Golds, Kernel, Weights
from surerag.messages import SamplingParams
from surerag.options import Doc, Options, Within, options
from surerag.prompts import SEPER_CLOSED_BOOK, SEPER_FROM_PASSAGES, PromptSet

Likelihood = Literal["mean", "sum"]
Direction = Literal["both", "forward"]
Match = Literal["loose", "strict"]
Variant = Literal["default", "paper", "official"]


class Rules(NamedTuple):
    """A row of :data:`VARIANTS`; each rule is explained by the option of its name."""

    weights: Weights
    likelihood: Likelihood
    direction: Direction
    question_in_entailment: bool
    clusters: Linkage
    match: Match
    golds: Golds


VARIANTS: Mapping[Variant, Rules] = MappingProxyType(
    {
        "default": Rules(
            weights="distinct", likelihood="mean", direction="both", question_in_entailment=True,
            clusters="all", match="loose", golds="max",
        ),
        "paper": Rules(
            weights="probability", likelihood="sum", direction="forward", question_in_entailment=False,
            clusters="all", match="strict", golds="mean",
        ),
        "official": Rules(
            weights="official", likelihood="mean", direction="both", question_in_entailment=True,
            clusters="first", match="loose", golds="max",
        ),
    }
)  # fmt: skip
"""Where the paper and the authors' code differ, and what we take."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """When to stop drawing samples before there are N.

    A first step draws ``first`` samples in each context, and every further one doubles their number, up to
    N. Drawing stops once the interval of ΔSePer is narrow enough. The samples of each step begin with those
    of the step before, so that a run that stops at n gives what a run of n samples gives.

    The interval is the bootstrap's, widened where the analytic one is wider: Wilson's for the share of
    samples in each context, combined by Newcombe's method (1998, Statistics in Medicine 17, method 10).
    A bootstrap of samples that all agree has no width at all; but five samples that agree leave room for
    an answer that the reader gives two times in five.

    Attributes:
        width: Of the interval of ΔSePer, at which drawing stops; in (0, 2]. Where the reader always says one
            thing without context and another with it, 10 samples give a width of 0.39, 20 one of 0.23.
        first: Samples in the first step, at least 2.
    """

    width: float = 0.4
    first: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.width <= 2:
            raise ConfigurationError(f"width must be in (0, 2], got {self.width!r}")
        if self.first < 2:
            raise ConfigurationError(f"first must be at least 2, got {self.first!r}")


@options
class SePerOptions(Options):
    """What a user can set on SePer; where paper and authors' code differ, the choice is here."""

    PROMPTS = PromptSet(closed_book=SEPER_CLOSED_BOOK, from_passages=SEPER_FROM_PASSAGES)

    n_samples: Annotated[
        int,
        Within(1),
        Doc("Samples in each context (the paper's N); its Figure 3 finds 10 within 1 % of 20."),
    ] = 10
    kernel: Annotated[
        Kernel, Doc('``"soft"`` (entailment probability, Eq. 8) or ``"hard"`` (meaning clusters, Eq. 9).')
    ] = "soft"
    variant: Annotated[
        Variant,
        Doc(
            """Where options that are None take their values from: ``"default"``, ``"paper"``, or
            ``"official"`` (the authors' code)."""
        ),
    ] = "default"
    weights: Annotated[
        Weights | None,
        Doc(
            """What a sample counts for: ``"distinct"`` (each distinct answer once, by its share of their
            likelihoods), ``"probability"`` (each distinct answer once, by its probability: Eq. 6),
            ``"official"`` (each sample by its likelihood, as in the authors' code) or ``"frequency"``; see
            :func:`surerag.measures.answer_weights`. Without log-probabilities it is ``"frequency"``."""
        ),
    ] = None
    likelihood: Annotated[
        Likelihood | None,
        Doc(
            """Of an answer: exp of the ``"mean"`` log-probability of its tokens (the authors' code), or of
            their ``"sum"`` (Eq. 7)."""
        ),
    ] = None
    direction: Annotated[
        Direction | None,
        Doc('Soft kernel: the larger entailment of ``"both"`` directions, or ``"forward"`` only.'),
    ] = None
    question_in_entailment: Annotated[
        bool | None, Doc("Whether the entailer sees the question with both statements.")
    ] = None
    clusters: Annotated[
        Linkage | None,
        Doc(
            """Hard kernel: an answer joins a cluster if it means ``"all"`` of its members, so that all pairs
            within mean the same (Eq. 4) and a cluster matches a gold answer where all of it does; or if it
            means its ``"first"`` member, which then stands for it (the authors' code)."""
        ),
    ] = None
    match: Annotated[
        Match | None,
        Doc(
            """Hard kernel: an answer means a gold answer if the two do not contradict and are not both
            neutral (``"loose"``), or entail each other (``"strict"``)."""
        ),
    ] = None
    entailment_threshold: Annotated[
        float | None,
        Within(0, 1, above=True),
        Doc("Entailment holds from this probability on; None where it is the likeliest label."),
    ] = None
    golds: Annotated[
        Golds | None,
        Doc(
            """Over several gold answers: ``"max"``, ``"mean"`` (Eq. 10) or ``"any"``; see
            :func:`surerag.measures.seper_soft`."""
        ),
    ] = None
    temperature: Annotated[float, Within(0), Doc("Temperature of the samples.")] = 1.0
    max_tokens: Annotated[
        int,
        Within(1),
        Doc(
            """Length of a sampled answer, at most; the paper's. Half an answer seldom means the gold answer:
            samples that run into it are counted in the result, with a warning."""
        ),
    ] = 512
    seed: Annotated[int, Within(0), Doc("Seed of the samples.")] = 0
    prompts: Annotated[
        Mapping[str, Any],
        Doc(
            """Prompts in place of the method's own (appendix D.5), by name: ``closed_book`` (slot
            ``question``) and ``from_passages`` (``passages``, ``question``)."""
        ),
    ] = PromptSet()
    adaptive: Annotated[
        Adaptive | None,
        Doc(
            """Draws samples in steps, and stops before ``n_samples`` once the interval of ΔSePer is narrow
            enough; see :class:`surerag.Adaptive`. Its widths call for more than ten samples: give
            ``n_samples=40``, say. None draws all of them."""
        ),
    ] = None

    def __post_init__(self) -> None:
        """Check every option, and that they go together."""
        super().__post_init__()
        if self.adaptive is not None and self.adaptive.first > self.n_samples:
            raise ConfigurationError(
                f"a first step of {self.adaptive.first} samples is more than all {self.n_samples}",
                hint="give a larger n_samples, or a smaller first step",
            )

        if self.rules.weights == "probability" and self.rules.likelihood == "mean":
            raise ConfigurationError(
                'weights="probability" are probabilities, and the mean over tokens gives none',
                hint='add likelihood="sum"',
            )

    @property
    def rules(self) -> Rules:
        """The variant's rules, and what was set in place of them."""
        chosen = {name: getattr(self, name) for name in Rules._fields}
        given = {name: value for name, value in chosen.items() if value is not None}
        return VARIANTS[self.variant]._replace(**given)

    @property
    def sampling(self) -> SamplingParams:
        """How to draw the samples."""
        return SamplingParams(
            n=self.n_samples,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed,
            trace="none" if self.rules.weights == "frequency" else "logprobs",
        )
