"""The options of DynQR's inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from surerag.decisions.benefit import BenefitModel
from surerag.decisions.policy import Policy
from surerag.errors import ConfigurationError
from surerag.messages import SamplingParams
from surerag.methods.calls import MaxCalls
from surerag.methods.dynqr.metrics import SAMPLED, Metric, metric_name, trace_of
from surerag.methods.meanings import SameMeaningOption
from surerag.options import (
    AnswerTokens,
    Doc,
    Options,
    RefusalOption,
    SameLanguage,
    StopTexts,
    Within,
    options,
)
from surerag.prompts import CLOSED_BOOK, DYNQR_ANSWER, REWRITE, REWRITE_IN_CONVERSATION, PromptSet

Documents = Literal["substitute", "expand"]
Variant = Literal["default", "paper"]


class Rules(NamedTuple):
    """A row of :data:`VARIANTS`; each rule is explained by the option of its name."""

    top_n: int | None


VARIANTS: Mapping[Variant, Rules] = MappingProxyType({"default": Rules(top_n=None), "paper": Rules(top_n=5)})
"""Where the paper's inference (section 3.2) and ours differ."""
OnFailure = Literal["original", "raise"]

THRESHOLDS = {"perplexity": 1.2, "disagreement": 0.65}
"""Defaults. Table 3 has its best thresholds for perplexity near 1.2. That of disagreement is from no paper:
it lies between the entropies of two samples against one and of three against two, so that an answer is
certain where about two thirds of the samples agree."""


@options
class DynQROptions(Options):
    """What a user can set on DynQR, whatever framework it stands in."""

    PROMPTS = PromptSet(
        answer=DYNQR_ANSWER,
        closed_book=CLOSED_BOOK,
        rewrite=REWRITE,
        rewrite_in_conversation=REWRITE_IN_CONVERSATION,
    )

    variant: Annotated[
        Variant,
        Doc("""Where ``top_n`` takes its value from if it is None: ``"default"`` or ``"paper"`` (five)."""),
    ] = "default"
    threshold: Annotated[
        float | Policy | None,
        Doc(
            """Rewrite iff the uncertainty of the first answer exceeds this, in the unit of the metric (the
            paper's θ); −inf always rewrites, inf never. None is 1.2 for perplexity and 0.65 for disagreement;
            the other metrics have no default. A policy from ``calibrate`` may stand in its place; it is
            refused when it was made for another reader, metric or prompt."""
        ),
    ] = None
    metric: Annotated[
        Metric,
        Doc(
            """The uncertainty (Table 5): ``"perplexity"``, ``"ln_entropy"``, ``"token_entropy"``,
            ``"lowest_probability"``, ``"energy"``; ``"disagreement"`` of sampled answers, for readers without
            log-probabilities; or a function of a generation, larger for a less certain one."""
        ),
    ] = "perplexity"
    benefit: Annotated[
        BenefitModel | None,
        Doc(
            """Decides whether to rewrite, in place of the metric: what rewriting is expected to mend less
            what it is expected to spoil, from the first answer's uncertainties. The threshold is then on its
            scale; None is 0. Post-verification still goes by the metric."""
        ),
    ] = None
    documents: Annotated[
        Documents,
        Doc(
            """What the second answer is given from (section 3.2): ``"substitute"`` (the rewrite's documents)
            or ``"expand"`` (both lists in turn, no text twice, until there are ``top_n``)."""
        ),
    ] = "substitute"
    top_n: Annotated[
        int | None,
        Within(1),
        Doc("Passages to answer from, at most; None takes all that the retriever returns."),
    ] = None
    candidates: Annotated[int, Within(1), Doc("Rewrites to try.")] = 1
    verify: Annotated[
        bool, Doc("Post-verification: keep the less uncertain answer. Without it the rewrite's is kept.")
    ] = True
    n_samples: Annotated[
        int, Within(1), Doc('N, answers to sample for the metrics ``"ln_entropy"`` and ``"disagreement"``.')
    ] = 10
    same_meaning: SameMeaningOption = "words"
    max_calls: MaxCalls = None
    max_tokens: AnswerTokens = None
    stop: StopTexts = ()
    refusal: RefusalOption = None
    same_language: SameLanguage = False
    rewrite_tokens: Annotated[
        int, Within(1), Doc("Length of a rewrite, at most; one that is cut off is not used.")
    ] = 64
    rewrite_words: Annotated[
        int, Within(1), Doc("Words of a rewrite, at most, for rewriters that ignore the limit on tokens.")
    ] = 64
    temperature: Annotated[
        float | None, Within(0), Doc("Of rewriting; None is 0 for one candidate and 1 for several.")
    ] = None
    seed: Annotated[int, Doc("Of everything that is sampled.")] = 0
    on_failure: Annotated[
        OnFailure,
        Doc(
            """When rewriting, or retrieving or answering with a rewrite fails: ``"original"`` keeps the first
            answer, with a warning; or ``"raise"``. What a service refuses for good raises in any case."""
        ),
    ] = "original"
    prompts: Annotated[
        Mapping[str, Any],
        Doc(
            """Prompts in place of the method's own (appendix C), by name: ``answer`` (slots ``passages``,
            ``question``), ``closed_book`` where nothing was retrieved (``question``), ``rewrite`` and, after
            a conversation, ``rewrite_in_conversation`` (``query``)."""
        ),
    ] = PromptSet()

    def boundary(self) -> float:
        """Return the threshold as a number.

        Raises:
            ConfigurationError: If none is set, and the metric has no default.
        """
        if isinstance(self.threshold, Policy):
            return self.threshold.threshold
        if self.threshold is not None:
            return self.threshold
        if self.benefit is not None:
            return 0.0
        if callable(self.metric) or self.metric not in THRESHOLDS:
            raise ConfigurationError(
                f"the metric {metric_name(self.metric)} has no default threshold",
                hint="pass threshold=…; calibrate() finds one, and may start from any, such as 0",
            )
        return THRESHOLDS[self.metric]

    @property
    def rules(self) -> Rules:
        """The variant's rules, and what was set in place of them."""
        return VARIANTS[self.variant] if self.top_n is None else Rules(self.top_n)

    @property
    def calls_of_an_answer(self) -> int:
        """Calls that an answer and its uncertainty cost, at most."""
        samples = self.n_samples if self.metric in SAMPLED else 0
        judged = self.metric == "disagreement" and self.same_meaning == "entailment"
        return 1 + samples + (samples * (samples - 1) if judged else 0)

    @property
    def answering(self) -> SamplingParams:
        """How to answer: once, greedily, with what the metric reads."""
        return SamplingParams(
            max_tokens=self.answer_tokens,
            stop=self.stop,
            seed=self.seed,
            trace=trace_of(self.metric) if self.benefit is None else "entropy",
        )

    @property
    def sampling(self) -> SamplingParams:
        """How to sample the N answers of ``"ln_entropy"`` and ``"disagreement"``."""
        return replace(self.answering, n=self.n_samples, temperature=1.0)

    @property
    def rewriting(self) -> SamplingParams:
        """How to rewrite."""
        temperature = self.temperature
        if temperature is None:
            temperature = 0.0 if self.candidates == 1 else 1.0
        return SamplingParams(
            self.candidates, temperature, max_tokens=self.rewrite_tokens, seed=self.seed, trace="none"
        )
