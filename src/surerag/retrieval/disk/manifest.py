"""What a folder of summaries says of itself: a line for what it holds, one for each unit and search index.

``manifest.jsonl`` only grows. A unit is on the disk when its line is: what stands behind the last committed
unit in the other files is left over from a kill, and cut off by whoever writes next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from surerag.errors import InputError
from surerag.lines import whole_records

MANIFEST: Final = "manifest.jsonl"
HEAD: Final = b'{"format":"surerag summaries"'
VERSION: Final = 1
MEND: Final = 'build it anew: from_documents(…, on_change="restart")'
_END: Final = 1 << 16


class Unit(NamedTuple):
    """Some summaries in a row, committed together.

    Attributes:
        rows: How many.
        bytes: What their texts take.
        source: Digest of what they were made of.
        sha256: Digest of their vectors and texts.
    """

    rows: int
    bytes: int
    source: str
    sha256: str


class Sealed(NamedTuple):
    """A file that does not change any more.

    Attributes:
        name: Below the folder.
        size: In bytes.
        ends: Digest of its first and last 64 KiB, compared whenever it is opened.
        sha256: Digest of the whole, compared when that is asked for.
    """

    name: str
    size: int
    ends: str
    sha256: str

    @classmethod
    def of(cls, file: Path) -> Sealed:
        """Describe a file."""
        with file.open("rb") as opened:
            whole = hashlib.file_digest(opened, "sha256").hexdigest()
        return cls(file.name, file.stat().st_size, ends_of(file), whole)


@dataclass(frozen=True)
class Searchable:
    """A search index over the first rows.

    Attributes:
        rows: How many.
        files: Of the index.
        settings: As :class:`~surerag.retrieval.disk.lists.Plan` has them.
    """

    rows: int
    files: tuple[Sealed, ...]
    settings: Mapping[str, Any]


@dataclass
class Contents:
    """What a folder holds.

    Attributes:
        about: The encoder's name, its dimensions, and how the summaries were made.
        units: In order.
        index: The last search index, if there is one.
        made: How many search indices there were.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)
    index: Searchable | None = None
    made: int = 0

    @property
    def rows(self) -> int:
        """Summaries that are committed."""
        return sum(unit.rows for unit in self.units)

    def take(self, record: Mapping[str, Any]) -> None:
        """Take a line over."""
        if "about" in record:
            self.about = record["about"]
        elif "unit" in record:
            self.units.append(Unit(**record["unit"]))
        elif "index" in record:
            found = record["index"]
            files = tuple(Sealed(**file) for file in found["files"])
            self.index, self.made = Searchable(found["rows"], files, found["settings"]), self.made + 1


def contents_of(records: Iterable[Any], file: Path) -> Contents:
    """Read the lines of a manifest.

    Raises:
        InputError: If they are damaged, or of another version.
    """
    contents = Contents()
    for number, record in enumerate(records, start=1):
        if number == 1 and isinstance(record, dict) and record.get("version") != VERSION:
            raise InputError(
                f"{file} has version {record.get('version')} of the format; version {VERSION} is known here",
                hint="install the version of surerag that wrote it, or build it again",
            )
        try:
            contents.take(record)
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{file} is damaged in line {number}", hint=MEND) from error
    return contents


def read_contents(folder: Path) -> Contents:
    """Read what a folder says of itself, while another process may be writing to it.

    Raises:
        InputError: If it is no folder of summaries, or its manifest is damaged.
    """
    file = folder / MANIFEST
    hint = "give the folder that DiskSummaryIndex.from_documents wrote"
    try:
        with file.open("rb") as opened:
            if opened.read(len(HEAD)) != HEAD:
                raise InputError(f"{file} is no manifest of a folder of summaries", hint=hint)
            opened.seek(0)
            return contents_of((record for _, record in whole_records(opened, file.stat().st_size)), file)
    except OSError as error:
        raise InputError(
            f"{folder} is no folder of summaries: {error.strerror or error}", hint=hint
        ) from error


def ends_of(file: Path) -> str:
    """Return a digest of a file's first and last 64 KiB, which tell it from most others."""
    with file.open("rb") as opened:
        digest = hashlib.sha256(opened.read(_END))
        opened.seek(max(0, file.stat().st_size - _END))
        digest.update(opened.read(_END))
    return digest.hexdigest()


def check_sealed(folder: Path, file: Sealed, *, whole: bool = False) -> Path:
    """Return the path of a file that is as it was.

    Raises:
        InputError: If it is missing, changed, or not in this folder.
    """
    path = folder / file.name
    if Path(file.name).name != file.name or not path.is_file():
        raise InputError(f"{path} is missing", hint=f"copy the whole folder, or {MEND}")
    found = Sealed.of(path) if whole else Sealed(file.name, path.stat().st_size, ends_of(path), file.sha256)
    if found != file:
        raise InputError(
            f"{path} is not the file that was recorded: {found.size} bytes, and {file.size} then",
            hint=f"get the folder again, or {MEND}",
        )
    return path
