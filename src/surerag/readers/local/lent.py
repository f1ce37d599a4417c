"""Models that a running batch still holds, though it was told to end.

Until then a model computes attention in the batch's way, and nobody else can use it.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from torch.nn import Module

LAST_STEP = 10.0
"""Seconds that a batch is given to make its last step."""

_ending: WeakKeyDictionary[Module, threading.Thread] = WeakKeyDictionary()


def give_back(model: Module, thread: threading.Thread) -> None:
    """Note that a thread will give a model back as soon as it ends; waits for nothing."""
    _ending[model] = thread


def wait_for(model: Module) -> None:
    """Return when a model was given back; at once if nobody is about to."""
    thread = _ending.pop(model, None)
    if thread is not None:
        thread.join(LAST_STEP)
