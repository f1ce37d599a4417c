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
        MissingExtraError: If one of them is not installed, or too old to have what is needed.

    Example:
        >>> with extra("faiss"):  # doctest: +ELLIPSIS
        ...     import no_such_package
        Traceback (most recent call last):
        surerag.errors.MissingExtraError: the package 'no_such_package' is not installed. \
Install it with: pip install "surerag[faiss]".
        More about it: ...#missingextraerror
    """
    try:
        yield
    except ImportError as error:
        package = (error.name or "").split(".")[0]
        if not package or "surerag" in package or isinstance(error, MissingExtraError):
            raise
        if isinstance(error, ModuleNotFoundError):
            message, how = f"the package {package!r} is not installed", "install it with: pip install"
        else:
            message = f"the package {package!r} does not have what is needed ({error})"
            how = "another version does: pip install --upgrade"
        raise MissingExtraError(message, hint=f'{how} "surerag[{name}]"') from error
