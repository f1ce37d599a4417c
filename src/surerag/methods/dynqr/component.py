"""The public class of DynQR's inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from surerag.component import AnsweringComponent, Service
from surerag.effects import Program
from surerag.messages import Message
from surerag.methods.dynqr.algorithm import rewrite_when_uncertain
from surerag.methods.dynqr.metrics import check_metric
from surerag.methods.dynqr.options import DynQROptions
from surerag.methods.dynqr.result import DynQRResult
from surerag.methods.shared import check_threshold
from surerag.readers.protocol import Capabilities, Reader
from surerag.services import Retriever, Services
from surerag.text import check_abstention


class UncertaintyRewriter(DynQROptions, AnsweringComponent[DynQRResult]):
    """DynQR: rewrites the query if the reader is unsure of its answer, and keeps the less uncertain answer.

    For :meth:`run_many`, pass a question with a conversation as a pair (question, history).

    Example:
        >>> from surerag import FakeReader, Passage, UncertaintyRewriter
        >>> from surerag.readers.fake import reply
        >>> class Corpus:
        ...     def retrieve(self, query, k):
        ...         return [Passage("Ada was born in Velm." if "Ada" in query else "The painter left early.")]
        >>> reader = FakeReader([reply("Orun", logprobs=-1.5), "Where was Ada born?",
        ...                          reply("Velm", logprobs=-0.1)])
        >>> result = UncertaintyRewriter(reader, Corpus()).run("Where was the painter born?")
        >>> result.answer, result.query, round(result.original.uncertainty, 2), round(result.uncertainty, 2)
        ('Velm', 'Where was Ada born?', 4.48, 1.11)
    """

    TITLE = "DynQR"

    reader: Service[Reader | None] = None
    """The model that answers."""

    retriever: Service[Retriever | None] = None
    """Finds passages for the question and for rewritten queries."""

    rewriter: Service[Reader | None] = None
    """The model that rewrites queries, which needs no special training. None means the reader."""

    def __init__(
        self,
        reader: Reader | None = None,
        retriever: Retriever | None = None,
        rewriter: Reader | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**{"reader": reader, "retriever": retriever, "rewriter": rewriter, **options})

    @classmethod
    def options_for(cls, capabilities: Capabilities) -> dict[str, Any]:
        """Return the option ``metric`` with a metric that a reader with these capabilities supports."""
        return {"metric": "perplexity" if capabilities.logprobs else "semantic_entropy"}

    def _connect(self) -> Services:
        check_abstention(self.abstention)
        services = Services(reader=self.reader, retriever=self.retriever, rewriter=self.rewriter)
        reader, _ = services.require("UncertaintyRewriter", "reader", "retriever")
        check_metric(self.metric, reader)
        _ = self.resolved_threshold  # raises without a threshold
        check_threshold(self.threshold, self)
        return services

    def program(self, question: str, history: Sequence[Message] = ()) -> Program[DynQRResult]:
        """Return the generator that answers one question; ``surerag.drivers`` runs it.

        Args:
            question: The question.
            history: The conversation before the question, oldest turn first. The prompts of the reader and
                of the rewriter contain the history. The rewriter is told to write a query that can be
                understood without the history.

        Raises:
            InputError: If the question is empty.
            ServiceError: If the first retrieval or the first answer fails.
        """
        return rewrite_when_uncertain(question, self, self.resolved_threshold, self.answer_tokens, history)
