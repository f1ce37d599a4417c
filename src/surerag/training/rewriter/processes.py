"""Several processes that train one model, as torchrun and ``accelerate launch`` start them."""

from __future__ import annotations

import os
from datetime import timedelta

_PATIENCE = timedelta(days=7)
"""The others wait while the first asks a teacher."""


def is_first() -> bool:
    """Whether this process is the one that asks, writes and tells."""
    return os.environ.get("RANK", "0") == "0"


def number() -> int:
    """Return how many processes there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def wait_for_all(*, cpu: bool = False) -> None:
    """Return when all processes have come here; at once if there is one.

    Args:
        cpu: Whether no accelerator is to be used.
    """
    if number() > 1:
        from accelerate import PartialState

        PartialState(cpu=cpu, timeout=_PATIENCE).wait_for_everyone()
