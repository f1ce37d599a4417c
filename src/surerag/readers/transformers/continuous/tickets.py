"""What runs: sequences in the library's batch, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from surerag.errors import LogprobsError, ServiceError
from surerag.readers.transformers.decoding import Opinion, choose
from surerag.readers.transformers.growing import GrowingSequence
from surerag.readers.transformers.sequences import has_begun


class Ticket:
    """A sequence of the running batch, whose thread alone changes it.

    Attributes:
        name: The library's name for its request.
        sequence: What there is of it; to be looked at once it has ended.
        until: Tokens of an answer with which it has begun; None if nobody asks.
        seen: What there was of it when it had begun; of one that is watched, at the newest token.
        watched: Whether somebody wants to see every token.
        unwanted: Whether it shall leave at the next step.
        failure: What became of it, if it cannot end.
        news: Set whenever there is something to look at.
    """

    def __init__(self, name: str, sequence: GrowingSequence, until: int | None = None) -> None:
        self.name = name
        self.sequence = sequence
        self.until = until
        self.seen: GrowingSequence | None = None
        self.watched = False
        self.unwanted = False
        self.failure: Exception | None = None
        self.news = threading.Event()

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.failure is not None or self.sequence.ended is not None

    @property
    def begun(self) -> bool:
        """Whether there is as much of it as was asked for first."""
        return self.over or self.seen is not None

    @property
    def shown(self) -> GrowingSequence:
        """What there is to be seen of it."""
        return self.sequence if self.seen is None else self.seen

    def take(self, opinion: Opinion) -> None:
        """Take the next token."""
        self.sequence.accept(opinion)
        begins = self.until is not None and self.seen is None and has_begun(self.sequence, self.until)
        if begins or self.watched:
            self.seen = self.sequence.fork()
        if begins or self.watched or self.over:
            self.news.set()

    def fail(self, error: Exception) -> None:
        """Note that it cannot go on."""
        self.failure = error
        self.news.set()


class Seat:
    """A place in the batch: it is given up when whoever holds it lets go of it."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket

    def leave(self) -> None:
        """Have the sequence leave at its next step."""
        self.ticket.unwanted = True

    # Nothing is waited for, since a garbage collector may do this in the middle of anything.
    __del__ = leave


class Tickets:
    """All sequences of a running batch, by name."""

    def __init__(self) -> None:
        self._running: dict[str, Ticket] = {}
        self._ended = False

    @property
    def names(self) -> list[str]:
        """Who is expected in the batch."""
        return list(self._running)

    def join(self, tickets: Sequence[Ticket]) -> None:
        """Expect these in the batch.

        Raises:
            ServiceError: If it has ended.
        """
        self._running.update({ticket.name: ticket for ticket in tickets})
        # Looked at last: whoever ends it says so first, and then tells those that he finds.
        if self._ended:
            raise ended()

    def step(self, names: Sequence[str], logits: Tensor) -> tuple[Tensor, list[int]]:
        """Give the sequences of these names one more token each.

        Args:
            names: The rows.
            logits: Raw logits [rows, vocabulary], float32.

        Returns:
            The tokens [rows], and which rows leave: they have ended, or nobody wants them.
        """
        found = [self._running.get(name) for name in names]
        growing = [(row, ticket) for row, ticket in enumerate(found) if ticket and not ticket.unwanted]
        tokens = torch.zeros(len(names), dtype=torch.long)
        rows = logits if len(growing) == len(names) else logits[[row for row, _ in growing]]
        for (row, ticket), opinion in zip(growing, _choices(rows, [t for _, t in growing]), strict=True):
            if opinion is not None:
                tokens[row] = opinion.token
                ticket.take(opinion)
        staying = {row for row, ticket in growing if not ticket.over}
        leaving = [row for row in range(len(names)) if row not in staying]
        for row in leaving:
            self._running.pop(names[row], None)
        return tokens.to(logits.device), leaving

    def end(self, cause: BaseException | None) -> None:
        """Tell everybody that the batch has ended."""
        self._ended = True
        for ticket in list(self._running.values()):
            ticket.fail(ended(cause))
        self._running.clear()


def ended(cause: BaseException | None = None) -> ServiceError:
    """Return what to raise where the batch has ended, and why."""
    error = ServiceError(
        f"the running batch has ended: {cause or 'it was stopped'}",
        hint="ask again: a new one is begun; if memory was short, lower max_batch_tokens",
    )
    error.__cause__ = cause
    return error


def _choices(logits: Tensor, tickets: Sequence[Ticket]) -> list[Opinion | None]:
    """Choose the next token of each; None for one whose logits are not numbers, which fails alone."""
    if not tickets:
        return []
    draws = [ticket.sequence.draw for ticket in tickets]
    try:
        return [*choose(logits, draws)]
    except LogprobsError as error:
        if len(tickets) == 1:
            tickets[0].fail(error)
            return [None]
    return [_choices(logits[row : row + 1], [ticket])[0] for row, ticket in enumerate(tickets)]
