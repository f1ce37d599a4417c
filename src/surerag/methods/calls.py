"""What a question may cost: calls of models are counted before they are made, and never exceed a bound.

A call is one answer asked of a reader or rewriter, or one ordered pair of statements asked of an entailer:
with a judge in words the two cost the same. Retrieving and embedding are no calls.
"""

from __future__ import annotations

import math
from typing import Annotated

from surerag.effects import Program, emit
from surerag.options import Doc, Within

MaxCalls = Annotated[
    int | None,
    Within(1),
    Doc(
        """Calls of models for a question, at most: answers asked of reader or rewriter, and pairs asked of
        the entailer. Where it is reached, the method stops with what it has, says so in its result, and
        warns. None for what ``worst_case_calls`` tells."""
    ),
]
"""The option ``max_calls`` of every method."""


class CallBudget:
    """Calls that a question has left.

    Args:
        most: Calls at most; None for no bound.

    Attributes:
        spent: Calls so far.
        held: Calls that are kept for later, and that nobody else gets.
        short: Whether something was left undone for want of calls.

    Example:
        >>> budget = CallBudget(5)
        >>> budget.spend(2)
        >>> budget.within(4), budget.short
        (3, True)
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.spent = 0
        self.held = 0
        self.short = False

    @property
    def left(self) -> float:
        """Calls that may still be made; infinite where there is no bound."""
        return math.inf if self.most is None else max(self.most - self.spent - self.held, 0)

    def spend(self, calls: int) -> None:
        """Note calls that are being made."""
        self.spent += calls

    def affords(self, calls: int) -> bool:
        """Return whether so many calls are left; where not, something is left undone."""
        self.short = self.short or calls > self.left
        return calls <= self.left

    def within(self, wanted: int, each: int = 1) -> int:
        """Return how many of several things are affordable at ``each`` calls."""
        if self.affords(wanted * each):
            return wanted
        return int(self.left // each)

    def tell(self, method: str, question: str) -> Program[None]:
        """Emit a warning if something was left undone for want of calls."""
        if self.short:
            yield from emit(
                f"{method}.out_of_calls",
                warning=True,
                question=question,
                max_calls=self.most,
                calls=self.spent,
            )
