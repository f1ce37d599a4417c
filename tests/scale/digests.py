"""What a run holds, as far as it is the same however it was made."""

from __future__ import annotations

from pathlib import Path

from surerag.runs import read_manifest
from surerag.runs.manifest import Kind


def digests(folder: Path, kind: Kind) -> dict[str, list[str]]:
    """Return the digests of a run's files, but for those of times."""
    return {
        str(part.unit): [file.sha256 for table, file in part.files.items() if "times" not in table]
        for part in read_manifest(folder, kind)
    }
