"""What an actor does: built once from plain settings, it makes units, and returns their bytes."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from surerag import errors
from surerag.errors import ConfigurationError, ServiceError, SureragError
from surerag.runs import File, Maker, Part, Run


@dataclass(frozen=True)
class Job:
    """What workers are told, in plain values.

    Attributes:
        build: From settings to who makes units; a function of a module that is installed on the workers.
        settings: Texts, numbers, lists and mappings. Keys and passwords are no part of them: a worker finds
            them in the variables of its own environment.
        secrets: Names of variables that are set here, and that workers need as well.

    Raises:
        ConfigurationError: If a setting is anything else.
    """

    build: Callable[[Mapping[str, Any]], Maker]
    settings: Mapping[str, Any]
    secrets: Sequence[str] = ()

    def __post_init__(self) -> None:
        try:
            json.dumps(self.settings, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"what is told to workers must be plain values: {error}") from error


class Failure(NamedTuple):
    """An error in plain values: what one side raised, for the other to raise again."""

    kind: str
    message: str
    hint: str
    node: str
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Note an error down."""
        hint = error.hint if isinstance(error, SureragError) else ""
        message = str(error).removesuffix(f". {hint[:1].upper()}{hint[1:]}.") if hint else str(error)
        trace = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, message, hint, platform.node(), trace)

    def raised(self) -> SureragError:
        """Return the error as it is raised here: of the same kind, where it is one of ours."""
        named = getattr(errors, self.kind, None)
        ours = isinstance(named, type) and issubclass(named, SureragError)
        kind: type[SureragError] = named if ours else ServiceError  # type: ignore[assignment]  # looked at above
        said = self.message if ours else f"{self.kind}: {self.message}"
        found = kind(f"{said} (on a worker at {self.node})", hint=self.hint)
        found.add_note(self.trace)
        return found


class Made(NamedTuple):
    """A unit as it travels.

    Attributes:
        part: As it was committed, in JSON.
        files: Bytes of its files, by table.
    """

    part: str
    files: Mapping[str, bytes]

    def adopted(self, run: Run) -> Part:
        """Commit it to a run."""
        plain = json.loads(self.part)
        files = {table: File(**one) for table, one in plain["files"].items()}
        part = Part(plain["unit"], files, plain["source"], plain["note"])
        run.adopt(part, self.files)
        return part


class UnitActor:
    """Makes units, one at a time.

    What fails is returned and not raised, so that nothing has to be unpickled but plain values.

    Args:
        job: What to build.
        version: Of surerag, where units are wanted; another one may make other units.
    """

    def __init__(self, job: Job, version: str) -> None:
        self._maker: Maker | None = None
        self._failure: Failure | None = None
        try:
            _check(job, version)
            self._maker = job.build(job.settings)
        except Exception as error:
            self._failure = Failure.of(error)

    def ready(self) -> Failure | None:
        """Say whether units can be made; answered when the models are there."""
        return self._failure

    def make(self, unit: int, rows: Sequence[Any], source: str, journal: bytes) -> Made | Failure:
        """Make a unit.

        Args:
            unit: Its number.
            rows: What goes in.
            source: Digest of that.
            journal: What was answered for it before.
        """
        if self._maker is None:
            return self._failure or Failure(
                "ConfigurationError", "nothing was built", "", platform.node(), ""
            )
        try:
            return made_alone(self._maker, unit, rows, source, journal)
        except Exception as error:
            return Failure.of(error)


def made_alone(maker: Maker, unit: int, rows: Sequence[Any], source: str, journal: bytes = b"") -> Made:
    """Make a unit in a folder of its own, and return what it holds."""
    with tempfile.TemporaryDirectory(prefix="surerag-unit-") as made:
        folder = Path(made)
        with Run.open(folder, {"unit": unit}, maker.schemas, kind=maker.kind) as run:
            run.begin(unit, journal)
            part = maker.make(run, unit, rows, source)
        files = {table: (folder / file.name).read_bytes() for table, file in part.files.items()}
        return Made(json.dumps(asdict(part)), files)


def surerag_version() -> str:
    """Return the version that is installed here."""
    return version("surerag")


def _check(job: Job, wanted: str) -> None:
    if (found := surerag_version()) != wanted:
        raise ConfigurationError(
            f"the worker has surerag {found}, and {wanted} asks it",
            hint="install the same version everywhere",
        )
    missing = [name for name in job.secrets if name not in os.environ]
    if missing:
        raise ConfigurationError(
            f"the environment variable {missing[0]} is not set on the worker",
            hint="keys are not sent: set it where the workers run, before `ray start`",
        )
