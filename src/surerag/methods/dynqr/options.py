"""The options of DynQR's inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_serializer, model_validator

from surerag.errors import ConfigurationError
from surerag.methods.dynqr.metrics import SAMPLED, MetricName, metric_name
from surerag.methods.shared import (
    AnswerTokensOption,
    ThresholdOption,
    threshold_value,
)
from surerag.options import Options, PromptsOption, prompts_field
from surerag.prompts import CLOSED_BOOK, FROM_PASSAGES, REWRITE, REWRITE_IN_CONVERSATION, PromptSet

_THRESHOLDS = {"perplexity": 1.2, "semantic_entropy": 0.65}
"""Thresholds of the metrics that have one: Table 3 has its best for perplexity near 1.2; with 0.65 nats an
answer is certain where about two thirds of the samples agree."""


class DynQROptions(Options):
    """Options of DynQR, in the core and in both frameworks.

    The paper's own algorithm is ``top_n=5, prompts={"answer": surerag.prompts.DYNQR_ANSWER}``, whose prompt
    asks for one entity; the default is the prompt of standard retrieval (``docs/defaults.md``). Our prompts
    do not have the example in the paper's prompts (appendix C).
    """

    PROMPTS: ClassVar[PromptSet] = PromptSet(
        answer=FROM_PASSAGES,
        closed_book=CLOSED_BOOK,
        rewrite=REWRITE,
        rewrite_in_conversation=REWRITE_IN_CONVERSATION,
    )

    threshold: ThresholdOption = None
    """Rewrite the query iff the uncertainty of the first answer is greater than this number (θ); −inf always
    rewrites, inf never. None is 1.2 for perplexity and 0.65 nats for semantic entropy; other metrics have no
    default. A ``ThresholdPolicy`` from a calibration is also possible; it is refused if it was calibrated for
    another reader, metric, retriever or prompt."""

    metric: MetricName | Callable[..., Any] = "perplexity"
    """The uncertainty of an answer (Table 5): ``"perplexity"``, ``"lowest_probability"``, ``"energy"`` (local
    models), ``"ln_entropy"`` of sampled answers; ``"token_entropy"``; ``"semantic_entropy"`` of sampled
    answers, for models without log-probabilities; or a function of a ``Generation`` that is larger for a less
    certain answer."""

    documents: Literal["substitute", "expand"] = "substitute"
    """Passages for the second answer (section 3.2): ``"substitute"`` takes the passages of the rewrite;
    ``"expand"`` takes passages of both lists, in turn."""

    answer: Literal["original", "rewrite"] = "original"
    """The question for the second answer: ``"original"``, as in the paper; or ``"rewrite"``, for readers that
    misunderstand a question's wording: then a rewrite is used even if it retrieves nothing new."""

    top_n: int | None = Field(default=None, ge=1)
    """Maximum number of passages to answer from; None takes all passages that the retriever returns."""

    n_candidates: int = Field(default=1, ge=1)
    """Number of rewrites to try; each costs a rewriting, a retrieval and an answer."""

    verify: bool = True
    """Whether to keep the less uncertain answer (post-verification); if False, the rewrite's answer is kept.
    """

    n_samples: int = Field(default=10, ge=2)
    """Answers to sample for the metrics ``"ln_entropy"`` and ``"semantic_entropy"``."""

    max_tokens: AnswerTokensOption = None
    """Longest answer in tokens; None is the reader's own limit."""

    abstention: str | None = None
    """The reply that the reader must give if nothing supports an answer, such as ``"I do not know."``; this
    reply is infinitely uncertain. None asks for no such reply."""

    prompts: PromptsOption = prompts_field()
    """Prompts in place of the method's own (appendix C), by name: ``answer`` (slots ``passages``,
    ``question``), ``closed_book`` where nothing was retrieved (``question``), ``rewrite`` and, after a
    conversation, ``rewrite_in_conversation`` (``query``)."""

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        if self.n_samples != type(self).model_fields["n_samples"].default and self.metric not in SAMPLED:
            raise ConfigurationError(
                f"n_samples is for the metric {' or '.join(SAMPLED)}, but the metric is "
                f"{metric_name(self.metric)}",
                hint="leave it out, or set one of these metrics",
            )
        return self

    @field_serializer("metric")
    def _metric_name(self, value: Any) -> str:
        return metric_name(value)

    @property
    def resolved_threshold(self) -> float:
        """The threshold as a number.

        Raises:
            ConfigurationError: If none is set, and the metric has no default.
        """
        name = metric_name(self.metric)
        default = _THRESHOLDS.get(name) if isinstance(self.metric, str) else None
        return threshold_value(self.threshold, default, f"the metric {name}")
