"""What a run's folder says of itself: a line for what the run is, one for each unit, one for the end.

``manifest.jsonl`` only grows, so that committing the last of many thousand units costs what the first did. Of
two lines for one unit the later holds. A line with another ``about`` begins the run anew: units before it are
*former*, and only their answers are looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from surerag.errors import ConfigurationError, InputError
from surerag.lines import whole_records
from surerag.places import Anywhere

MANIFEST: Final = "manifest.jsonl"
HEAD: Final = b'{"format":"surerag '
_SHOWN = 80


class Kind(NamedTuple):
    """What a folder holds.

    Attributes:
        name: In one word: ``"trace"``, ``"evaluation"``.
        version: Of its columns and notes.
        made_by: The command or function that writes it, for messages.
    """

    name: str
    version: int = 1
    made_by: str = "the command that wrote it"

    @property
    def format(self) -> str:
        """As the manifest names it."""
        return f"surerag {self.name}"


@dataclass(frozen=True, slots=True)
class File:
    """A file of a run.

    Attributes:
        name: Below the run's folder.
        rows: How many it has.
        sha256: Digest of its bytes.
    """

    name: str
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Part:
    """A committed unit: some questions in a row, and what became of them.

    Attributes:
        unit: Its number, from 0.
        files: By table.
        source: Digest of what went in; empty where nobody noted it.
        note: What the writer wants to know of the unit without reading its rows: plain values.
    """

    unit: int
    files: Mapping[str, File]
    source: str = ""
    note: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of its first table."""
        return next(iter(self.files.values())).rows


@dataclass(slots=True)
class Manifest:
    """What is known of a run without reading its rows.

    Attributes:
        about: What was run, on what, and how.
        parts: Committed units by number.
        former: Units of the run before its settings changed.
        complete: Whether all units are there.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    parts: dict[int, Part] = field(default_factory=dict)
    former: dict[int, Part] = field(default_factory=dict)
    complete: bool = False

    @property
    def rows(self) -> int:
        """Rows of all units' first tables."""
        return sum(part.rows for part in self.parts.values())

    @property
    def files(self) -> tuple[File, ...]:
        """All files, in order of units."""
        return tuple(file for unit in sorted(self.parts) for file in self.parts[unit].files.values())

    def __iter__(self) -> Any:
        """Yield parts in order of units."""
        return (self.parts[unit] for unit in sorted(self.parts))

    def take(self, record: Mapping[str, Any]) -> None:
        """Take a line in.

        Raises:
            KeyError, TypeError, ValueError: If it says nothing that is known here.
        """
        if "format" in record:
            self.former |= self.parts
            self.about, self.parts, self.complete = dict(record["about"]), {}, False
        elif "unit" in record:
            files = {table: File(**file) for table, file in record["files"].items()}
            part = Part(int(record["unit"]), files, str(record["source"]), dict(record["note"]))
            self.parts[part.unit], self.complete = part, False
        else:
            self.complete = bool(record["complete"])


def head_line(kind: Kind, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line that says what a run is."""
    return {"format": kind.format, "version": kind.version, "about": about}


def part_line(part: Part) -> dict[str, Any]:
    """Return the line that commits a unit."""
    return asdict(part)


def read_manifest(folder: Path, kind: Kind) -> Manifest:
    """Read what a folder says of itself, without touching it.

    Raises:
        InputError: If it holds nothing of this kind, or a version that is not known here.
    """
    file = folder / MANIFEST
    try:
        with file.open("rb") as lines:
            records = (record for _, record in whole_records(lines, file.stat().st_size))
            return manifest_of(records, file, kind)
    except FileNotFoundError:
        raise InputError(
            f"{folder} holds no {kind.name}: there is no {MANIFEST}",
            hint=f"give the folder that {kind.made_by} wrote",
        ) from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error


def manifest_of(records: Iterable[Any], file: Anywhere, kind: Kind) -> Manifest:
    """Return what the lines of a manifest say.

    Raises:
        InputError: If they say something else than a run of this kind does.
    """
    found = Manifest()
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise InputError(f"{file} is damaged in line {number}", hint=f"run {kind.made_by} again")
        if number == 1 or "format" in record:
            _check_head(record, file, kind)
        try:
            found.take(record)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{file} is damaged in line {number}: {type(error).__name__}: {error}"
            ) from error
    return found


def check_same(
    folder: Anywhere, kind: Kind, before: Mapping[str, Any], now: Mapping[str, Any], hint: str
) -> None:
    """Refuse to go on with a run of something else; versions of packages may differ.

    Raises:
        ConfigurationError: Naming what differs.
    """
    if changes := differences(before, now):
        article = "an" if kind.name[0] in "aeiou" else "a"
        raise ConfigurationError(
            f"{folder} holds {article} {kind.name} of something else: {'; '.join(changes)}", hint=hint
        )


def is_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two runs are about the same, whatever versions of packages made them."""
    return not differences(before, now)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return in words what differs between two runs, but for versions of packages."""
    now = json.loads(json.dumps(now))
    names = [*now, *(name for name in before if name not in now)]
    return [
        f"{name} was {_shortened(before.get(name))} and is {_shortened(now.get(name))}"
        for name in names
        if name != "versions" and before.get(name) != now.get(name)
    ]


def _check_head(record: Mapping[str, Any], file: Anywhere, kind: Kind) -> None:
    found = str(record.get("format"))
    if found != kind.format:
        what = (
            found.removeprefix("surerag ") if found.startswith("surerag ") else "nothing that is known here"
        )
        raise InputError(
            f"{file} is no manifest of a run of this kind: it holds {what}, not {kind.name}",
            hint=f"give the folder that {kind.made_by} wrote, or write to another one",
        )
    if record.get("version") != kind.version:
        raise InputError(
            f"{file.parent} has version {record.get('version')} of the format, and version {kind.version} is "
            "known here",
            hint="install the version of surerag that wrote it, or run it again",
        )


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
