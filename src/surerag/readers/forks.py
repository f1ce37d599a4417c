"""What a forked process must not take over from its parent: threads, locks and open connections.

A web server that loads its application once and forks workers from it (``gunicorn --preload``) copies all
of them. The threads are gone there, a lock may be held by one of them for ever, and two processes that
write to one connection get each other's answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(forget: Callable[[], object]) -> None:
    """Have something done at the beginning of every process that is forked from this one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)
