"""What a study prints, as text, and the numbers that stand in its JSON."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console, RenderableType


def shown(tables: RenderableType, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(tables)
    return captured.get()


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    if isinstance(value, str):
        return [float(number) for number in re.findall(r"\d+\.?\d*(?:e-\d+)?", value)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []
