"""The options of L-RAG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Literal

from pydantic import Field, InstanceOf, field_serializer, field_validator

from surerag.errors import ConfigurationError
from surerag.methods.lazy_rag.gates import GATES, N_TOKENS, AbstentionGate, Gate
from surerag.methods.shared import N_SAMPLES, AnswerTokensOption, ThresholdOption, threshold_value
from surerag.options import Options, PromptsOption, prompts_field
from surerag.prompts import CLOSED_BOOK, FROM_CONTEXT, FROM_CONTEXT_AND_DETAILS, PromptSet
from surerag.text import ABSTENTION

_GATES_OF = {"n_tokens": ("entropy", "margin"), "n_samples": ("semantic_entropy",)}
"""For each option, the names of the gates that it applies to."""


class LazyRAGOptions(Options):
    """Options of L-RAG, the same for :class:`surerag.LazyRAG`, LangChain and LlamaIndex.

    The paper uses ``top_n=3, n_summaries=1, abstention=False`` and a ``threshold`` of 0.5, 1.0 or 1.5.
    """

    PROMPTS: ClassVar[PromptSet] = PromptSet(
        closed_book=CLOSED_BOOK, from_context=FROM_CONTEXT, from_context_and_details=FROM_CONTEXT_AND_DETAILS
    )

    gate: Literal["entropy", "margin", "semantic_entropy", "abstention"] | InstanceOf[Gate] = "entropy"
    """The measure of uncertainty that decides whether to retrieve; an abstention in the first pass always
    leads to retrieval. ``"entropy"`` of the first tokens is the paper's gate. ``"margin"`` is for servers
    without top log-probabilities. Two gates are for models without log-probabilities: ``"abstention"``
    retrieves only after an abstention, and ``"semantic_entropy"`` samples several answers. A ``Gate`` object
    has its own settings."""

    threshold: ThresholdOption = None
    """The method retrieves if the gate's score is above this number (τ). None means the gate's own threshold:
    0.5 nats for the entropy, 0.2 for 1 − margin, or 0.3 nats for the semantic entropy. After an abstention
    the method always retrieves. A calibrated ``ThresholdPolicy`` is also accepted; it raises an error if it
    was calibrated for another reader, gate, retriever or prompt."""

    n_tokens: int = Field(default=N_TOKENS, ge=1)
    """Number of tokens at the start of the first answer from which the gates ``"entropy"`` and ``"margin"``
    compute their score (n of Eq. 3)."""

    n_samples: int = Field(default=N_SAMPLES, ge=2)
    """Number of answers to sample for the gate ``"semantic_entropy"``."""

    top_n: int | None = Field(default=None, ge=1)
    """Maximum number of retrieved passages in the prompt; None means all that the retriever returns."""

    n_summaries: int = Field(default=3, ge=1)
    """Maximum number of summaries in the prompt."""

    max_tokens: AnswerTokensOption = None
    """Maximum length of an answer in tokens; None means the reader's own limit."""

    abstention: str | Literal[False] | None = None
    """The sentence that the prompt tells the reader to reply if the texts lack the answer. If the first
    answer is this sentence, the method retrieves. None: ``"I do not know."``, but only in the prompt of the
    first answer. A text: this text, in all prompts. False: no prompt demands a sentence, as in the paper."""

    prompts: PromptsOption = prompts_field()
    """Prompts that replace the default prompts, by name: ``closed_book`` (slot ``question``),
    ``from_context`` (slots ``context`` and ``question``) and ``from_context_and_details`` (slots ``context``,
    ``details`` and ``question``)."""

    @field_validator("gate", mode="before")
    @classmethod
    def _gate_from_settings(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        settings = dict(value)
        kind = GATES.get(settings.pop("name", ""))
        if kind is None:
            raise ConfigurationError(
                f"no gate {value.get('name')!r} can be made from settings",
                hint=f"choose among {', '.join(GATES)}, or pass a Gate",
            )
        names = [one.name for one in fields(kind)]
        if unknown := [name for name in settings if name not in names]:
            raise ConfigurationError(
                f"the gate {kind.name} has no setting {unknown[0]!r}", hint=f"it takes {', '.join(names)}"
            )
        return kind(**settings)

    @field_serializer("gate")
    def _gate_settings(self, value: str | Gate) -> Any:
        return value.to_dict() if isinstance(value, Gate) else value

    @property
    def resolved_gate(self) -> Gate:
        """The ``Gate`` object that the option ``gate`` contains or names.

        Raises:
            ConfigurationError: If an option is set that the gate does not use, or if the gate is
                ``"abstention"`` and the option ``abstention`` is False.
        """
        for name, gates in _GATES_OF.items():
            changed = getattr(self, name) != type(self).model_fields[name].default
            if changed and self.gate not in gates:
                named = self.gate.name if isinstance(self.gate, Gate) else self.gate
                raise ConfigurationError(
                    f"the option {name} is for the gate {' or '.join(gates)}, but the gate is {named}",
                    hint=f"leave {name} out, or set it in your own gate, such as EntropyGate({name}=…)",
                )
        if self.first_abstention is None and (
            self.gate == "abstention" or isinstance(self.gate, AbstentionGate)
        ):
            raise ConfigurationError(
                'the gate "abstention" needs a prompt that demands an abstention, but abstention is False',
                hint="leave the option abstention out, or set it to a sentence",
            )
        if isinstance(self.gate, Gate):
            return self.gate
        settings = {name: getattr(self, name) for name, gates in _GATES_OF.items() if self.gate in gates}
        return GATES[self.gate](**settings)

    @property
    def first_abstention(self) -> str | None:
        """The reply that the first prompt demands if the summaries lack the answer.

        None if the prompt demands no such reply.
        """
        return None if self.abstention is False else self.abstention or ABSTENTION

    @property
    def resolved_threshold(self) -> float:
        """The threshold in use: the option ``threshold``, or else the gate's default threshold.

        Raises:
            ConfigurationError: If the option ``threshold`` is None and the gate has no default threshold.
        """
        gate = self.resolved_gate
        return threshold_value(self.threshold, gate.threshold, f"the gate {gate.name}")
