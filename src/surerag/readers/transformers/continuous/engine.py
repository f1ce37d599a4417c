"""The engine whose batch is always running; takes and gives what :class:`Engine` does."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.readers.abandoned import stop_if_abandoned
from surerag.readers.transformers.continuous.loop import Loop, check_version
from surerag.readers.transformers.continuous.tickets import Seat, Ticket
from surerag.readers.transformers.engine import Engine
from surerag.readers.transformers.growing import Asked, GrowingSequence, Wanted
from surerag.readers.transformers.lent import LAST_STEP
from surerag.readers.transformers.model import CausalModel
from surerag.readers.transformers.sequences import Handle, close
from surerag.types import Sampling, TokenTrace

# Seconds between two looks whether anybody still waits.
_PATIENCE = 0.1
# How far two ways of computing the same may lie apart, in nats, in float32 and in half precision.
_EXACT, _HALF = 1e-3, 0.3
_OWN = "use engine='own', which takes any causal language model"


class Joined(Handle):
    """A generation that was begun, and goes on in the running batch.

    Attributes:
        seat: Its place there; None once it was finished, streamed or cancelled.
        finishing: Whether somebody waits for its end.
    """

    def __init__(self, owner: CausalModel, seat: Seat) -> None:
        super().__init__(owner, seat.ticket.shown, None, 0)
        self.seat: Seat | None = seat
        self.finishing = False


class Watched:
    """A sequence that is looked at token by token; it leaves the batch when this is dropped.

    Attributes:
        sequences: What there is of it, a list of one.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        seat.ticket.watched = True
        self.sequences = [seat.ticket.shown]

    def step(self) -> None:
        """Wait for the next token."""
        ticket, before = self._seat.ticket, self.sequences[0]
        _wait([ticket], lambda ticket: ticket.over or ticket.seen is not before)
        self.sequences = [ticket.sequence if ticket.over else ticket.shown]


