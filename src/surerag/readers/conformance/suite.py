"""The suite: cases to run one by one, and a report of them all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from surerag.errors import SureragError
from surerag.readers.conformance.checks import CHECKS, Check
from surerag.readers.conformance.trial import NotApplicableError, Trial
from surerag.services import as_reader

if TYPE_CHECKING:
    from rich.table import Table

Status = Literal["passed", "failed", "skipped"]


class Outcome(NamedTuple):
    """What one check found.

    Attributes:
        check: What was checked.
        status: Skipped where it does not apply to this reader.
        detail: What is wrong, or why it was skipped.
    """

    check: str
    status: Status
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return self.status != "failed"


@dataclass(frozen=True)
class Case:
    """One check, ready to run on any reader.

    Attributes:
        check: The check itself.
    """

    check: Check

    def __str__(self) -> str:
        return self.check.__name__

    def run(self, reader: object, trial: Trial | None = None) -> Outcome:
        """Check a reader.

        Args:
            reader: Anything with the methods of :class:`surerag.readers.Reader`.
            trial: What it is asked, and how exact it has to be.

        Returns:
            What was found. An unexpected error counts as a failure, and is named.
        """
        name = str(self).replace("_", " ")
        try:
            self.check(as_reader(reader), trial or Trial())
        except NotApplicableError as reason:
            return Outcome(name, "skipped", str(reason))
        except SureragError as error:
            return Outcome(name, "failed", str(error))
        except Exception as error:
            return Outcome(name, "failed", f"{type(error).__name__}: {error}")
        return Outcome(name, "passed")


@dataclass(frozen=True)
class ConformanceReport:
    """What a reader was found to do; prints as text, and as a table with rich.

    Attributes:
        reader: Name of the reader.
        outcomes: One for each check.
    """

    reader: str
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(outcome.passed for outcome in self.outcomes)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The checks that failed."""
        return tuple(outcome for outcome in self.outcomes if not outcome.passed)

    def count(self, status: Status) -> int:
        """Return how many checks ended like this."""
        return sum(outcome.status == status for outcome in self.outcomes)

    def __str__(self) -> str:
        lines = [f"  {o.status:<8}{o.check}{': ' if o.detail else ''}{o.detail}" for o in self.outcomes]
        return "\n".join([self._title, *lines])

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table("", "check", "found", title=self._title, title_justify="left")
        colours: dict[Status, str] = {"passed": "green", "failed": "red", "skipped": "yellow"}
        for outcome in self.outcomes:
            status = Text(outcome.status, style=colours[outcome.status])
            table.add_row(status, Text(outcome.check), Text(outcome.detail))
        return table

    @property
    def _title(self) -> str:
        counts = ", ".join(f"{self.count(status)} {status}" for status in ("passed", "failed", "skipped"))
        return f"{self.reader}: {counts}"


def conformance_cases() -> list[Case]:
    """Return every check, for a test runner to run one by one."""
    return [Case(check) for check in CHECKS]


def check_reader(reader: object, trial: Trial | None = None, **settings: Any) -> ConformanceReport:
    """Run every check on a reader.

    Args:
        reader: Anything with the methods of :class:`surerag.readers.Reader`. The same prompt must get
            the same answer at temperature 0.
        trial: What it is asked, and how exact it has to be.
        **settings: Fields of :class:`Trial`, in place of the trial's own.

    Returns:
        What was found.

    Example:
        >>> from surerag.readers.fake import FakeReader
        >>> check_reader(FakeReader(lambda prompt: f"It is {prompt.split()[-1]}")).passed
        True
    """
    asked = replace(trial or Trial(), **settings)
    known = as_reader(reader)
    return ConformanceReport(known.name, tuple(case.run(known, asked) for case in conformance_cases()))
