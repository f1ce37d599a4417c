"""SePer as a public class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from surerag.component import Component, asynchronous, sync
from surerag.effects import Program
from surerag.messages import Passage
from surerag.methods.seper.algorithm import delta_seper, passage_utilities, steps_of
from surerag.methods.seper.options import SePerOptions
from surerag.methods.seper.result import SePerResult, UtilityResult
from surerag.readers.protocol import Reader
from surerag.services import Entailer, Services


class SePerCase(NamedTuple):
    """A question with its gold answers, and what was retrieved for it."""

    question: str
    golds: Sequence[str]
    passages: Sequence[Passage]


@dataclass(frozen=True)
class SePer(Component[tuple[str, Sequence[str], Sequence[Passage]], SePerResult], SePerOptions):
    """What retrieval was worth to a reader: its belief in the gold answers with context, minus without.

    :meth:`utilities` measures single passages. A case of many is a :class:`SePerCase`, or a tuple like it.

    Attributes:
        reader: The model whose belief is measured. Without log-probabilities, answers are weighted by
            how often they were sampled; the result says so, and a warning is logged.
        entailer: Judges whether answers mean the same.

    Raises:
        ConfigurationError: If an option is out of bounds, or a service of the wrong kind.
        MissingServiceError: If reader or entailer is missing.

    Example:
        >>> from surerag import Passage, FakeReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = FakeReader(lambda prompt: "Velm" if "Documents" in prompt else "Orun")
        >>> seper = SePer(reader, ExactEntailer())
        >>> result = seper.run("Where?", ["Velm"], [Passage("Ada was born in Velm.")])
        >>> result.before.seper, result.after.seper, result.delta
        (0.0, 1.0, 1.0)
    """

    reader: Reader = field(repr=False)
    entailer: Entailer = field(repr=False)

    def _connected(self) -> Services:
        services = Services(reader=self.reader, entailer=self.entailer)  # type: ignore[arg-type]  # completed by Services
        services.require("SePer", "reader", "entailer")
        return services

    def worst_case_calls(self, passages: int = 0, golds: int = 1) -> int:
        """Calls of reader and entailer that one question can cost: samples, and pairs of answers.

        Two contexts are sampled; adaptive sampling draws its first samples anew in each step. Each answer is
        judged against each gold answer, with the hard kernel against the others of its context as well, in
        one direction or both. :meth:`utilities` costs k + 1 times as much for k passages. Fewer samples would
        measure something else, so that there is no ``max_calls``: lower ``n_samples``.

        Args:
            passages: Of no matter here.
            golds: Gold answers.

        Example:
            >>> from surerag import FakeReader
            >>> from surerag.entailment import ExactEntailer
            >>> SePer(FakeReader(), ExactEntailer()).worst_case_calls()
            60
        """
        steps = list(steps_of(self))
        samples = 2 * sum(steps)
        pairs = samples * golds
        if self.kernel == "hard":
            pairs += sum(n * (n - 1) for n in steps)
        return samples + (2 if self.kernel == "hard" or self.rules.direction == "both" else 1) * pairs

    def program(
        self, question: str, golds: Sequence[str], passages: Sequence[Passage]
    ) -> Program[SePerResult]:
        """Return the method at work on one case, for a driver of your own.

        Args:
            question: Not empty.
            golds: Gold answers, at least one.
            passages: What was retrieved, at least one.

        Raises:
            InputError: If one of them is missing or empty.
            ServiceError: If the reader or the entailer fails.
        """
        return delta_seper(question, golds, passages, self)

    run, arun = sync(program), asynchronous(program)

    def utility_program(
        self, question: str, golds: Sequence[str], passages: Sequence[Passage]
    ) -> Program[UtilityResult]:
        """Return the measurement of each passage for one case, for a driver of your own.

        Each passage is added alone, and left out of all the others: 2 k + 2 contexts for k passages.

        Args:
            question: Not empty.
            golds: Gold answers, at least one.
            passages: What was retrieved, at least one.

        Raises:
            InputError: If one of them is missing or empty.
            ServiceError: If the reader or the entailer fails.
        """
        return passage_utilities(question, golds, passages, self)

    utilities, autilities = sync(utility_program), asynchronous(utility_program)
