"""The options of EDC²-RAG, and where the paper and its authors' code differ in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from surerag.clustering import Order, Root
from surerag.decisions.benefit import BenefitModel
from surerag.decisions.policy import Policy
from surerag.messages import Passage, SamplingParams
from surerag.methods.calls import MaxCalls
from surerag.options import Doc, Options, Within, options
from surerag.prompts import (
    ANSWER_WITH_EVIDENCE,
    CHOOSE_ANSWER,
    CONSENSUS,
    EXTRACT,
    FACT_CHECK,
    FACT_CHECK_ABOUT,
    JUDGE_STATEMENT,
    JUDGE_STATEMENT_ABOUT,
    PromptSet,
)
from surerag.tokens import estimated_tokens

Mode = Literal["extract", "answer_with_evidence", "fact_check"]
"""What to ask of each cluster: the prompt of section 4.3, of appendix C.2 or of appendix C.1."""

Variant = Literal["default", "paper", "official"]
Clustering = Literal["dynamic", "average", "random", "single"]
FirstSize = int | Literal["auto"]
NothingRule = Literal["anchored", "sentinel", "legacy"]
AllEmpty = Literal["original", "nothing"]
Guard = Literal["overlap", "entailment", "off"]
GuardAction = Literal["remove", "flag"]
ConsensusRule = Literal["reader", "majority"]
OnFailure = Literal["original", "raise"]


@dataclass(frozen=True, slots=True)
class FewShot:
    """A worked example for the prompt.

    Attributes:
        query: The question or statement.
        passages: Texts of its documents.
        reply: The compression to learn from.
    """

    query: str
    passages: tuple[str, ...]
    reply: str


class Rules(NamedTuple):
    """A row of :data:`VARIANTS`; each rule is explained by the option of its name."""

    root: Root
    count_root: bool
    first_cluster_size: FirstSize
    max_cluster_size: int
    order: Order
    nothing: NothingRule
    all_empty: AllEmpty
    pass_below: int
    refuse_longer: bool
    guard: Guard


VARIANTS: Mapping[Variant, Rules] = MappingProxyType(
    {
        "default": Rules(
            root="query", count_root=True, first_cluster_size=3, max_cluster_size=20, order="similarity",
            nothing="anchored", all_empty="original", pass_below=32, refuse_longer=True, guard="overlap",
        ),
        "paper": Rules(
            root="query", count_root=True, first_cluster_size=3, max_cluster_size=20, order="similarity",
            nothing="sentinel", all_empty="original", pass_below=0, refuse_longer=False, guard="off",
        ),
        "official": Rules(
            root="rank", count_root=False, first_cluster_size="auto", max_cluster_size=20, order="rank",
            nothing="legacy", all_empty="nothing", pass_below=0, refuse_longer=False, guard="off",
        ),
    }
)  # fmt: skip
"""Where the paper and the authors' code differ, and what we take."""


