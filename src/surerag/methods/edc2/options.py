"""Options of EDC²-RAG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from surerag.errors import ConfigurationError
from surerag.messages import SamplingParams, Template
from surerag.options import Options, PromptsOption, prompts_field
from surerag.prompts import (
    ANSWER_WITH_EVIDENCE,
    EXTRACT,
    EXTRACT_OR_NOTHING,
    RELEVANT,
    RELEVANT_TO_STATEMENT,
    VERIFY,
    VERIFY_ABOUT_PERSON,
    VERIFY_ABOUT_PERSON_OR_NOTHING,
    VERIFY_OR_NOTHING,
    PromptSet,
)

Task = Literal["extract", "answer", "verify"]
Variant = Literal["copy", "paper", "whole"]
Guard = Literal["overlap", "entailment", "off"]
OnFailure = Literal["original", "raise"]

SAMPLING_TEMPERATURE = 0.7
"""Default temperature for ``task="answer"`` (section 5.1)."""

PAPER_PROMPTS: Mapping[str, Template] = {
    "extract": EXTRACT_OR_NOTHING,
    "verify": VERIFY_OR_NOTHING,
    "verify_about_person": VERIFY_ABOUT_PERSON_OR_NOTHING,
}
"""Prompts that ``variant="paper"`` uses in place of the default prompts."""

_OF_COMPRESSIONS = (
    "first_cluster_size", "max_cluster_size", "min_tokens", "guard", "max_tokens", "temperature"
)  # fmt: skip
_CLUSTER_PROMPTS = ("extract", "verify", "verify_about_person")

_LEAST_WHOLE = 3
"""Minimum number of passages to keep if clusters are not compressed; it equals the paper's τ."""
FEW_PASSAGES = 10
"""Maximum number of passages for which ``first_cluster_size="auto"`` is 1 (appendix B.2)."""