class ContinuousEngine:
    """Has sequences join and leave the library's running batch. Calls of several threads run side by side.

    What is begun goes on while its caller decides: to finish is to wait for its end, to cancel is to leave.
    Given text is scored by our own engine, between two steps of the batch.

    Args:
        model: The model. Nobody else may call it meanwhile.
        tokenizer: Its tokenizer.
        max_batch_tokens: Tokens that the cache holds, prompts and answers together; it is taken at once.
        min_shared: Shortest prefix that is worth sharing where text is scored.
        kept_bytes: Memory for prompts that are kept from one scoring to the next.

    Raises:
        ConfigurationError: If the library's version was not tried, or the model cannot be run in this way.
    """

    def __init__(
        self,
        model: CausalModel,
        tokenizer: PreTrainedTokenizerBase,
        max_batch_tokens: int,
        min_shared: int,
        kept_bytes: int = 0,
    ) -> None:
        check_version()
        self._model = model
        self._tokens = max_batch_tokens
        # What the cache leaves free is for encoders and judges, too.
        self._own = Engine(model, tokenizer, max(1, max_batch_tokens // 4), min_shared, kept_bytes)
        self._turn, self._scoring = threading.Lock(), threading.Lock()
        _check_kind(model, self._own)
        try:
            self._loop = self._started()
        except ValueError as error:
            # How the library refuses a way of computing attention.
            raise _refusal(model, str(error)) from error
        try:
            self._compare()
        except ServiceError as error:
            self._loop.stop()
            self._loop.ended(LAST_STEP)
            raise _refusal(model, str(error.__cause__ or error)) from error
        self._read = -self._own.tokens_read

    @property
    def tokens_read(self) -> int:
        """Tokens of prompts: samples count once. What different prompts share is not taken off."""
        return self._read + self._own.tokens_read

    def generate(self, wanted: Sequence[Wanted]) -> list[list[GrowingSequence]]:
        """Grow ``sampling.n`` sequences from each prompt until they end."""
        # Without chance, all samples are one.
        counts = [1 if one.sampling.temperature == 0 else one.sampling.n for one in wanted]
        asked = [(one, range(n)) for one, n in zip(wanted, counts, strict=True)]
        grown = iter(self._joined(asked, None, lambda ticket: ticket.over))
        rows = [[next(grown).ticket.sequence for _ in range(n)] for n in counts]
        return [row * (one.sampling.n // n) for one, n, row in zip(wanted, counts, rows, strict=True)]

    def begin(self, wanted: Sequence[Wanted], n_tokens: int) -> list[Handle]:
        """Grow the first sample of each prompt to so many tokens of an answer; they go on from there."""
        asked = [(one, range(1)) for one in wanted]
        seats = self._joined(asked, n_tokens, lambda ticket: ticket.begun)
        return [Joined(self._model, seat) for seat in seats]

    def finish(self, handles: Sequence[Handle]) -> list[GrowingSequence]:
        """Wait until what was begun has ended."""
        seats = self._taken(handles, finishing=True)
        try:
            _wait([seat.ticket for seat in seats], lambda ticket: ticket.over)
        except BaseException:
            self._taken(handles, finishing=False)
            raise
        for handle, seat in zip(handles, seats, strict=True):
            handle.sequence = seat.ticket.sequence
        close(handles, "finished")
        self._let_go(handles)
        return [handle.sequence for handle in handles]

    def resume(self, handles: Sequence[Handle]) -> Watched:
        """Show one sequence as it grows; it is finished by that."""
        (seat,) = self._taken(handles, finishing=False)
        self._let_go(handles)
        return Watched(seat)

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Have what was begun leave the batch, unless somebody is finishing it."""
        with self._turn:
            gone = [handle for handle in handles if isinstance(handle, Joined) and not handle.finishing]
        close(gone, "cancelled")
        for handle in gone:
            if handle.seat is not None:
                handle.seat.leave()
        self._let_go(gone)

    def score(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
    ) -> list[TokenTrace]:
        """Return what the model thinks of each continuation."""
        with self._scoring, self._running().paused():
            return self._own.score(prompts, continuations)

    def _joined(
        self, asked: Sequence[tuple[Wanted, range]], until: int | None, ready: Callable[[Ticket], bool]
    ) -> list[Seat]:
        """Have samples of prompts join the batch, and wait until they are ready."""
        loop, seats = self._running(), []
        try:
            for wanted, samples in asked:
                sequences = [self._own.sequence(wanted, sample) for sample in samples]
                seats += [Seat(ticket) for ticket in loop.join(wanted.asked.ids, sequences, until)]
                with self._turn:
                    self._read += len(wanted.asked.ids)
            _wait([seat.ticket for seat in seats], ready)
        except BaseException:
            for seat in seats:
                seat.leave()
            raise
        return seats

    def _taken(self, handles: Sequence[Handle], *, finishing: bool) -> list[Seat]:
        """Say who is waited for, and return their seats."""
        with self._turn:
            found = [handle for handle in handles if isinstance(handle, Joined) and handle.seat is not None]
            if len(found) < len(handles):
                raise InputError("this generation was finished or cancelled before", hint="begin it again")
            for handle in found:
                handle.finishing = finishing
            return [handle.seat for handle in found if handle.seat is not None]

    def _let_go(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            if isinstance(handle, Joined):
                handle.seat, handle.finishing = None, False

    def _running(self) -> Loop:
        """Return the batch; a new one, where it has ended."""
        with self._turn:
            if not self._loop.alive:
                self._loop.ended(LAST_STEP)
                self._loop = self._started()
            return self._loop

    def _started(self) -> Loop:
        loop = Loop(self._model, self._tokens)
        weakref.finalize(self, loop.stop).atexit = False
        return loop

    def _compare(self) -> None:
        """Find out by trying whether the library's batch computes what the model computes.

        Raises:
            ServiceError: If it does not, or cannot run.
        """
        prompts = [[(7 * at + 3) % self._model.vocabulary for at in range(length)] for length in (2, 45)]
        sequences = [
            self._own.endless(Wanted(Asked(prompt), Sampling(max_tokens=min(3, self._tokens - len(prompt)))))
            for prompt in prompts
            if len(prompt) < self._tokens
        ]
        tickets = [self._loop.join(one.asked.ids, [one])[0] for one in sequences]
        _wait(tickets, lambda ticket: ticket.over)
        with self._loop.paused():
            expected = self._own.score(
                [one.asked.ids for one in sequences], [one.tokens for one in sequences]
            )
        found = [value for one in sequences for value in _values(one.generation().trace)]
        wanted = [value for trace in expected for value in _values(trace)]
        apart = max((abs(a - b) for a, b in zip(found, wanted, strict=True)), default=0.0)
        # Written so that what is not a number fails, too.
        if not apart <= (_EXACT if self._model.exact else _HALF):
            raise ServiceError(f"its log-probabilities there differ from the model's by {apart:.2g} nats")


def _values(trace: TokenTrace | None) -> list[float]:
    return [] if trace is None else [*trace.logprobs, *(trace.logsumexp or ())]


def _wait(tickets: Sequence[Ticket], ready: Callable[[Ticket], bool]) -> None:
    """Wait for each of these.

    Raises:
        AbandonedError: If nobody waits for them any more.
        Exception: What one of them failed with.
    """
    for ticket in tickets:
        while not ready(ticket):
            stop_if_abandoned()
            ticket.news.wait(_PATIENCE)
            ticket.news.clear()
    for ticket in tickets:
        if ticket.failure is not None:
            raise ticket.failure


def _check_kind(model: CausalModel, own: Engine) -> None:
    """Refuse what the library's batch is not for.

    Raises:
        ConfigurationError: If so.
    """
    if not own.shares:
        raise _refusal(model, "its state cannot be cut into pages")
    if model.compiled:
        raise _refusal(model, "it was compiled, and the library would run what is inside")
    if model.devices > 1:
        raise _refusal(model, f"it lies on {model.devices} devices, and the cache is on one")


def _refusal(model: CausalModel, reason: str) -> ConfigurationError:
    kind = type(model.bare).__name__
    return ConfigurationError(f"{kind} cannot run with engine='continuous': {reason}", hint=_OWN)
