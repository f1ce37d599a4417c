"""llama-cpp-python's OpenAI-compatible server over the demo's base, in a process of its own."""

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
"""The interpreter that has llama-cpp-python; ``make test-server`` names it."""

MODEL = os.environ.get("SURERAG_SERVER_MODEL", "")
"""The model's GGUF file."""

SECONDS_TO_START = 120.0


@contextmanager
def llama_cpp_server(log: Path) -> Iterator[str]:
    """Serve the model while the context lasts, and return the API's root.

    Raises:
        RuntimeError: If it does not start; the message holds the end of its output.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "model": MODEL,
        "port": port,
        "n_ctx": 2048,
        # Without it there are no log-probabilities.
        "logits_all": "true",
        # By default a new request breaks off the stream that is under way.
        "interrupt_requests": "false",
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    command = [PYTHON, "-m", "llama_cpp.server", *arguments]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            root = f"http://127.0.0.1:{port}/v1"
            _wait_for(root, process, log)
            yield root
        finally:
            process.terminate()


def _wait_for(root: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while process.poll() is None and time.monotonic() < deadline:
        try:
            httpx.get(f"{root}/models").raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
