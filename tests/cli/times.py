"""Times that a clock gave, which no two runs share."""

from __future__ import annotations

import re

CLOCK = re.compile(rb'"seconds": [^,}]+|[\d,]+\.\d s, ')
