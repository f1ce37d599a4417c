"""Files that are not on this machine's disk: the one place that knows fsspec.

A place is a :class:`pathlib.Path`, or a :class:`Remote` where it was named by a URL. What is local never
imports fsspec. Keys come from the environment, as each file system's own package reads them; a URL that holds
some is refused, and the query of a signed one appears in no message and in nothing that is written down.
"""

from __future__ import annotations

import difflib
import functools
import gzip
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, NoReturn, TypeVar, cast

from surerag.errors import ConfigurationError, InputError, MissingExtraError, StorageError, SureragError
from surerag.extras import extra
from surerag.remote_errors import is_about_credentials, keys_of, reason_of

R = TypeVar("R")

_BLOCK: Final = 1 << 22
_PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before a request to a store is made again: half a minute in all."""
_VERSIONS: Final = (
    "ETag", "etag", "md5Hash", "content_md5", "checksum", "blob_id", "LastModified", "last_modified",
    "updated", "mtime", "modified", "created",
)  # fmt: skip
"""What file systems tell a file's state by, the surest first."""
_PASSES_NEVER = (FileNotFoundError, PermissionError, ImportError, ValueError, NotImplementedError)


class Remote:
    """A file or folder that a URL names, with the few verbs of a path that are needed here.

    Args:
        url: Such as ``s3://bucket/rows.jsonl``; a pattern of several is one, too.

    Raises:
        ConfigurationError: If it holds a password, or no such protocol is known.
        MissingExtraError: If fsspec, or the protocol's own package, is not installed.
    """

    def __init__(self, url: str, *, info: Mapping[str, Any] | None = None) -> None:
        self._url, self._info = url, info
        self.protocol = url.partition("://")[0].lower()
        # What follows a question mark signs an address of the web, and is a part of a pattern elsewhere.
        self._address = url.partition("?")[0] if self.protocol in ("http", "https") else url
        authority = self._address.partition("://")[2].partition("/")[0]
        if ":" in authority.rpartition("@")[0]:
            raise ConfigurationError(
                f"a {self.protocol}:// URL holds a password, and would be written into results with it",
                hint="give keys in the environment, as the protocol's own package reads them",
            )
        _check_protocol(self.protocol)

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (self._url,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __str__(self) -> str:
        return self._address

    def __repr__(self) -> str:
        return f"Remote({self._address!r})"

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self._address.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """Last part of the path; of a bucket alone, its name."""
        return self._address.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        """The folder that it is in."""
        return Remote(self._address.rstrip("/").rpartition("/")[0])

    @property
    def stem(self) -> str:
        """The name without what follows its last dot."""
        return Path(self.name).stem

    @property
    def suffix(self) -> str:
        """What a name ends in, with its dot."""
        return Path(self.name).suffix

    @property
    def is_pattern(self) -> bool:
        """Whether it names several files by ``*``, ``?`` or ``[…]``."""
        return any(mark in self._address for mark in "*?[")

    def info(self) -> Mapping[str, Any] | None:
        """Return what the file system tells of it; None if it is not there.

        Raises:
            InputError: If it cannot be reached, or this user may not.
            ConfigurationError: If there are no credentials.
        """
        if self._info is None:
            with self._reaching():
                self._fs.invalidate_cache()
                with suppress(FileNotFoundError):
                    return cast(Mapping[str, Any], self._fs.info(self._path))
        return self._info

    def exists(self) -> bool:
        """Whether there is such a file or folder."""
        return self.info() is not None

    def is_file(self) -> bool:
        """Whether it is a file."""
        found = self.info()
        return found is not None and found["type"] == "file"

    def is_dir(self) -> bool:
        """Whether it is a folder: what begins with its name and a slash, in an object store."""
        found = self.info()
        return found is not None and found["type"] == "directory"

    def version(self) -> list[Any]:
        """Return size, and tag or time: as long as they are the same, so is what it holds."""
        found = self.info() or {}
        told = next((found[name] for name in _VERSIONS if found.get(name)), None)
        return [found.get("size"), str(told)]

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open it for reading.

        Raises:
            InputError: If it cannot be read.
        """
        with self._reaching():
            return cast(IO[bytes], self._fs.open(self._path, mode, block_size=_BLOCK))

    def read_bytes(self) -> bytes:
        """Return all of it.

        Raises:
            InputError: If it cannot be read.
        """
        with self._reaching():
            return cast(bytes, self._patiently(lambda: self._fs.cat_file(self._path)))

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return all of it as text."""
        return self.read_bytes().decode(encoding)

    def glob(self, pattern: str = "") -> list[Remote]:
        """Return the files that a pattern names, or that this one does, in order of their names.

        Raises:
            InputError: If they cannot be listed.
        """
        there = f"{self._path.rstrip('/')}/{pattern}" if pattern else self._path
        return self._listed(lambda: self._fs.glob(there, detail=True))

    def iterdir(self) -> list[Remote]:
        """Return the files and folders in it, in order of their names.

        Raises:
            InputError: If they cannot be listed.
        """
        return self._listed(
            lambda: {one["name"]: one for one in self._fs.ls(self._path, detail=True)}, any_=True
        )

    def below(self) -> list[Remote]:
        """Return all files below it, in order of their names; none where it is not there.

        Raises:
            InputError: If they cannot be listed.
        """
        return self._listed(lambda: self._fs.find(self._path, detail=True))

    def relative_to(self, root: Remote) -> str:
        """Return its path below another."""
        return self._path.removeprefix(root._path.rstrip("/") + "/")

    def read_all(self, names: Sequence[str], *, kept: str = "") -> dict[str, bytes]:
        """Return files below it, many at a time where the file system can; one that is not there is left out.

        What passes is tried again.

        Raises:
            StorageError: If they cannot be read.
        """
        paths = {f"{self._path.rstrip('/')}/{name}": name for name in names}

        def read() -> dict[str, Any]:
            found = self._fs.cat(list(paths), on_error="return") if paths else {}
            for one in found.values():
                if isinstance(one, Exception) and not isinstance(one, FileNotFoundError):
                    raise one
            return cast(dict[str, Any], found)

        with self._reaching(StorageError, "read", kept):
            found = self._patiently(read)
        return {paths[path]: data for path, data in found.items() if isinstance(data, bytes)}

    def write_bytes(self, data: bytes, *, kept: str = "") -> None:
        """Write it whole; what passes is tried again.

        Raises:
            StorageError: If it cannot be written.
            ConfigurationError: If there are no credentials.
        """
        with self._reaching(StorageError, "written", kept):
            self._patiently(lambda: self._fs.pipe_file(self._path, data))

    def put(self, file: Path, *, kept: str = "") -> None:
        """Write it whole from a local file; what passes is tried again.

        Raises:
            StorageError: If it cannot be written.
        """
        with self._reaching(StorageError, "written", kept):
            self._patiently(lambda: self._fs.put_file(str(file), self._path))

    def unlink(self, names: Sequence[str] = (), *, kept: str = "") -> None:
        """Take it away, or the files of these names below it; those that are gone already are no error.

        Raises:
            StorageError: If they stay.
        """
        paths = [f"{self._path.rstrip('/')}/{name}" for name in names] or [self._path]
        with self._reaching(StorageError, "written", kept), suppress(FileNotFoundError):
            self._patiently(lambda: self._fs.rm(paths))

    def check_writable(self) -> None:
        """Make sure that files can be written and taken away there: before hours of work, not after.

        Raises:
            StorageError: If they cannot, or there is no such bucket.
            ConfigurationError: If there are no credentials.
        """
        probe = self / ".surerag-can-write"
        with probe._reaching(StorageError, "written"):
            probe._fs.pipe_file(probe._path, b"?")
            probe._fs.rm_file(probe._path)

    @functools.cached_property
    def _fs(self) -> Any:
        with extra("remote"):
            import fsspec
        with self._reaching():
            return fsspec.url_to_fs(self._url)[0]

    @functools.cached_property
    def _path(self) -> str:
        return cast(str, self._fs._strip_protocol(self._url))

    def _listed(self, listing: Callable[[], Mapping[str, Any]], *, any_: bool = False) -> list[Remote]:
        with self._reaching():
            self._fs.invalidate_cache()
            try:
                found = dict(listing())
            except FileNotFoundError:
                return []
        scheme = self._address.partition("://")[0]
        return [
            Remote(_with_protocol(scheme, name), info=info)
            for name, info in sorted(found.items())
            if (any_ or info["type"] == "file") and name.strip("/") != self._path.strip("/")
        ]

    def _patiently(self, call: Callable[[], R]) -> R:
        """Call again, after a while, what fails in a way that may pass."""
        for pause in _PAUSES:
            try:
                return call()
            except Exception as error:
                if isinstance(error, _PASSES_NEVER) or is_about_credentials(error):
                    raise
            time.sleep(pause)
        return call()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn what its stream fails with into an :class:`InputError` that names it, but for damaged data."""
        try:
            yield
        except (SureragError, EOFError, zlib.error, gzip.BadGzipFile):
            raise
        except Exception as error:
            self._raise(error, InputError, "read", "")

    @contextmanager
    def _reaching(
        self, told: type[SureragError] = InputError, verb: str = "read", kept: str = ""
    ) -> Iterator[None]:
        try:
            yield
        except SureragError:
            raise
        except Exception as error:  # every file system raises what its own client does
            self._raise(error, told, verb, kept)

    def _raise(self, error: Exception, told: type[SureragError], verb: str, kept: str) -> NoReturn:
        also = f"; {kept}" if kept else ""
        if is_about_credentials(error):
            raise ConfigurationError(
                f"there are no credentials for {self}: {reason_of(error)}{also}", hint=keys_of(self.protocol)
            ) from None
        if isinstance(error, FileNotFoundError):
            raise told(
                f"there is no {self}: no such bucket, or nothing of this name{also}",
                hint="check the address; buckets are not made",
            ) from None
        if isinstance(error, PermissionError):
            raise told(
                f"{self} cannot be {verb}: these credentials may not ({reason_of(error)}){also}",
                hint=keys_of(self.protocol),
            ) from None
        # Without its cause: what a client says may hold the address with all its secrets.
        raise told(
            f"{self} cannot be {verb}: {reason_of(error)}{also}",
            hint="check the address and the connection, and run the same again",
        ) from None


@functools.cache
def _check_protocol(protocol: str) -> None:
    with extra("remote"):
        import fsspec
    try:
        fsspec.get_filesystem_class(protocol)
    except ValueError:
        near = difflib.get_close_matches(protocol, fsspec.available_protocols(), 1)
        meant = (
            f"if {near[0]!r} is meant, write {near[0]}://"
            if near
            else "s3://, gs://, az:// and hf:// are some"
        )
        raise ConfigurationError(f"{protocol}:// is no protocol that is known here", hint=meant) from None
    except ImportError as error:
        package = _package(protocol, error)
        raise MissingExtraError(
            f"{protocol}:// needs the package {package!r}, which is not installed",
            hint=f'install it with: pip install "surerag[remote]" {package}',
        ) from error


def _package(protocol: str, error: ImportError) -> str:
    from fsspec.registry import known_implementations

    module = str(known_implementations.get(protocol, {}).get("class", "")).partition(".")[0]
    missing = (getattr(error.__cause__, "name", None) or error.name or "").partition(".")[0]
    return {"fsspec": missing, "": missing}.get(module, module) or protocol


def _with_protocol(scheme: str, path: str) -> str:
    return path if path.startswith(f"{scheme}://") else f"{scheme}://{path.lstrip('/')}"
