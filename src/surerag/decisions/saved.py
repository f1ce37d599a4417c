"""What was fitted or calibrated, as JSON: numbers and names, nothing that runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

from surerag.errors import InputError
from surerag.options import from_plain, plain


class Saved:
    """Writes and reads a frozen dataclass of numbers, names and others like it."""

    __slots__ = ()
    _called: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return numbers and texts that JSON knows; infinities as ``"inf"`` and ``"-inf"``."""
        return {name: _portable(value) for name, value in plain(self).items()}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`.

        Raises:
            InputError: If something else was given.
        """
        expected = {item.name for item in fields(cls)}  # type: ignore[arg-type]  # a dataclass, as all that derive are
        hint = f"load what {cls.__name__}.save() or to_dict() wrote"
        if not isinstance(written, Mapping):
            raise InputError(f"expected {cls._called}, found {type(written).__name__}", hint=hint)
        told = [
            f"{what} {', '.join(sorted(map(str, names)))}"
            for what, names in (
                ("without", expected - set(written)),
                ("with unknown", set(written) - expected),
            )
            if names
        ]
        if told:
            raise InputError(f"expected {cls._called}, found a mapping {'; '.join(told)}", hint=hint)
        values = {name: _number(value) for name, value in written.items()}
        if not isinstance(values.get("threshold", 0.0), float | int):
            raise InputError(
                f"the threshold of {cls._called} must be a number, found {values['threshold']!r}", hint=hint
            )
        made: Self = from_plain(cls, values)
        return made

    def save(self, path: str | Path) -> None:
        """Write this as JSON."""
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: If the file holds something else, or cannot be read.
        """
        hint = f"load what {cls.__name__}.save() wrote"
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}", hint=hint) from error
        except (ValueError, TypeError) as error:
            kind = cls._called.partition(" ")[2]
            raise InputError(f"{path} holds no {kind}: {error}", hint=hint) from error


def _portable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _portable(item) for name, item in value.items()}
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _number(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _number(item) for name, item in value.items()}
    return float(value) if value in ("inf", "-inf") else value