@options
class EDC2Options(Options):
    """What a user can set on EDC²-RAG, whatever framework it stands in."""

    PROMPTS = PromptSet(
        extract=EXTRACT,
        answer_with_evidence=ANSWER_WITH_EVIDENCE,
        fact_check=FACT_CHECK,
        consensus=CONSENSUS,
        judge_statement=JUDGE_STATEMENT,
        fact_check_about=FACT_CHECK_ABOUT,
        judge_statement_about=JUDGE_STATEMENT_ABOUT,
        choose_answer=CHOOSE_ANSWER,
    )

    mode: Annotated[
        Mode,
        Doc(
            """``"extract"`` what is relevant (section 4.3), ``"answer_with_evidence"`` (appendix C.2), or
            ``"fact_check"``: what supports or refutes a statement (appendix C.1)."""
        ),
    ] = "extract"
    variant: Annotated[
        Variant,
        Doc(
            """Where options that are None take their values from: ``"default"``, ``"paper"``, or
            ``"official"`` (the authors' code)."""
        ),
    ] = "default"
    threshold: Annotated[
        float | Policy | None,
        Doc(
            """Compress iff what was retrieved has more tokens than this; None always compresses. A policy
            from ``calibrate`` may stand in its place; it is refused when it was made for another reader,
            signal or prompt. Neither is of the paper."""
        ),
    ] = None
    benefit: Annotated[
        BenefitModel | None,
        Doc(
            """Decides whether to compress, in place of the number of tokens: what compressing is expected to
            mend less what it is expected to spoil, from what :meth:`features` tells of the passages. The
            threshold is then on its scale; None is 0."""
        ),
    ] = None
    clustering: Annotated[
        Clustering,
        Doc(
            """``"dynamic"`` is Algorithm 1; ``"average"`` and ``"random"`` are the controls of Table 4;
            ``"single"`` compresses each passage alone."""
        ),
    ] = "dynamic"
    first_cluster_size: Annotated[
        FirstSize | None,
        Within(1),
        Doc(
            """Size of the first cluster (the paper's τ); each further one is twice as large. ``"auto"`` is 1
            for at most ten passages, else 3. Larger ones show the model more facts together, in fewer and
            longer calls."""
        ),
    ] = None
    max_cluster_size: Annotated[
        int | None, Within(0), Doc("Largest size of a cluster (the paper's Λ); 0 for no bound.")
    ] = None
    count_root: Annotated[bool | None, Doc("Whether these sizes include a cluster's root.")] = None
    root: Annotated[
        Root | None,
        Doc(
            """A cluster's root is the free passage most similar to the ``"query"``, or the first by
            ``"rank"``."""
        ),
    ] = None
    order: Annotated[
        Order | None,
        Doc('Passages inside a cluster by ``"similarity"`` to its root, or by ``"rank"``.'),
    ] = None
    nothing: Annotated[
        NothingRule | None,
        Doc(
            """How to tell that a reply means nothing: the agreed words alone (``"sentinel"``), those or a
            reply of refusals only (``"anchored"``), or any of many substrings (``"legacy"``)."""
        ),
    ] = None
    all_empty: Annotated[
        AllEmpty | None,
        Doc(
            """What to return when every cluster yields nothing: the ``"original"`` passages, or
            ``"nothing"``."""
        ),
    ] = None
    pass_below: Annotated[
        int | None,
        Within(0),
        Doc("Clusters of at most this many tokens go through as they are: a call would not gain."),
    ] = None
    refuse_longer: Annotated[
        bool | None, Doc("Whether a compression that is longer than its sources is refused.")
    ] = None
    guard: Annotated[
        Guard | None,
        Doc(
            """How to check that a source says what a compression says, sentence by sentence: by
            ``"overlap"`` of words, by ``"entailment"``, or ``"off"``. None is off in modes other than
            ``"extract"``."""
        ),
    ] = None
    guard_action: Annotated[
        GuardAction, Doc('Whether to ``"remove"`` or to ``"flag"`` sentences that no source supports.')
    ] = "remove"
    entailment_threshold: Annotated[
        float | None,
        Within(0, 1, above=True),
        Doc(
            """Probability of entailment from which a source supports a sentence, None for 0.6; with
            ``guard="overlap"``, the share of the sentence's content words that the source must have, None
            for 0.3, or 0.5 with ``bridging``: measured on paraphrases, more removes true sentences in other
            words, and less lets through what is made up."""
        ),
    ] = None
    on_failure: Annotated[
        OnFailure,
        Doc(
            """If the reader fails for a cluster: its ``"original"`` passages go through, with a warning, or
            ``"raise"``. What a service refuses for good raises in any case."""
        ),
    ] = "original"
    budget: Annotated[
        int | None,
        Within(1),
        Doc(
            """Tokens of all that is returned, at most, as the reader counts them. Where nothing fits, the
            beginning of the best is returned, with a warning."""
        ),
    ] = None
    max_calls: MaxCalls = None
    bridging: Annotated[
        int,
        Within(0),
        Doc(
            """How often clusters that yielded nothing are asked again, with what the others yielded beside
            their passages. The second fact of a two-hop question is relevant only together with the first,
            and its cluster is dropped without this. 0 is the paper's; 1 serves two-hop questions."""
        ),
    ] = 0
    consensus: Annotated[
        ConsensusRule,
        Doc(
            """Who selects among the clusters' answers in :meth:`answer`: the ``"reader"`` (appendix C.2), or
            the ``"majority"`` of equal words, which costs no call and wants answers of few words."""
        ),
    ] = "reader"
    subject: Annotated[
        str | None,
        Doc(
            """Whom or what the statements in mode ``"fact_check"`` are about (``{person}`` in appendix
            C.1.2); the prompts that end in ``_about`` are then asked."""
        ),
    ] = None
    examples: Annotated[tuple[FewShot, ...], Doc("Worked examples for the prompt.")] = ()
    max_tokens: Annotated[
        int,
        Within(1),
        Doc(
            """Length of a compression, at most. The passages of a cluster whose compression runs into it go
            through as they are, with a warning: nobody knows what was still to come."""
        ),
    ] = 256
    temperature: Annotated[
        float | None,
        Within(0),
        Doc('Of compressions. None is 0, and 0.7 in mode ``"answer_with_evidence"`` (section 5.1).'),
    ] = None
    seed: Annotated[int, Doc("Of sampling, and of random clusters.")] = 0
    prompts: Annotated[
        Mapping[str, Any],
        Doc(
            """Prompts in place of the method's own, by name. One for each mode: ``extract`` and
            ``answer_with_evidence`` (slots ``examples``, ``question``, ``passages``), ``fact_check``
            (``examples``, ``statement``, ``passages``). Besides ``consensus`` (``answers``, ``question``),
            ``judge_statement`` (``statement``, ``passages``) and ``choose_answer`` (``question``,
            ``first_answer``, ``second_answer``, ``passages``). Where a ``subject`` is given,
            ``fact_check_about`` and ``judge_statement_about``, with that slot more."""
        ),
    ] = PromptSet()

    @property
    def rules(self) -> Rules:
        """The variant's rules, and what was set in place of them."""
        rules = VARIANTS[self.variant]
        if self.mode == "fact_check" and self.variant == "paper":
            rules = rules._replace(first_cluster_size="auto")
        if self.mode != "extract":
            rules = rules._replace(guard="off")
        chosen = {name: getattr(self, name) for name in Rules._fields}
        return rules._replace(**{name: value for name, value in chosen.items() if value is not None})

    @property
    def support_threshold(self) -> float:
        """From where on a source supports a sentence, on the guard's own scale."""
        if self.entailment_threshold is not None:
            return self.entailment_threshold
        if self.rules.guard == "entailment":
            return 0.6
        # Where clusters are asked again, what is made up does harm twice: it misleads, and its cluster counts
        # as one that has spoken.
        return 0.5 if self.bridging else 0.3

    @property
    def sampling(self) -> SamplingParams:
        """How to compress."""
        temperature = self.temperature
        if temperature is None:
            temperature = 0.7 if self.mode == "answer_with_evidence" else 0.0
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=temperature, seed=self.seed, trace="none"
        )

    def compresses(self, passages: Sequence[Passage]) -> bool:
        """Whether to compress these passages."""
        threshold = self.threshold.threshold if isinstance(self.threshold, Policy) else self.threshold
        if self.benefit is None and threshold is None:
            return True
        features = self.features(passages)
        signal = features["tokens"] if self.benefit is None else self.benefit.benefit(features)
        return signal > (threshold or 0.0)

    def features(self, passages: Sequence[Passage]) -> dict[str, float]:
        """Return what is known of passages before they are compressed: signals for rows, by name.

        Returns:
            ``passages`` and ``tokens`` in number, and where all have retrieval scores the largest, ``score``,
            and its lead over the smallest, ``spread``.
        """
        found = {"passages": float(len(passages)), "tokens": float(sum(map(self.measure, passages)))}
        scores = [passage.score for passage in passages if passage.score is not None]
        if scores and len(scores) == len(passages):
            found |= {"score": float(max(scores)), "spread": float(max(scores) - min(scores))}
        return found

    def measure(self, passage: Passage) -> int:
        """Return the tokens of a passage, as the pipeline will show it."""
        return estimated_tokens(passage.text)

    def own_text(self, passage: Passage) -> str:
        """Return a passage's own text, without what a pipeline puts around it: what offsets count in."""
        return passage.text

    def sentences(self, text: str) -> list[str]:
        """Return the sentences of a text, verbatim and in order."""
        return [sentence for sentence in re.split(r"(?<=[.!?])\s+|\n", text.strip()) if sentence]
