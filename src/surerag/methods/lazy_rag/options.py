"""The options of L-RAG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from surerag.calibration import Calibration
from surerag.methods.lazy_rag.gate import Aggregate, EntropyGate, Estimate
from surerag.options import AnswerTokens, Doc, Options, StopTexts, Within, options
from surerag.prompts import CLOSED_BOOK, FROM_CONTEXT, FROM_CONTEXT_AND_DETAILS, PromptSet
from surerag.types import Sampling

Mode = Literal["lazy", "none", "standard", "strong", "oracle"]
"""The rows of Table I: gated; no retrieval; passages always; summaries and passages always; gold passages."""


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
    threshold: Annotated[
        float | Calibration,
        Within(0),
        Doc(
            """Retrieve iff the entropy of the first pass exceeds this, in nats (the paper's τ). A calibration
            may stand in its place; it warns when it was made for another reader or gate."""
        ),
    ] = 1.0
    gate_tokens: Annotated[
        int,
        Within(1),
        Doc("Tokens of the first pass that the gate looks at (n of Eq. 3). The paper does not state it."),
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
    top_n: Annotated[
        int | None,
        Within(1),
        Doc("Passages to show, at most; None shows all that the retriever returns."),
    ] = None
    n_summaries: Annotated[int, Within(1), Doc("Document summaries to join for the first pass.")] = 3
    max_tokens: AnswerTokens = None
    stop: StopTexts = ()
    prompts: Annotated[
        Mapping[str, Any],
        Doc(
            """Prompts in place of the method's own (section III-D), by name: ``closed_book`` (slot
            ``question``), ``from_context`` (``context``, ``question``) and ``from_context_and_details``
            (``context``, ``details``, ``question``)."""
        ),
    ] = PromptSet()

    @property
    def gate(self) -> EntropyGate:
        """The gate that these options describe."""
        threshold = self.threshold
        if isinstance(threshold, Calibration):
            threshold = threshold.threshold
        return EntropyGate(threshold, self.gate_tokens, self.aggregate, self.estimate)

    @property
    def first_pass(self) -> Sampling:
        """How to answer before it is settled whether to retrieve: once, greedily, with entropies."""
        return Sampling(max_tokens=self.answer_tokens, stop=self.stop, trace="entropy")

    @property
    def answering(self) -> Sampling:
        """How to answer once it is settled: once, greedily; of this answer only the text is needed."""
        return replace(self.first_pass, trace="none")
