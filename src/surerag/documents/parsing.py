"""Parsing in a process of its own: no file takes longer than it may, or takes the program with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess  # nosec B404
import sys
from contextlib import suppress
from threading import Timer
from typing import IO, Any, Self

from surerag.documents.formats import Contents, UnreadableFileError, read_file
from surerag.errors import ConfigurationError, MissingExtraError

_IN_PROCESS = (".txt", ".md", ".markdown")
_MEMORY = 4 * 2**30
_COMMAND = "from surerag.documents.parsing import serve; serve()"


class Parser:
    """Reads files; of kinds whose parsers may take long, in a second process that is ended in time.

    Args:
        max_seconds: Time for one file; None reads in this process, however long it takes.

    Raises:
        ConfigurationError: If ``max_seconds`` is not positive.
    """

    def __init__(self, max_seconds: float | None) -> None:
        if max_seconds is not None and not max_seconds > 0:
            raise ConfigurationError(f"max_seconds must be positive or None, got {max_seconds!r}")
        if max_seconds is not None and not sys.executable:
            raise ConfigurationError(
                "this program has no Python interpreter that could be started a second time",
                hint="give max_seconds=None, and read only files that you trust",
            )
        self._max_seconds = max_seconds
        self._worker: _Worker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(self, suffix: str, data: bytes) -> Contents:
        """Read a file of a known kind.

        Raises:
            UnreadableFileError: If it holds no text for us, is damaged or takes too long.
            MissingExtraError: If its parser is not installed.
        """
        if self._max_seconds is None or suffix in _IN_PROCESS:
            return read_file(suffix, data)
        if self._worker is None:
            self._worker = _Worker()
        try:
            return self._worker.read(suffix, data, self._max_seconds)
        except _EndedError as error:
            self._end()
            slow = f"took longer than {self._max_seconds:g} seconds"
            raise UnreadableFileError(slow if error.late else "its parser crashed") from error
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


class _EndedError(Exception):
    """The second process ended before it answered."""

    def __init__(self, *, late: bool) -> None:
        super().__init__()
        self.late = late


class _Worker:
    """The second process, as the first one sees it."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109 (an entry of sys.path)
        # Starts this interpreter, with fixed arguments.
        self._process = subprocess.Popen(  # noqa: S603  # nosec B603
            [sys.executable, "-P", "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self._receive()

    def read(self, suffix: str, data: bytes, max_seconds: float) -> Contents:
        """Let the process read one file, or kill it.

        Raises:
            _EndedError: If it was killed, or died.
        """
        late = False

        def kill() -> None:
            nonlocal late
            late = True
            self._process.kill()

        timer = Timer(max_seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            _send(self._process.stdin, suffix.encode())
            _send(self._process.stdin, data)
            answer = self._receive()
        except (OSError, EOFError) as error:
            raise _EndedError(late=late) from error
        finally:
            timer.cancel()
        if "unreadable" in answer:
            raise UnreadableFileError(answer["unreadable"])
        if "missing" in answer:
            raise MissingExtraError(answer["missing"])
        return Contents(answer["text"], answer["title"])

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()

    def _receive(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(_received(self._process.stdout))
        return answer


def serve() -> None:
    """Read files as they come on standard input, until there are no more; the second process's whole life."""
    files, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 (not a path)
        os.dup2(nowhere.fileno(), 1)  # what a parser prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the first process's to handle
    _limit_memory()
    _send(answers, b"{}")
    while True:
        try:
            suffix = _received(files).decode()
            data = _received(files)
        except EOFError:
            return
        _send(answers, json.dumps(_answer(suffix, data)).encode("ascii"))


def _answer(suffix: str, data: bytes) -> dict[str, str]:
    try:
        return read_file(suffix, data)._asdict()
    except UnreadableFileError as error:
        return {"unreadable": str(error)}
    except MissingExtraError as error:
        return {"missing": str(error)}


def _limit_memory() -> None:
    """Let a file that unfolds to gigabytes fail alone; systems without such limits do without."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = _MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _send(pipe: IO[bytes] | None, data: bytes) -> None:
    if pipe is None:
        raise EOFError
    pipe.write(len(data).to_bytes(8, "big") + data)
    pipe.flush()


def _received(pipe: IO[bytes] | None) -> bytes:
    if pipe is None:
        raise EOFError
    return _exactly(pipe, int.from_bytes(_exactly(pipe, 8), "big"))


def _exactly(pipe: IO[bytes], length: int) -> bytes:
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data
