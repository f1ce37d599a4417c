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
"""Default temperature of the answers of clusters (section 5.1)."""

PAPER_PROMPTS: Mapping[str, Template] = {
    "extract": EXTRACT_OR_NOTHING,
    "verify": VERIFY_OR_NOTHING,
    "verify_about_person": VERIFY_ABOUT_PERSON_OR_NOTHING,
}
"""Prompts of ``variant="paper"`` that are not the defaults."""

_OF_COMPRESSIONS = (
    "first_cluster_size", "max_cluster_size", "min_tokens", "guard", "max_tokens", "temperature"
)  # fmt: skip
_CLUSTER_PROMPTS = ("extract", "verify", "verify_about_person")

_LEAST_WHOLE = 3
"""Smallest number of passages that are kept whole; the paper's τ."""
FEW_PASSAGES = 10
"""Up to this number of passages, the first cluster has one passage (appendix B.2)."""


class EDC2Options(Options):
    """Options of :class:`surerag.ClusterCompressor` and its adapters.

    The paper's own algorithms, with τ = 3 and Λ = 20 as by default:

    - section 4.3: ``variant="paper", guard="off", min_tokens=0``
    - appendix C.1: ``task="verify", variant="paper", guard="off", min_tokens=0, first_cluster_size="auto"``,
      and ``person=…`` for C.1.2
    - appendix C.2: ``task="answer", guard="off"``; its last step is ``surerag.prompts.SELECT_ANSWER``, or the
      system ``answered`` of :func:`surerag.evaluation.build_system`

    Two things of the paper are absent. The first is the examples in the prompts of 4.3, C.1 and C.2, most of
    which the paper does not print; put your own into ``prompts``. The second is the prompts of appendix C.1
    that judge a statement by the extracts, for HaluEval and WikiBio; write the prompt of your own task.
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
    """What is returned: what is relevant to the question (``"extract"``, section 4.3), an answer of each
    cluster with quoted evidence (``"answer"``, appendix C.2), or what supports or refutes a statement, which
    is passed as the query (``"verify"``, appendix C.1)."""

    variant: Variant = "whole"
    """For the tasks ``"extract"`` and ``"verify"``: ``"whole"`` keeps the passages that help most unchanged;
    ``"copy"`` copies a cluster's sentences that help most; with ``"paper"`` (section 4.3) the model extracts
    what is relevant, or says that nothing is, which small models do too often
    (``docs/methods/edc2.md``)."""

    person: str | None = Field(None, min_length=1)
    """For ``task="verify"``: the person that statements are about (appendix C.1.2)."""

    threshold: int | None = Field(None, ge=0)
    """Only contexts with more tokens than this number are shortened; None shortens all contexts."""

    top_n: int | None = Field(None, ge=1)
    """Maximum number of passages to keep: the most relevant by similarity and by the reader, which is asked
    whether each passage helps. Texts that another text contains are removed, too. None keeps a third of the
    passages, at least three, if passages stay whole, and all if clusters are compressed."""

    first_cluster_size: Annotated[int, Field(ge=1)] | Literal["auto"] = 3
    """Size of the first cluster (the paper's τ); each further cluster is twice as large. ``"auto"`` is 1 for
    up to ten passages (appendix B.2), else 3. This and other options of compressions, ``max_cluster_size``,
    ``min_tokens``, ``guard``, ``max_tokens`` and ``temperature``, are refused if passages stay whole."""

    max_cluster_size: int = Field(20, ge=1)
    """Maximum size of a cluster (the paper's Λ)."""

    min_tokens: int = Field(32, ge=0)
    """Clusters of at most this number of tokens stay as they are, since a call would gain nothing. Not for
    ``task="answer"``."""

    guard: Guard = "overlap"
    """How to find sentences (in answers: quotations) that no source supports, which are removed: by words,
    names, numbers and denials (``"overlap"``), by the entailer (``"entailment"``), or not at all (``"off"``).
    A cluster without a supported sentence is replaced by its passages. With ``variant="copy"``, each
    sentence of the model is replaced by the nearest sentence of the passages under every guard; with
    ``"overlap"`` only if this has half of its words."""

    token_limit: int | None = Field(None, ge=1)
    """Maximum length of the new context, in tokens; a compression may be cut to its first sentences."""

    max_tokens: int = Field(256, ge=1)
    """Longest compression of a cluster in tokens; a compression that is cut is replaced by its passages."""

    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Temperature of the replies; None is 0.7 for ``task="answer"`` (section 5.1), else 0 (greedy)."""

    on_failure: OnFailure = "original"
    """If a model fails: keep the ``"original"`` passages, with a warning, or ``"raise"``."""

    prompts: PromptsOption = prompts_field()
    """Templates by name: ``extract`` and ``answer`` (slots ``question``, ``passages``), ``verify``
    (``statement``, ``passages``), ``verify_about_person`` (also ``person``), ``relevant`` (``question``,
    ``passage``), ``relevant_to_statement`` (``statement``, with the person's name before it, ``passage``)."""

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        if not self.compresses and (unused := self._set_for_compressions()):
            raise ConfigurationError(
                f'{unused} is for compressions, but variant="whole" keeps passages unchanged',
                hint='pass variant="copy" or "paper", or leave it out',
            )
        if self.person is not None and self.task != "verify":
            raise ConfigurationError(
                f'person is for task="verify", but the task is {self.task!r}', hint="leave person out"
            )
        return self

    def _set_for_compressions(self) -> str:
        """Return the first changed option that only compressions read; an empty text if there is none."""
        fields = EDC2Options.model_fields
        changed = [name for name in _OF_COMPRESSIONS if getattr(self, name) != fields[name].default]
        prompts = [name for name in _CLUSTER_PROMPTS if self.prompts[name] != self.PROMPTS[name]]
        return next(iter([*changed, *(f"the prompt {name}" for name in prompts)]), "")

    @property
    def compresses(self) -> bool:
        """Whether clusters are compressed; otherwise passages are selected and stay whole."""
        return self.task == "answer" or self.variant != "whole"

    @property
    def copies(self) -> bool:
        """Whether only sentences of the passages are returned."""
        return self.variant == "copy" and self.task != "answer"

    def n_kept(self, n_passages: int) -> int:
        """Return how many of ``n_passages`` passages are kept.

        Example:
            >>> EDC2Options().n_kept(20), EDC2Options().n_kept(5), EDC2Options(variant="copy").n_kept(20)
            (6, 3, 20)
        """
        if self.top_n is not None:
            return self.top_n
        return n_passages if self.compresses else max(_LEAST_WHOLE, n_passages // 3)

    @property
    def prompt(self) -> Template:
        """The prompt of the task: the user's, or that of the variant."""
        name = self.task if self.person is None else "verify_about_person"
        prompt: Template = self.prompts[name]
        ours = prompt == self.PROMPTS[name]
        return PAPER_PROMPTS.get(name, prompt) if ours and self.variant == "paper" else prompt

    @property
    def sampling(self) -> SamplingParams:
        """Sampling parameters for compressing clusters."""
        own = SAMPLING_TEMPERATURE if self.task == "answer" else 0.0
        temperature = own if self.temperature is None else self.temperature
        return SamplingParams(temperature=temperature, max_tokens=self.max_tokens, trace="none")

    def tau(self, n_passages: int) -> int:
        """Return the size of the first cluster for ``n_passages`` passages.

        Example:
            >>> options = EDC2Options(variant="copy", first_cluster_size="auto")
            >>> options.tau(10), EDC2Options(variant="copy").tau(10)
            (1, 3)
        """
        if self.first_cluster_size != "auto":
            return self.first_cluster_size
        return 1 if n_passages <= FEW_PASSAGES else 3
