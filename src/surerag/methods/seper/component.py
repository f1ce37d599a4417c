"""The public class of SePer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from surerag import drivers
from surerag.component import Component, Service
from surerag.effects import Program
from surerag.entailment import JudgeEntailer
from surerag.messages import Passage
from surerag.methods.seper.algorithm import delta_seper, passage_utilities
from surerag.methods.seper.options import SePerOptions
from surerag.methods.seper.result import PassageUtilities, SePerResult
from surerag.readers.protocol import Reader
from surerag.services import Entailer, Services


class SePer(SePerOptions, Component[SePerResult]):
    """Measures how much retrieval raises the reader's belief in the right answers (ΔSePer).

    Example:
        >>> from surerag import FakeReader, Passage
        >>> from surerag.entailment import ExactEntailer
        >>> reader = FakeReader(lambda prompt: "Velm" if "Documents" in prompt else "Orun")
        >>> seper = SePer(reader, ExactEntailer())
        >>> result = seper.run("Where?", ["Velm"], [Passage("Ada was born in Velm.")])
        >>> result.before.seper, result.after.seper, result.delta
        (0.0, 1.0, 1.0)
    """

    TITLE, JUDGES = "SePer", True

    reader: Service[Reader | None] = None
    """The model whose belief is measured. If it returns no log-probabilities, the sampled answers are
    weighted by their frequency."""

    entailer: Service[Entailer | Reader | None] = None
    """Judges whether two answers mean the same: an NLI model, or a reader that is asked for its judgement."""

    def __init__(
        self, reader: Reader | None = None, entailer: Entailer | Reader | None = None, **options: Any
    ) -> None:
        super().__init__(**{"reader": reader, "entailer": entailer, **options})

    def _connect(self) -> Services:
        judge = JudgeEntailer(self.entailer) if isinstance(self.entailer, Reader) else self.entailer
        services = Services(reader=self.reader, entailer=judge)
        services.require("SePer", "reader", "entailer")
        return services

    def program(
        self, question: str, references: Sequence[str], passages: Sequence[Passage]
    ) -> Program[SePerResult]:
        """Return the generator that measures ΔSePer for one question.

        Raises:
            InputError: If the question, the references or the passages are empty.
            ServiceError: If a model fails, or more than 10 % of the entailer's replies cannot be used.
        """
        return delta_seper(question, references, passages, self)

    def passage_utilities(
        self, question: str, references: Sequence[str], passages: Sequence[Passage]
    ) -> PassageUtilities:
        """Measure ΔSePer of each passage alone, and how much SePer falls if the passage is left out.

        For k passages, answers are sampled in 2 k + 2 contexts. Errors are those of :meth:`program`.
        """
        program = passage_utilities(question, references, passages, self)
        return drivers.run(program, self.services, on_event=self.on_event)

    async def apassage_utilities(
        self, question: str, references: Sequence[str], passages: Sequence[Passage]
    ) -> PassageUtilities:
        """Measure ΔSePer of each passage without blocking the event loop; see :meth:`passage_utilities`."""
        program = passage_utilities(question, references, passages, self)
        return await drivers.arun(program, self.services, on_event=self.on_event)
