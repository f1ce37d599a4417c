"""Waiting for what another thread will do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 60.0
"""Seconds: far more than anything takes, on a machine that does much else."""


def eventually(condition: Callable[[], object], *, patience: float = PATIENCE) -> bool:
    """Return whether a condition comes true in time; an assertion about it reads as if it were true at once.

    An answer that is broken off is closed in another thread: what follows from that is there soon, and not
    at once.
    """
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
