"""The public class of L-RAG."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from pydantic import PrivateAttr

from surerag.component import AnsweringComponent, Service
from surerag.effects import Program
from surerag.errors import InputError
from surerag.messages import Passage
from surerag.methods.lazy_rag.algorithm import lazy_rag
from surerag.methods.lazy_rag.gates import Gate, check_gate, gate_of_text
from surerag.methods.lazy_rag.options import LazyRAGOptions
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.methods.shared import check_threshold
from surerag.readers.parameters import Learned, LeftOutWarning
from surerag.readers.protocol import Capabilities, Reader
from surerag.services import Retriever, Services
from surerag.text import check_abstention

_BY_TEXT = "L-RAG decides by the text alone"
_AGREEMENTS = 20
"""Number of successive questions whose samples all agree, after which a component warns."""


class FixedSummary:
    """A retriever that always returns the same summary, for a corpus of one document."""

    def __init__(self, text: str) -> None:
        if not text.strip():
            raise InputError(
                "the summary is empty", hint="pass the document's first sentences, or its abstract"
            )
        self._passages = [Passage(text, id="summary")]

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Return the summary as a list of one passage, for any query."""
        return self._passages


class LazyRAG(LazyRAGOptions, AnsweringComponent[LazyRAGResult]):
    """L-RAG: answers from summaries, and retrieves passages only if a gate decides that the reader is unsure.

    Example:
        >>> from surerag import FakeReader, LazyRAG, Passage
        >>> from surerag.encoders import HashingEncoder
        >>> from surerag.retrieval import PassageIndex
        >>> index = PassageIndex.from_passages([Passage("Ada plays the harp.")], HashingEncoder())
        >>> rag = LazyRAG(FakeReader(["Velm"], entropy=0.1), index, summaries="Ada was born in Velm.")
        >>> result = rag.run("Where was Ada born?")
        >>> result.answer, result.decision.retrieve, result.usage.requests
        ('Velm', False, 1)
    """

    TITLE = "L-RAG"

    reader: Service[Reader | None] = None
    """The model that answers."""

    retriever: Service[Retriever | None] = None
    """Finds passages (the paper's tier 2); called only if the gate decides to retrieve."""

    summaries: Service[Retriever | str | None] = None
    """Finds summaries of documents (tier 1 of the paper). For a single document, pass its summary as text."""

    _equal_samples: int = PrivateAttr(0)
    _learned: Learned = PrivateAttr(default_factory=Learned)

    def __init__(
        self,
        reader: Reader | None = None,
        retriever: Retriever | None = None,
        summaries: Retriever | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**{"reader": reader, "retriever": retriever, "summaries": summaries, **options})

    @classmethod
    def options_for(cls, capabilities: Capabilities) -> dict[str, Any]:
        """Return the option ``gate`` with the best gate that a reader with these capabilities supports."""
        if capabilities.entropy:
            return {"gate": "entropy"}
        return {"gate": "margin" if capabilities.logprobs else "abstention"}

    def _connect(self) -> Services:
        check_abstention(None if self.abstention is False else self.abstention)
        summaries = FixedSummary(self.summaries) if isinstance(self.summaries, str) else self.summaries
        services = Services(reader=self.reader, retriever=self.retriever, summaries=summaries)
        reader, _, _ = services.require("LazyRAG", "reader", "retriever", "summaries")
        check_gate(self.resolved_gate, reader)
        _ = self.resolved_threshold  # raises without a threshold
        check_threshold(self.threshold, self)
        return services

    @property
    def gate_in_use(self) -> Gate:
        """The gate that decides on retrieval: usually the gate of the option ``gate``.

        It is the abstention gate if the reader returns no log-probabilities, the option's gate needs them,
        and the first prompt tells the reader to abstain if the summaries lack the answer.
        """
        gate, reader = self.resolved_gate, self.services.reader
        if gate.needs == "text" or reader is None or reader.gives_logprobs or self.first_abstention is None:
            return gate
        return gate_of_text(gate, self.first_abstention)

    def program(self, question: str) -> Program[LazyRAGResult]:
        """Return the generator that answers one question; ``surerag.drivers`` runs it.

        Raises:
            InputError: If the question is empty.
            ServiceError: If the retriever fails, or the reader fails when it answers from passages.
        """
        result = yield from lazy_rag(question, self, self.answer_tokens, self.gate_in_use)
        self._watch_gate(result)
        self._watch_samples(result)
        return result

    def _watch_gate(self, result: LazyRAGResult) -> None:
        reader, gate = self.services.reader, self.resolved_gate.name
        if result.decision.gate == gate or not self._learned_of(reader).note(_BY_TEXT):
            return
        warnings.warn(
            f"{getattr(reader, 'name', 'the reader')} returned no usable log-probabilities, so L-RAG "
            f"decides by the gate {result.decision.gate} in place of {gate}",
            LeftOutWarning,
            stacklevel=2,
        )

    def _learned_of(self, reader: object) -> Learned:
        learned: Learned = getattr(reader, "learned", self._learned)
        return learned

    def _watch_samples(self, result: LazyRAGResult) -> None:
        if not self.resolved_gate.n_samples or self._equal_samples < 0:
            return
        self._equal_samples = self._equal_samples + 1 if result.decision.score == 0 else -1
        if self._equal_samples == _AGREEMENTS:
            warnings.warn(
                f"for each of {_AGREEMENTS} questions in a row, all sampled answers agree; if the model "
                "ignores the temperature, samples do not measure its certainty: choose another gate",
                UserWarning,
                stacklevel=2,
            )