class EDC2Options(Options):
    """Options of EDC²-RAG, the same for :class:`surerag.ClusterCompressor`, LangChain and LlamaIndex.

    The following settings run the paper's algorithms. Options that are not listed keep their defaults:

    - section 4.3: ``variant="paper", guard="off", min_tokens=0``
    - appendix C.1: ``task="verify", variant="paper", guard="off", min_tokens=0, first_cluster_size="auto"``,
      and ``person=…``, the person that the statement is about, for C.1.2
    - appendix C.2: ``task="answer", guard="off"``. The last step chooses among the clusters' answers with the
      prompt ``surerag.prompts.SELECT_ANSWER``. ``surerag.evaluation.build_system("answered", …)`` includes
      this step.

    Our prompts lack the examples of sections 4.3, C.1 and C.2, because the paper prints few of them; you can
    add examples with ``prompts``. There are also no prompts that judge a statement of HaluEval or WikiBio by
    the compressed passages (appendix C.1).
    """

    PROMPTS = PromptSet(
        extract=EXTRACT,
        answer=ANSWER_WITH_EVIDENCE,
        verify=VERIFY,
        verify_about_person=VERIFY_ABOUT_PERSON,
        relevant=RELEVANT,
        relevant_to_statement=RELEVANT_TO_STATEMENT,
    )

    task: Task = "extract"
    """The goal: ``"extract"`` finds texts that are relevant to a question (section 4.3). ``"verify"`` finds
    texts that support or refute a statement, which is passed as the query (appendix C.1). ``"answer"``
    answers the question from each cluster, with quoted evidence (appendix C.2)."""

    variant: Variant = "whole"
    """How the tasks ``"extract"`` and ``"verify"`` shorten the context. ``"whole"`` keeps the most helpful
    passages unchanged. ``"copy"`` keeps the most helpful sentences of each cluster. With ``"paper"``, the
    model extracts the relevant content of each cluster, or replies that nothing in it is relevant (section
    4.3)."""

    person: str | None = Field(None, min_length=1)
    """For ``task="verify"``: the person that the statement is about (appendix C.1.2)."""

    threshold: int | None = Field(None, ge=0)
    """Only a context with more tokens than this number is shortened; None shortens every context."""

    top_n: int | None = Field(None, ge=1)
    """Maximum number of passages to keep. The most relevant passages are chosen by their similarity to the
    query, and by asking the reader whether each passage helps. With ``variant="whole"``, None
    keeps a third of the passages, but at least three. With other variants, None keeps all passages. If
    passages are removed, each passage whose text is contained in another passage is removed first."""

    first_cluster_size: Annotated[int, Field(ge=1)] | Literal["auto"] = 3
    """Number of passages in the first cluster (the paper's τ); each later cluster is twice as large as
    the cluster before it.
    ``"auto"`` is 1 for up to ten passages (appendix B.2), and 3 for more. With ``variant="whole"`` there are
    no clusters, so this option, ``max_cluster_size``, ``min_tokens``, ``guard``, ``max_tokens`` and
    ``temperature`` raise an error if they are set."""

    max_cluster_size: int = Field(20, ge=1)
    """Maximum number of passages in a cluster (the paper's Λ)."""

    min_tokens: int = Field(32, ge=0)
    """A cluster with at most this number of tokens is not compressed, because a call would save too little.
    This option has no effect for ``task="answer"``."""

    guard: Guard = "overlap"
    """How to detect sentences of a compression that no passage supports; such sentences are removed.
    ``"overlap"`` compares words, names, numbers and negations, ``"entailment"`` asks the entailer, and
    ``"off"`` removes nothing. For ``task="answer"``, only sentences with quotations are checked. If no
    sentence of a compression is supported, the cluster's passages are kept. With ``variant="copy"``, each
    sentence of the model is replaced by the most similar sentence of the passages; with ``"overlap"``, the
    passages' sentence must contain at least half of the words of the model's sentence."""

    token_limit: int | None = Field(None, ge=1)
    """Maximum number of tokens of the new context; None means no limit. A compression that does not fit is
    cut to its first sentences; a passage that does not fit is left out."""

    max_tokens: int = Field(256, ge=1)
    """Maximum length of a compression in tokens; the passages replace a truncated compression."""

    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Temperature of the compressions; None means 0.7 for ``task="answer"`` (section 5.1), otherwise 0."""

    on_failure: OnFailure = "original"
    """What to do if a model fails: ``"original"`` keeps the passages with a warning; ``"raise"`` raises the
    error."""

    prompts: PromptsOption = prompts_field()
    """Templates by name: ``extract`` and ``answer`` (slots ``question`` and ``passages``), ``verify`` (slots
    ``statement`` and ``passages``), ``verify_about_person`` (slots ``statement``, ``passages`` and
    ``person``), ``relevant`` (slots ``question`` and ``passage``) and ``relevant_to_statement`` (slots
    ``statement`` and ``passage``). In ``relevant_to_statement``, the statement begins with the person, if the
    option ``person`` is set."""

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        if not self.compresses and (unused := self._set_for_compressions()):
            raise ConfigurationError(
                f'{unused} is for compressions, but variant="whole" keeps passages unchanged',
                hint=f'pass variant="copy" or "paper", or leave out {unused}',
            )
        if self.person is not None and self.task != "verify":
            raise ConfigurationError(
                f'the option person is for task="verify", but the task is {self.task!r}',
                hint="leave person out",
            )
        return self

    def _set_for_compressions(self) -> str:
        fields = EDC2Options.model_fields
        changed = [name for name in _OF_COMPRESSIONS if getattr(self, name) != fields[name].default]
        prompts = [name for name in _CLUSTER_PROMPTS if self.prompts[name] != self.PROMPTS[name]]
        named = [f"the option {name}" for name in changed] + [f"the prompt {name}" for name in prompts]
        return next(iter(named), "")

    @property
    def compresses(self) -> bool:
        """Whether clusters are compressed; if not, passages are selected and stay unchanged."""
        return self.task == "answer" or self.variant != "whole"

    @property
    def copies(self) -> bool:
        """Whether compressions consist of sentences that are copied from the passages."""
        return self.variant == "copy" and self.task != "answer"

    def n_kept(self, n_passages: int) -> int:
        """Return the option ``top_n`` or, if it is None, its default for ``n_passages`` retrieved passages.

        Example:
            >>> EDC2Options().n_kept(20), EDC2Options().n_kept(5), EDC2Options(variant="copy").n_kept(20)
            (6, 3, 20)
        """
        if self.top_n is not None:
            return self.top_n
        return n_passages if self.compresses else max(_LEAST_WHOLE, n_passages // 3)

    @property
    def prompt(self) -> Template:
        """The template of the prompt that compresses a cluster.

        It is the user's template in the option ``prompts``, or else the default for ``task`` and ``variant``.
        """
        name = self.task if self.person is None else "verify_about_person"
        prompt: Template = self.prompts[name]
        ours = prompt == self.PROMPTS[name]
        return PAPER_PROMPTS.get(name, prompt) if ours and self.variant == "paper" else prompt

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters for the compression of clusters."""
        own = SAMPLING_TEMPERATURE if self.task == "answer" else 0.0
        temperature = own if self.temperature is None else self.temperature
        return SamplingParams(temperature=temperature, max_tokens=self.max_tokens, trace="none")

    def tau(self, n_passages: int) -> int:
        """Return the size of the first cluster (τ) if ``n_passages`` passages are clustered.

        It is the option ``first_cluster_size`` (by default 3). ``"auto"`` means 1 for up to ten passages, and
        3 for more.

        Example:
            >>> options = EDC2Options(variant="copy", first_cluster_size="auto")
            >>> options.tau(10), EDC2Options(variant="copy").tau(10)
            (1, 3)
        """
        if self.first_cluster_size != "auto":
            return self.first_cluster_size
        return 1 if n_passages <= FEW_PASSAGES else 3
