"""A stage's folder belongs to one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surerag.lines import LineFile
from surerag.training.rewriter.processes import is_first

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder; it is made if it is not there. The lock ends with the process, however that ends.

    Of several processes that train one model, the first holds it for all.

    Raises:
        ConfigurationError: If another process holds it.
        StorageError: If the folder cannot be written.
    """
    if not is_first():
        yield
        return
    file = LineFile(folder / LOCK, b"", what="a lock", kept="", mend="remove it")
    try:
        yield
    finally:
        file.close()
