"""llama-cpp-python's OpenAI-compatible server, in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

PYTHON = os.environ.get("SURERAG_SERVER_PYTHON", "")
"""The interpreter that has llama-cpp-python; these tests run only where it is named."""

_STARTS_WITHIN = 120.0
_FLOAT32 = 0


@contextmanager
def llama_server(gguf: Path, log: Path) -> Iterator[str]:
    """Serve a model while the context lasts, and return the API's root.

    Args:
        gguf: The model.
        log: Where the server's output goes.

    Raises:
        RuntimeError: If it does not start; the message holds the end of its output.
    """
    port = _free_port()
    settings = {
        "model": gguf,
        "port": port,
        "host": "127.0.0.1",
        "n_ctx": 2048,
        "n_threads": 1,
        # Without it there are no log-probabilities.
        "logits_all": "true",
        # By default a new request breaks off the stream that is under way, also one that was only begun.
        "interrupt_requests": "false",
        # A cache in half precision, its default, moves log-probabilities by some thousandths.
        "type_k": _FLOAT32,
        "type_v": _FLOAT32,
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [PYTHON, "-m", "llama_cpp.server", *arguments], stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            root = f"http://127.0.0.1:{port}/v1"
            _wait_for(root, process, log)
            yield root
        finally:
            process.terminate()


def _wait_for(root: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN
    while process.poll() is None and time.monotonic() < deadline:
        try:
            httpx.get(f"{root}/models").raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
