"""Running every part with every model, and noting what was sent and what came out."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple, Protocol

from surerag.errors import SureragError
from tests.models.parts import House, Part, parts

Outcome = Literal["works", "works, with a note", "refuses", "fails"]


class Served(Protocol):
    """A server that behaves as a provider's documentation says."""

    @property
    def url(self) -> str:
        """Where it listens."""

    def bodies(self) -> Sequence[Mapping[str, Any]]:
        """What was sent to it so far."""


class Model(NamedTuple):
    """A kind of model, as a user of one house has it.

    Attributes:
        name: The class, and the model behind it.
        house: In which house it is used.
        served: Starts what stands for the provider.
        build: Builds the user's object, from the server's address.
        note: What a reader of the table should know: what it was tried on.
    """

    name: str
    house: House
    served: Callable[[], AbstractContextManager[Served]]
    build: Callable[[str], Any]
    note: str = ""


class Cell(NamedTuple):
    """What became of one part with one model.

    Attributes:
        part: Name of the part.
        outcome: Whether it worked, and how.
        said: What came out, or the error.
        told: Warnings on the way.
        sent: Names of the parameters that were sent, besides model and prompt.
        requests: How many requests it took.
    """

    part: str
    outcome: Outcome
    said: str
    told: tuple[str, ...]
    sent: tuple[str, ...]
    requests: int


_PROMPT = frozenset({"model", "messages", "prompt", "input", "contents", "system", "systemInstruction"})


def try_model(model: Model) -> list[Cell]:
    """Run every part of the model's house with it; each part gets a model built anew."""
    with model.served() as server:
        return [_try(part, model, server) for part in parts(model.house)]


def _try(part: Part, model: Model, server: Served) -> Cell:
    before = len(server.bodies())
    outcome: Outcome = "works"
    with _told() as told:
        try:
            said = part.run(model.build(server.url))
        except SureragError as error:
            outcome, said = "refuses", f"{type(error).__name__}: {error}"
        except Exception as error:  # whatever a framework lets through
            outcome, said = "fails", f"{type(error).__name__}: {error}"
    if outcome == "works" and told:
        outcome = "works, with a note"
    bodies = server.bodies()[before:]
    sent = sorted({name for body in bodies for name in _names(body)} - _PROMPT)
    return Cell(part.name, outcome, said, tuple(dict.fromkeys(told)), tuple(sent), len(bodies))


def _names(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a body's parameters; those inside options and configurations, too."""
    for name, value in body.items():
        if name in ("options", "generationConfig") and isinstance(value, Mapping):
            yield from value
        else:
            yield name


@contextmanager
def _told() -> Iterator[list[str]]:
    """Collect what the library says on the way: its warnings and its log."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler, logger = Handler(logging.WARNING), logging.getLogger("surerag")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", UserWarning)
            yield found
        found += [str(one.message) for one in raised if type(one.message).__module__.startswith("surerag")]
    finally:
        logger.removeHandler(handler)
