"""How often a command is killed in a test: often enough to find most faults, or as often as asked for."""

from __future__ import annotations

import os
from typing import Final

KILLS: Final = int(os.environ.get("SURERAG_KILLS", "6"))
"""``SURERAG_KILLS=20 make test ARGS="-k killed"`` takes some minutes."""
