"""The module ``os`` with a disk that fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal


class FailingDisk:
    """Stands in for ``os`` where a module writes; a write that fails has written half.

    Args:
        failing: Which function fails.
        code: With which error number.
        after: So many calls succeed before.
    """

    def __init__(self, failing: Literal["write", "fsync", "ftruncate"], code: int, *, after: int = 0) -> None:
        self._failing, self._code, self._left = failing, code, after

    def __getattr__(self, name: str) -> Any:
        own: Callable[..., Any] = getattr(os, name)
        return self._counted(own) if name == self._failing else own

    def _counted(self, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(handle: int, *arguments: Any) -> Any:
            self._left -= 1
            if self._left >= 0:
                return own(handle, *arguments)
            if own is os.write:
                own(handle, arguments[0][: len(arguments[0]) // 2])
            raise OSError(self._code, os.strerror(self._code))

        return call
