"""Token ids in, grown sequences out: what is read together, what grows together, what is kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

from transformers import PreTrainedTokenizerBase

from surerag.errors import ServiceError
from surerag.messages import TokenTrace
from surerag.readers.local.forking_memory import pays
from surerag.readers.local.growing import GrowingSequence, Vocabulary, Wanted, vocabulary_of
from surerag.readers.local.memory import Part, join, joinable
from surerag.readers.local.model import CausalModel, is_out_of_memory, release_memory
from surerag.readers.local.prefill import Prefill, families, plan_readings
from surerag.readers.local.prompt_store import Read
from surerag.readers.local.scoring import score_at_once, score_rows, trace_of
from surerag.readers.local.sequences import Flight, Handle, close, release
from surerag.readers.threads import raise_if_cancelled

T = TypeVar("T")
R = TypeVar("R")


class Row(NamedTuple):
    """One sequence of a batch: its prompt, how many tokens may follow, and how many get room at once."""

    prompt: Sequence[int]
    further: int
    room: int


class Engine:
    """Reads prompts and grows what follows them, in batches that fit.

    Args:
        model: The model.
        tokenizer: Its tokenizer, for the text of tokens.
        max_batch_tokens: Tokens that one batch may hold.
        min_shared: Shortest prefix worth sharing.
        kept_bytes: Memory for prompts that are kept from call to call.
    """

    def __init__(
        self,
        model: CausalModel,
        tokenizer: PreTrainedTokenizerBase,
        max_batch_tokens: int,
        min_shared: int,
        kept_bytes: int = 0,
    ) -> None:
        self._model = model
        self._prefill = Prefill(model, kept_bytes)
        self._vocabulary = vocabulary_of(tokenizer, model.end_tokens)
        self._budget = max_batch_tokens
        self._min_shared = min_shared

    @property
    def tokens_read(self) -> int:
        """Prompt tokens that went through the model; see :class:`Prefill`."""
        return self._prefill.tokens_read

    @property
    def shares(self) -> bool:
        """Whether the model's memory is one of attention, which can be cut anywhere."""
        return self._prefill.shares

    def sequence(self, wanted: Wanted, sample: int) -> GrowingSequence:
        """Return a sample of a prompt, of which nothing was grown yet."""
        return GrowingSequence(self._vocabulary, wanted, sample)

    def endless(self, wanted: Wanted) -> GrowingSequence:
        """Return one that no token ends."""
        return GrowingSequence(Vocabulary(self._vocabulary.detokenizer, frozenset(), frozenset(), {}), wanted)

    def generate(self, wanted: Sequence[Wanted]) -> list[list[GrowingSequence]]:
        """Grow ``sampling.n`` sequences from each prompt until they end."""
        # Without chance, all samples are one.
        grown_of = [1 if one.sampling.temperature == 0 else one.sampling.n for one in wanted]
        samples = [(one, sample) for one, n in zip(wanted, grown_of, strict=True) for sample in range(n)]

        def grow(some: Sequence[int], reads: list[Read]) -> list[GrowingSequence]:
            sequences = [self.sequence(*samples[i]) for i in some]
            flight = Flight.from_reads(self._model, sequences, reads)
            reads.clear()
            return flight.fly().started

        grown = iter(self._after_reading([_row(one) for one, _ in samples], grow))
        rows = [[next(grown) for _ in range(n)] for n in grown_of]
        return [row * (one.sampling.n // n) for one, n, row in zip(wanted, grown_of, rows, strict=True)]

    def begin(self, wanted: Sequence[Wanted], n_tokens: int) -> list[Handle]:
        """Grow the first sample of each prompt to so many tokens of an answer; keep what can go on."""

        def grow(some: Sequence[int], reads: list[Read]) -> list[Handle]:
            sequences = [self.sequence(wanted[i], 0) for i in some]
            flight = Flight.from_reads(self._model, sequences, reads)
            reads.clear()
            return flight.begin(n_tokens)

        return self._after_reading([_row(one) for one in wanted], grow)

    def score(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
    ) -> list[TokenTrace]:
        """Return what the model thinks of each continuation."""
        if prompts and not self._prefill.shares:
            whole = sum(map(len, prompts)) + sum(map(len, continuations))
            apart = sum(map(len, set(map(tuple, prompts))))
            if not self._prefill.pays_apart(apart, max(map(len, continuations)), whole):
                return self._score_at_once(prompts, continuations)

        def read_on(some: Sequence[int], reads: list[Read]) -> list[TokenTrace]:
            tails = [continuations[i] for i in some]
            memory = join([read.part for read in reads], max(map(len, tails)))
            scored = score_rows(self._model, memory, reads, tails)
            return [trace_of(self._vocabulary.detokenizer(), row) for row in scored]

        rows = [
            Row(prompt, len(tail), len(tail)) for prompt, tail in zip(prompts, continuations, strict=True)
        ]
        return self._after_reading(rows, read_on)

    def _score_at_once(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
    ) -> list[TokenTrace]:
        """Score where nothing that was read can be shared: each row in a pass, many rows in a pass."""
        rows = [[*prompt, *tail] for prompt, tail in zip(prompts, continuations, strict=True)]
        found: dict[int, TokenTrace] = {}

        def read(some: Sequence[int]) -> list[None]:
            scored = score_at_once(
                self._model, [rows[i] for i in some], [len(continuations[i]) for i in some]
            )
            found.update(
                {
                    i: trace_of(self._vocabulary.detokenizer(), row)
                    for i, row in zip(some, scored, strict=True)
                }
            )
            return [None] * len(some)

        for batch in self._prefill.passes([len(row) for row in rows]):
            _fitting(batch, read)
        self._prefill.tokens_read += sum(map(len, prompts))
        return [found[index] for index in range(len(rows))]

    def finish(self, handles: Sequence[Handle]) -> list[GrowingSequence]:
        """Grow what was begun until it ends, and free it.

        What a batch has grown stays with its handles: should a later one fail, they wait to be asked for
        again, and give their answers without growing anything.
        """
        # Blocks stay together, so that a whole one goes on without being copied.
        longest: dict[int, int] = {}
        waiting = [handle for handle in handles if handle.sequence.ended is None]
        for handle in waiting:
            longest[id(handle.block)] = max(longest.get(id(handle.block), 0), handle.part.length)
        waiting.sort(key=lambda handle: (-longest[id(handle.block)], id(handle.block), handle.row))
        further = [handle.sequence.remaining for handle in waiting]
        for batch in self._batches([handle.part for handle in waiting], further):
            _fitting([waiting[i] for i in batch], self._freeing(self._complete))
        close(handles, "finished")
        return [handle.sequence for handle in handles]

    def resume(self, handles: Sequence[Handle]) -> Flight:
        """Return a flight that goes on from where these sequences are, and leaves them as they are."""
        sequences = [handle.sequence.fork() for handle in handles]
        return Flight.from_memory(self._model, sequences, [handle.part for handle in handles])

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Free what was begun."""
        close(handles, "cancelled")

    def _complete(self, handles: Sequence[Handle]) -> list[None]:
        """Grow these to their end, note their answers, and free their memory for those that follow."""
        grown = self.resume(handles).fly().started
        for handle, sequence in zip(handles, grown, strict=True):
            handle.sequence = sequence
        release(handles)
        return [None] * len(handles)

    def _after_reading(
        self, rows: Sequence[Row], work: Callable[[Sequence[int], list[Read]], list[R]]
    ) -> list[R]:
        """Read the prompts of all rows, each once, and do the work for every row, in batches.

        Args:
            rows: One for each result.
            work: Takes numbers of rows and what was read for them, which it may let go of; returns a
                result for each.
        """
        numbers: dict[tuple[int, ...], list[int]] = {}
        for index, row in enumerate(rows):
            numbers.setdefault(tuple(row.prompt), []).append(index)
        prompts, members = list(numbers), list(numbers.values())
        room = max((row.room for row in rows), default=0)
        results: dict[int, R] = {}

        def read_and_work(some: Sequence[int]) -> list[None]:
            raise_if_cancelled()
            held: list[Read] = []
            chosen = [(place, i) for place, prompt in enumerate(some) for i in members[prompt]]

            def read() -> list[Read]:
                if not held:
                    held.extend(
                        self._prefill.read([prompts[place] for place in some], room, self._min_shared)
                    )
                return held

            def attempt(few: Sequence[tuple[int, int]]) -> list[R]:
                reads = [read()[place] for place, _ in few]
                if len(few) == len(chosen):
                    # Nobody else needs the prompts' memory: the work may let go of it. Should the
                    # work fail for want of memory, what is left of it reads them again.
                    held.clear()
                return work([i for _, i in few], _handed_over(reads))

            for batch in self._batches(
                [read()[p].part for p, _ in chosen], [rows[i].further for _, i in chosen]
            ):
                items = [chosen[place] for place in batch]
                results.update(
                    zip([i for _, i in items], in_halves(items, self._freeing(attempt)), strict=True)
                )
            return [None] * len(some)

        demands = [
            Demand(place, len(prompt), max(rows[i].further for i in numbers[prompt]), len(numbers[prompt]))
            for place, prompt in enumerate(prompts)
        ]
        for group in self._groups(prompts, demands):
            _fitting(group, self._freeing(read_and_work))
        return [results[index] for index in range(len(rows))]

    def _freeing(self, work: Callable[[Sequence[T]], list[R]]) -> Callable[[Sequence[T]], list[R]]:
        """Have work that finds too little memory let go of the prompts that are kept for later."""

        def attempt(items: Sequence[T]) -> list[R]:
            try:
                return work(items)
            except Exception as error:
                if is_out_of_memory(error):
                    self._prefill.store.clear()
                raise

        return attempt

    def _groups(self, prompts: Sequence[Sequence[int]], demands: Sequence[Demand]) -> list[list[int]]:
        """Cut different prompts into batches: relatives together, similar lengths together."""
        kin = families(plan_readings(prompts, self._min_shared))
        kin.sort(key=lambda family: -max(len(prompts[i]) for i in family))
        order = [i for family in kin for i in family]
        return [[order[place] for place in batch] for batch in self._pack([demands[i] for i in order])]

    def _batches(self, parts: Sequence[Part], further: Sequence[int]) -> list[list[int]]:
        """Cut rows, in order, into batches that fit the budget and whose memories can be joined."""
        runs: list[list[int]] = []
        for index, part in enumerate(parts):
            if not runs or not joinable(parts[runs[-1][0]], part):
                runs.append([])
            runs[-1].append(index)
        return [
            [run[place] for place in batch]
            for run in runs
            for batch in self._pack(
                [Demand((id(parts[i].memory), parts[i].row), parts[i].length, further[i]) for i in run]
            )
        ]

    def _pack(self, demands: Sequence[Demand]) -> list[list[int]]:
        return pack(demands, self._budget, forks=self._prefill.forks)


def _row(wanted: Wanted) -> Row:
    return Row(wanted.asked.ids, wanted.further, wanted.room)


class Demand(NamedTuple):
    """What some rows with one prompt will take.

    Attributes:
        prompt: A name for the prompt.
        length: Its tokens.
        further: Tokens that may follow.
        rows: How many rows there are.
    """

    prompt: Hashable
    length: int
    further: int
    rows: int = 1


class _Load:
    """Tokens that the rows of a batch take: a prompt that they share counts once."""

    def __init__(self, *, forks: bool) -> None:
        self._forks = forks
        self._rows: dict[Hashable, int] = {}
        self._length = self._further = self._longest = 0

    def add(self, demand: Demand) -> int:
        """Add rows; return what all take together."""
        self._rows[demand.prompt] = self._rows.get(demand.prompt, 0) + demand.rows
        self._length = max(self._length, demand.length)
        self._further = max(self._further, demand.further)
        self._longest = max(self._longest, demand.length + demand.further)
        rows = sum(self._rows.values())
        if self._forks and pays(list(self._rows.values()), self._length):
            return self._length * len(self._rows) + self._further * rows
        return self._longest * rows


def pack(demands: Sequence[Demand], budget: int, *, forks: bool = False) -> list[list[int]]:
    """Cut rows into batches of a token budget, in order.

    Args:
        demands: What to put into batches; a batch costs its longest row times its rows.
        budget: Tokens a batch; what alone costs more gets a batch of its own.
        forks: Whether rows share their prompt, which then counts once.

    Example:
        >>> demands = [Demand("a", 8, 2), Demand("b", 8, 2, rows=2), Demand("c", 20, 10)]
        >>> pack(demands, budget=40)
        [[0, 1], [2]]
    """
    batches: list[list[int]] = []
    load = _Load(forks=forks)
    for index, demand in enumerate(demands):
        if load.add(demand) > budget or not batches:
            batches.append([])
            load = _Load(forks=forks)
            load.add(demand)
        batches[-1].append(index)
    return batches


def in_halves(items: Sequence[T], work: Callable[[Sequence[T]], list[R]]) -> list[R]:
    """Do work on a batch; where the device's memory does not suffice, on its halves, one after the other."""
    try:
        return work(items)
    except Exception as error:
        if len(items) == 1 or not is_out_of_memory(error):
            raise
    # Outside the handler, so that the failed attempt's tensors are not kept by its traceback.
    release_memory()
    middle = len(items) // 2
    return [*in_halves(items[:middle], work), *in_halves(items[middle:], work)]


def _handed_over(reads: list[Read]) -> list[Read]:
    """Move the contents of a list into a new one, so that the caller keeps nothing alive."""
    moved, reads[:] = reads[:], []
    return moved


def _fitting(items: Sequence[T], work: Callable[[Sequence[T]], list[R]]) -> list[R]:
    try:
        return in_halves(items, work)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ServiceError(
            "the device has too little memory for a single sequence",
            hint="use a shorter prompt, a smaller max_tokens, a smaller dtype or another device",
        ) from error
