"""Real data that lies beside the project, where it does."""

from __future__ import annotations

import os
from pathlib import Path

BESIDE = Path(__file__).parents[3] / "shared" / "data"


def shared(name: str) -> Path | None:
    """Return a file or folder of ``../shared/data`` (or of SURERAG_SHARED_DATA), if it is there."""
    found = Path(os.environ.get("SURERAG_SHARED_DATA", BESIDE)) / name
    return found if found.exists() else None
