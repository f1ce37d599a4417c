"""Who makes a run's units, which of them are a shard's, and when too many rows failed to go on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from surerag.errors import ConfigurationError, ServiceError

if TYPE_CHECKING:
    from surerag.runs.manifest import Kind, Part
    from surerag.runs.run import Run

MAX_FAILED: Final = 0.1
"""Share of rows that may fail before a command stops."""
JUDGED_FROM: Final = 100
"""Rows after which the share of failed ones is looked at."""


class Task(NamedTuple):
    """A unit that is to be made.

    Attributes:
        unit: Its number.
        source: Digest of what goes in.
        read: Gives that, when somebody is ready for it: frozen values that can be sent elsewhere.
    """

    unit: int
    source: str
    read: Callable[[], Sequence[Any]]


class Maker(Protocol):
    """Makes units of one kind of run."""

    @property
    def kind(self) -> Kind:
        """Of run."""

    @property
    def schemas(self) -> Any:
        """Of its tables."""

    def make(self, run: Run, unit: int, rows: Sequence[Any], source: str) -> Part:
        """Make a unit of what goes in, and commit it to a run."""


class Engine(Protocol):
    """Has units made, here or elsewhere."""

    @property
    def at_once(self) -> int:
        """Units under way at a time, at most: what is asked again after a kill."""

    def __call__(self, run: Run, tasks: Iterable[Task], maker: Maker) -> Generator[Part]:
        """Commit units to a run, and yield each when it is there, in any order.

        Args:
            run: What they are committed to.
            tasks: Units; the next one is asked for when somebody is to make it.
            maker: Makes them in this process; an engine may have others of the same kind elsewhere.
        """


class InProcess:
    """Makes one unit after the other, in this process."""

    at_once = 1

    def __call__(self, run: Run, tasks: Iterable[Task], maker: Maker) -> Generator[Part]:
        """Commit units in order."""
        for task in tasks:
            yield maker.make(run, task.unit, task.read(), task.source)


class Watched:
    """An engine that tells of each unit, and stops where too many rows fail.

    Args:
        engine: Has the units made.
        max_failed: Share of rows that may fail; looked at from ``JUDGED_FROM`` rows on.
        told: Called with each unit that is committed.
    """

    def __init__(
        self, engine: Engine, *, max_failed: float = 1.0, told: Callable[[Part], None] = lambda _: None
    ) -> None:
        if not 0.0 <= max_failed <= 1.0:
            raise ConfigurationError(f"max_failed must be a share from 0 to 1, got {max_failed!r}")
        self._engine, self._max_failed, self._told = engine, max_failed, told

    @property
    def at_once(self) -> int:
        """Units under way at a time."""
        return self._engine.at_once

    def __call__(self, run: Run, tasks: Iterable[Task], maker: Maker) -> Generator[Part]:
        """Commit units, and yield each.

        Raises:
            ServiceError: If too many of the rows that were made now failed.
        """
        rows = failed = 0

        def check() -> None:
            if rows >= JUDGED_FROM and failed > self._max_failed * rows:
                raise ServiceError(
                    f"{failed:,} of the {rows:,} rows that were made failed, more than "
                    f"{self._max_failed:g} of them; what is there is kept in {run.place}",
                    hint="the column error says why; --max-failed allows more, and the same command goes on",
                )

        def checked() -> Iterator[Task]:
            for task in tasks:
                check()
                yield task

        with closing(self._engine(run, checked(), maker)) as made:
            for part in made:
                rows, failed = rows + part.rows, failed + int(part.note.get("failed", 0))
                self._told(part)
                yield part


class Shard(NamedTuple):
    """A part of a run's units, for one of several processes that need not know of each other.

    Attributes:
        number: Which one, from 1.
        of: How many there are.

    Example:
        >>> shard = Shard.parsed("3/16")
        >>> str(shard), [unit for unit in range(40) if shard.has(unit)]
        ('3/16', [2, 18, 34])
    """

    number: int = 1
    of: int = 1

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Read a shard as a user writes it.

        Raises:
            ConfigurationError: If it is none.
        """
        number, slash, of = text.partition("/")
        if slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
            return cls(int(number), int(of))
        raise ConfigurationError(
            f"a shard is a number from 1 and how many there are, got {text!r}", hint="such as 3/16"
        )

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, unit: int) -> bool:
        """Whether a unit is this shard's."""
        return unit % self.of == self.number - 1

    def check(self, questions: int, size: int) -> None:
        """Refuse a division in which some shard would have nothing to do.

        Args:
            questions: Of the run.
            size: Questions of a unit, which is never divided.

        Raises:
            ConfigurationError: If there are more shards than units.
        """
        units = -(-questions // size)
        if self.of > max(units, 1):
            some = "one unit" if units == 1 else f"{units:,} units"
            raise ConfigurationError(
                f"{questions:,} questions make {some} of at most {size}, which cannot be divided among "
                f"{self.of} shards",
                hint=f"take {units:,} shards at most" if units > 1 else "leave --shard out",
            )

    @property
    def about(self) -> dict[str, str]:
        """What a run says of it: nothing where it is the whole."""
        return {} if self.of == 1 else {"shard": str(self)}


IN_PROCESS: Final = InProcess()
WHOLE: Final = Shard()
