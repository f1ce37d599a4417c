"""Runs as they are read when all is done: whole, or gathered from their shards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from surerag.errors import ConfigurationError, InputError
from surerag.places import Anywhere, place_of
from surerag.runs.manifest import MANIFEST, Kind, Manifest, Part, differences, read_manifest
from surerag.runs.store import fetched

SHARD: Final = "shard"


class Held(NamedTuple):
    """A unit, and the folder that it lies in."""

    folder: Path
    part: Part


@dataclass(frozen=True, slots=True)
class Gathered:
    """A run that is complete.

    Attributes:
        name: Of its folder; of shards, of the first one's.
        kind: What it holds.
        about: What was run; nothing of shards.
        units: In order.
        shards: How many folders it was gathered from.
    """

    name: str
    kind: Kind
    about: Mapping[str, Any]
    units: tuple[Held, ...]
    shards: int

    def __iter__(self) -> Iterator[Held]:
        return iter(self.units)


class _Found(NamedTuple):
    place: Anywhere
    folder: Path
    kind: Kind
    manifest: Manifest

    @property
    def about(self) -> dict[str, Any]:
        return {name: value for name, value in self.manifest.about.items() if name not in (SHARD, "versions")}


def gathered(places: Sequence[str | Anywhere], kinds: Sequence[Kind]) -> list[Gathered]:
    """Return the runs that some folders or URLs hold; folders that differ in their shard alone are one run.

    Raises:
        InputError: If one holds none of these kinds.
        ConfigurationError: If two are of different kinds, or hold the same; if a run is not complete, or some
            of its shards are not there, naming them.
    """
    found = [_opened(place_of(place), kinds) for place in places]
    for one in found:
        if one.kind != found[0].kind:
            raise ConfigurationError(
                f"{found[0].place} holds {found[0].kind.name}, and {one.place} {one.kind.name}",
                hint="report on runs of one kind at a time",
            )
        if not one.manifest.complete:
            raise ConfigurationError(
                f"{one.place} is not complete: {len(one.manifest.parts):,} units are there",
                hint="run the command that wrote it again: it goes on where it was",
            )
    groups: dict[str, list[_Found]] = {}
    for one in found:
        groups.setdefault(json.dumps(one.about, sort_keys=True), []).append(one)
    apart = [part for group in groups.values() for part in _apart(group)]
    runs = [_whole(group) for group in apart]
    if len({run.name for run in runs}) < len(runs):
        runs = [replace(run, name=str(group[0].place)) for run, group in zip(runs, apart, strict=True)]
    return runs


def check_alike(runs: Sequence[Gathered], what: str, names: Sequence[str]) -> None:
    """Refuse to compare runs in which more differs than may.

    Args:
        runs: Of one kind.
        what: What may differ, in words.
        names: What has to be the same, of what is said of a run.

    Raises:
        ConfigurationError: Naming what differs.
    """
    for run in runs[1:]:
        before, now = ({name: one.about.get(name) for name in names} for one in (runs[0], run))
        if changes := differences(before, now):
            raise ConfigurationError(
                f"{runs[0].name} and {run.name} cannot be compared: {'; '.join(changes)}",
                hint=f"runs that are compared may differ in {what}",
            )


def _opened(place: Anywhere, kinds: Sequence[Kind]) -> _Found:
    folder = fetched(place, *kinds)
    kind = kinds[0]
    file = folder / MANIFEST
    if file.is_file():
        with file.open("rb") as lines:
            head = next(lines, b"")
        kind = next((one for one in kinds if f'"{one.format}"'.encode() in head[:80]), kind)
    return _Found(place, folder, kind, read_manifest(folder, kind))


def _apart(group: list[_Found]) -> list[list[_Found]]:
    """Return the runs that are about the same: the shards of one, or several, as of systems without names.

    Raises:
        ConfigurationError: If two are one.
    """
    if any(SHARD in one.manifest.about for one in group):
        return [group]
    seen: dict[tuple[str, ...], Anywhere] = {}
    for one in group:
        digests = tuple(file.sha256 for file in one.manifest.files)
        if digests in seen:
            raise ConfigurationError(
                f"{seen[digests]} and {one.place} both hold the same run", hint="give each one once"
            )
        seen[digests] = one.place
    return [[one] for one in group]


def _whole(group: Sequence[_Found]) -> Gathered:
    """Put the shards of a run together.

    Raises:
        ConfigurationError: If one is there twice, or not at all, or holds what is another's.
    """
    first, shards = group[0], [str(one.manifest.about.get(SHARD, "1/1")) for one in group]
    wanted = {number for _, _, number in (shard.partition("/") for shard in shards)}
    if len(wanted) > 1:
        raise ConfigurationError(
            f"{first.place} is shard {shards[0]}, and others are shards of {', '.join(sorted(wanted))}",
            hint="give all shards of one division",
        )
    several = int(wanted.pop())
    for at, (one, shard) in enumerate(zip(group, shards, strict=True)):
        if shard in shards[:at]:
            same = group[shards.index(shard)].place
            raise ConfigurationError(
                f"{same} and {one.place} both hold shard {shard}", hint="give each one once"
            )
    all_of_them = [f"{number}/{several}" for number in range(1, several + 1)]
    if missing := [shard for shard in all_of_them if shard not in shards]:
        raise ConfigurationError(
            f"shards {', '.join(missing)} of the run in {first.place} are not there",
            hint="give the folders of all shards, or run those that are missing",
        )
    units: dict[int, Held] = {}
    for one, shard in zip(group, shards, strict=True):
        number = int(shard.partition("/")[0])
        for part in one.manifest:
            if part.unit % several != number - 1:
                raise ConfigurationError(f"{one.place} is shard {shard}, and holds unit {part.unit}")
            units[part.unit] = Held(one.folder, part)
    if sorted(units) != list(range(len(units))):
        gone = next(unit for unit in range(len(units)) if unit not in units)
        raise InputError(f"unit {gone} of the run in {first.place} is not there", hint="run its shard again")
    ordered = tuple(units[unit] for unit in sorted(units))
    return Gathered(first.place.name or str(first.place), first.kind, first.about, ordered, len(group))
