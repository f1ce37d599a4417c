"""The options of L-RAG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from surerag.decisions.policy import Policy
from surerag.errors import ConfigurationError
from surerag.messages import SamplingParams
from surerag.methods.calls import MaxCalls
from surerag.methods.lazy_rag.combined_gates import GateLike, gate_name
from surerag.methods.lazy_rag.gate import Gate
from surerag.methods.lazy_rag.sample_gates import DisagreementGate, FunctionGate
from surerag.methods.lazy_rag.token_gates import Aggregate, EntropyGate, Estimate, MarginGate
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
from surerag.prompts import CLOSED_BOOK, FROM_CONTEXT, FROM_CONTEXT_AND_DETAILS, PromptSet

Mode = Literal["lazy", "none", "standard", "strong", "oracle"]
"""The rows of Table I: gated; no retrieval; passages always; summaries and passages always; gold passages."""


Variant = Literal["default", "paper"]


class Rules(NamedTuple):
    """A row of :data:`VARIANTS`; each rule is explained by the option of its name."""

    top_n: int | None
    n_summaries: int


VARIANTS: Mapping[Variant, Rules] = MappingProxyType(
    {"default": Rules(top_n=None, n_summaries=3), "paper": Rules(top_n=3, n_summaries=1)}
)
"""Where the paper's setting and ours differ: it asks about one document, and shows three chunks of it."""

SETTINGS_OF = {
    "gate_tokens": ("entropy", "margin"),
    "aggregate": ("entropy",),
    "estimate": ("entropy", "margin"),
    "n_samples": ("disagreement",),
    "same_meaning": ("disagreement",),
}
"""The gates, by name, that each option is about."""


