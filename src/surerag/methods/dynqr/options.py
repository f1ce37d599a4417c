"""Options of DynQR's inference."""

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
"""Default thresholds by metric. For perplexity, the best threshold in the paper's Table 3 is near 1.2. For
the semantic entropy, 0.65 nats is just above the entropy of two meanings with 2/3 and 1/3 of the samples."""


class DynQROptions(Options):
    """Options of DynQR, the same for :class:`surerag.UncertaintyRewriter`, LangChain and LlamaIndex.

    The paper uses ``top_n=5, prompts={"answer": surerag.prompts.DYNQR_ANSWER}``. The paper's answer prompt
    asks for one entity; our default is a prompt for any question (``docs/defaults.md``). The paper's prompts
    contain an example (appendix C), ours do not.
    """

    PROMPTS: ClassVar[PromptSet] = PromptSet(
        answer=FROM_PASSAGES,
        closed_book=CLOSED_BOOK,
        rewrite=REWRITE,
        rewrite_in_conversation=REWRITE_IN_CONVERSATION,
    )

    threshold: ThresholdOption = None
    """The query is rewritten if the uncertainty of the first answer is above this number (θ): with −inf
    always, with inf never. None means 1.2 for perplexity and 0.65 nats for semantic entropy; for another
    metric a number is required. A calibrated ``ThresholdPolicy`` is also accepted; it raises an error if it
    was calibrated for another reader, metric, retriever or prompt."""

    metric: MetricName | Callable[..., Any] = "perplexity"
    """The measure of an answer's uncertainty (Table 5): ``"perplexity"``, ``"lowest_probability"``,
    ``"token_entropy"``, or, for local models only, ``"energy"``. ``"ln_entropy"`` and ``"semantic_entropy"``
    sample more answers; ``"semantic_entropy"`` needs no log-probabilities. A function gets a ``Generation``
    and returns a number that is larger for a less certain answer."""

    documents: Literal["substitute", "expand"] = "substitute"
    """The passages for the second answer (section 3.2): ``"substitute"`` takes only the passages that the
    rewritten query retrieved; ``"expand"`` alternates them with the first passages."""

    answer: Literal["original", "rewrite"] = "original"
    """The question in the prompt of the second answer: ``"original"``, as in the paper, or ``"rewrite"``, for
    readers that misunderstand the original wording. With ``"rewrite"``, the reader is asked again even if no
    new passage was retrieved."""

    top_n: int | None = Field(default=None, ge=1)
    """Maximum number of retrieved passages in a prompt; None means all that the retriever returns."""

    n_candidates: int = Field(default=1, ge=1)
    """Number of rewritten queries to try; each costs a rewrite, a retrieval and an answer."""

    verify: bool = True
    """Whether the least uncertain of all answers is returned (post-verification). If False, the least
    uncertain answer of the rewritten queries is returned, even if the first answer is more certain."""

    n_samples: int = Field(default=10, ge=2)
    """Number of answers to sample for the metrics ``"ln_entropy"`` and ``"semantic_entropy"``."""

    max_tokens: AnswerTokensOption = None
    """Maximum length of an answer in tokens; None means the reader's own limit."""

    abstention: str | None = None
    """The sentence that the prompt tells the reader to reply if the passages lack the answer, such as ``"I do
    not know."``; this reply counts as infinitely uncertain. None: the prompt does not mention abstaining."""

    prompts: PromptsOption = prompts_field()
    """Prompts that replace the default prompts (appendix C), by name: ``answer`` (slots ``passages`` and
    ``question``), ``closed_book`` for a question without passages (slot ``question``), ``rewrite`` (slot
    ``query``), and ``rewrite_in_conversation`` (slot ``query``) for a question with a history."""

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        if self.n_samples != type(self).model_fields["n_samples"].default and self.metric not in SAMPLED:
            raise ConfigurationError(
                f"the option n_samples is for the metric {' or '.join(SAMPLED)}, but the metric is "
                f"{metric_name(self.metric)}",
                hint="leave n_samples out, or set one of these metrics",
            )
        return self

    @field_serializer("metric")
    def _metric_name(self, value: Any) -> str:
        return metric_name(value)

    @property
    def resolved_threshold(self) -> float:
        """The threshold in use: the option ``threshold``, or else the metric's default threshold.

        Raises:
            ConfigurationError: If the option ``threshold`` is None and the metric has no default threshold.
        """
        name = metric_name(self.metric)
        default = _THRESHOLDS.get(name) if isinstance(self.metric, str) else None
        return threshold_value(self.threshold, default, f"the metric {name}")
