"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# No test may ask a model hub; set before any library reads it.
os.environ["HF_HUB_OFFLINE"] = "1"

# The same examples on every machine, however slow it is.
settings.register_profile("surerag", deadline=None, derandomize=True)
settings.load_profile("surerag")