@options
class LazyRAGOptions(Options):
    """What a user can set on L-RAG, whatever framework it stands in."""

    PROMPTS = PromptSet(
        closed_book=CLOSED_BOOK,
        from_context=FROM_CONTEXT,
        from_context_and_details=FROM_CONTEXT_AND_DETAILS,
    )

    mode: Annotated[
        Mode,
        Doc(
            """``"lazy"``, or one of the paper's baselines: ``"none"`` (closed book), ``"standard"`` (always
            retrieves), ``"strong"`` (always summaries and passages), ``"oracle"`` (gold passages come with
            the question)."""
        ),
    ] = "lazy"
    variant: Annotated[
        Variant,
        Doc(
            """Where ``top_n`` and ``n_summaries`` take their values from if they are None: ``"default"`` or
            ``"paper"`` (three chunks, one summary)."""
        ),
    ] = "default"
    gate: Annotated[
        GateLike,
        Doc(
            """What decides whether to retrieve: ``"entropy"`` of the first tokens (the paper's);
            ``"margin"`` between the two likeliest ones, for readers that list no alternatives; or
            ``"disagreement"`` of a few sampled answers, for readers without log-probabilities (Claude …).
            Or a gate with settings of its own (``DisagreementGate(n_samples=10)``), several of them
            (``any_of``, ``all_of``), or a function of the whole first answer, a ``Generation``, larger for a
            less certain one."""
        ),
    ] = "entropy"
    threshold: Annotated[
        float | Policy | None,
        Doc(
            """Retrieve iff the gate's signal exceeds this (the paper's τ), in the unit of the gate; None is
            the gate's own: 1.0 nats of entropy, 0.5 want of margin, 0.65 nats of disagreement. A policy from
            ``calibrate`` may stand in its place; it is refused when it was made for another reader, gate or
            prompt."""
        ),
    ] = None
    gate_tokens: Annotated[
        int,
        Within(1),
        Doc(
            """Tokens of the first pass that the gates ``"entropy"`` and ``"margin"`` look at (n of Eq. 3).
            The paper does not state it."""
        ),
    ] = 8
    aggregate: Annotated[
        Aggregate,
        Doc(
            """``"mean"`` of these tokens' entropies (Eq. 3), ``"max"`` of all (section III-A; it waits for
            the whole answer), or the ``"first"`` alone."""
        ),
    ] = "mean"
    estimate: Annotated[
        Estimate,
        Doc("Point of the interval to decide on, for readers that know only top-k log-probabilities."),
    ] = "middle"
    n_samples: Annotated[
        int, Within(2), Doc('Answers to sample for the gate ``"disagreement"``, which is what it costs.')
    ] = 5
    same_meaning: SameMeaningOption = "words"
    top_n: Annotated[
        int | None,
        Within(1),
        Doc("Passages to show, at most; None shows all that the retriever returns."),
    ] = None
    max_hops: Annotated[
        int,
        Within(1),
        Doc(
            """Retrievals for one question, at most; before each the gate looks at how the reader begins to
            answer from what there is so far (section VI-F). Later ones search for the question together
            with that beginning, and add what is new."""
        ),
    ] = 1
    n_summaries: Annotated[
        int | None,
        Within(1),
        Doc("Document summaries to join for the first pass; None goes by ``variant``: 3, the paper's 1."),
    ] = None
    max_calls: MaxCalls = None
    max_tokens: AnswerTokens = None
    stop: StopTexts = ()
    refusal: RefusalOption = None
    same_language: SameLanguage = False
    prompts: Annotated[
        Mapping[str, Any],
        Doc(
            """Prompts in place of the method's own (section III-D), by name: ``closed_book`` (slot
            ``question``), ``from_context`` (``context``, ``question``) and ``from_context_and_details``
            (``context``, ``details``, ``question``)."""
        ),
    ] = PromptSet()

    @property
    def rules(self) -> Rules:
        """The variant's rules, and what was set in place of them."""
        rules = VARIANTS[self.variant]
        return Rules(
            top_n=rules.top_n if self.top_n is None else self.top_n,
            n_summaries=rules.n_summaries if self.n_summaries is None else self.n_summaries,
        )

    @property
    def gate_in_force(self) -> Gate:
        """The gate that these options describe.

        Raises:
            ConfigurationError: If an option is set that this gate does not read.
        """
        for name, gates in SETTINGS_OF.items():
            if self.gate not in gates and getattr(self, name) != self.OPTIONS[name].default:
                raise ConfigurationError(
                    f"{name} is for the gate {' or '.join(gates)}, and the gate is {gate_name(self.gate)}",
                    hint="leave it out, or set what belongs to the gate in the gate itself",
                )
        if isinstance(self.gate, Gate):
            return self.gate
        made: Mapping[Any, Callable[[], Gate]] = {
            "entropy": lambda: EntropyGate(
                tokens=self.gate_tokens, aggregate=self.aggregate, estimate=self.estimate
            ),
            "margin": lambda: MarginGate(tokens=self.gate_tokens, estimate=self.estimate),
            "disagreement": lambda: DisagreementGate(
                n_samples=self.n_samples, same_meaning=self.same_meaning
            ),
        }
        return FunctionGate(self.gate) if callable(self.gate) else made[self.gate]()

    def boundary(self) -> float:
        """Return the threshold as a number.

        Raises:
            ConfigurationError: If none is set and the gate has none of its own, or it lies below all signals.
        """
        if isinstance(self.threshold, Policy):
            return self.threshold.threshold
        return self.gate_in_force.threshold_for(self.threshold)

    @property
    def answering(self) -> SamplingParams:
        """How to answer once it is settled: once, greedily; of this answer only the text is needed."""
        return SamplingParams(max_tokens=self.answer_tokens, stop=self.stop, trace="none")

    @property
    def first_pass(self) -> SamplingParams:
        """How to answer before it is settled whether to retrieve: greedily, with what the gate reads."""
        return replace(self.answering, trace=self.gate_in_force.look.trace)

    @property
    def sampling(self) -> SamplingParams:
        """How to sample the answers that a gate compares."""
        look = self.gate_in_force.look
        return replace(self.answering, n=look.n_samples, temperature=look.temperature, seed=look.seed)
