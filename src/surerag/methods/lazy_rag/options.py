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
"""By option: the names of the gates that read it."""


class LazyRAGOptions(Options):
    """Options of L-RAG, in the core and in both frameworks.

    The paper's own algorithm is ``top_n=3, n_summaries=1, abstention=False`` with a ``threshold`` of 0.5, 1.0
    or 1.5.
    """

    PROMPTS: ClassVar[PromptSet] = PromptSet(
        closed_book=CLOSED_BOOK, from_context=FROM_CONTEXT, from_context_and_details=FROM_CONTEXT_AND_DETAILS
    )

    gate: Literal["entropy", "margin", "semantic_entropy", "abstention"] | InstanceOf[Gate] = "entropy"
    """Decides whether to retrieve, besides an abstention in the first pass: ``"entropy"`` of the first tokens
    (the paper's); ``"margin"`` of the likeliest token, for servers that list no alternatives;
    ``"abstention"`` alone, for models without log-probabilities, at one call; ``"semantic_entropy"`` of a few
    sampled answers, for such models too; or a ``Gate`` with its own settings."""

    threshold: ThresholdOption = None
    """Retrieve iff the gate's score is greater than this number (τ). None is the gate's own threshold: 0.5
    nats of entropy, 0.2 of 1 − margin, 0.3 nats of semantic entropy. An abstention opens the gate at any
    threshold. A ``ThresholdPolicy`` from a calibration is also possible; it is refused if it was calibrated
    for another reader, gate, retriever or prompt."""

    n_tokens: int = Field(default=N_TOKENS, ge=1)
    """Number of tokens of the first pass that the gates ``"entropy"`` and ``"margin"`` read (n of Eq. 3)."""

    n_samples: int = Field(default=N_SAMPLES, ge=2)
    """Number of answers to sample for the gate ``"semantic_entropy"``; each is a call of the reader."""

    top_n: int | None = Field(default=None, ge=1)
    """Maximum number of passages to show; None shows all passages that the retriever returns."""

    n_summaries: int = Field(default=3, ge=1)
    """Number of summaries to show in the first pass."""

    max_tokens: AnswerTokensOption = None
    """Longest answer in tokens; None is the reader's own limit."""

    abstention: str | Literal[False] | None = None
    """The reply that the reader must give if nothing supports an answer. Such a first answer opens the gate,
    and is not shown. None asks for ``"I do not know."`` in the first pass only; a sentence is asked for in
    both passes; False asks for no such reply, as in the paper."""

    prompts: PromptsOption = prompts_field()
    """Prompts in place of the method's own, by name: ``closed_book`` (slot ``question``), ``from_context``
    (``context``, ``question``) and ``from_context_and_details`` (``context``, ``details``, ``question``)."""

    @field_validator("gate", mode="before")
    @classmethod
    def _gate_from_settings(cls, value: Any) -> Any:
        """Turn the settings of a gate, as serialised options hold them, into the gate."""
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
        """The gate that these options describe.

        Raises:
            ConfigurationError: If an option is set that this gate does not read, or if it needs an abstention
                that the reader is not asked for.
        """
        for name, gates in _GATES_OF.items():
            changed = getattr(self, name) != type(self).model_fields[name].default
            if changed and self.gate not in gates:
                named = self.gate.name if isinstance(self.gate, Gate) else self.gate
                raise ConfigurationError(
                    f"{name} is for the gate {' or '.join(gates)}, but the gate is {named}",
                    hint=f"leave it out, or set it in your own gate, such as EntropyGate({name}=…)",
                )
        if self.first_abstention is None and (
            self.gate == "abstention" or isinstance(self.gate, AbstentionGate)
        ):
            raise ConfigurationError(
                "the gate abstention opens if the first pass abstains, but the reader is not asked to",
                hint="leave abstention out, or set it to a sentence",
            )
        if isinstance(self.gate, Gate):
            return self.gate
        settings = {name: getattr(self, name) for name, gates in _GATES_OF.items() if self.gate in gates}
        return GATES[self.gate](**settings)

    @property
    def first_abstention(self) -> str | None:
        """The reply that the first pass must give if the summaries do not have the answer, or None."""
        return None if self.abstention is False else self.abstention or ABSTENTION

    @property
    def resolved_threshold(self) -> float:
        """The threshold as a number.

        Raises:
            ConfigurationError: If none is set, and the gate has no default.
        """
        gate = self.resolved_gate
        return threshold_value(self.threshold, gate.threshold, f"the gate {gate.name}")
