"""Optional dependencies, and the error that names the pip line for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from surerag.errors import MissingExtraError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import optional packages inside this context.

    Args:
        name: The extra of ``surerag`` that brings them.

    Raises:
        MissingExtraError: If one of them is not installed.

    Example:
        >>> with extra("faiss"):
        ...     import no_such_package
        Traceback (most recent call last):
        surerag.errors.MissingExtraError: the package 'no_such_package' is not installed. \
Install it with: pip install "surerag[faiss]".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package == "surerag":
            raise
        raise MissingExtraError(
            f"the package {package!r} is not installed",
            hint=f'install it with: pip install "surerag[{name}]"',
        ) from error
