"""Peers from PyPI, each in an environment of its own, since they want other versions of what we use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parent


class Peer(NamedTuple):
    """A package to compare with.

    Attributes:
        package: Name and version on PyPI.
        script: What it runs.
        constraints: Versions of what it needs; torch is always the one that we use.
    """

    package: str
    script: Path
    constraints: Path

    @property
    def name(self) -> str:
        """The package's name."""
        return self.package.partition("==")[0]


PEERS = (
    Peer("lm-polygraph==0.7.0", _HERE / "peers" / "polygraph.py", _HERE.parent / "constraints.txt"),
    Peer("uqlm==0.6.7", _HERE / "peers" / "uqlm_peer.py", _HERE / "peers" / "uqlm.txt"),
)


class PeerError(Exception):
    """A peer could not be installed, or did not do its job; the message holds the end of its output."""


class Answer(NamedTuple):
    """What a peer found.

    Attributes:
        seconds: By component: ``without``, ``with``, ``entailment``, ``total``, and ``pairs`` for the
            statements of the job.
        distinct: Distinct answers to each prompt, by ``without`` and ``with``.
        judged: Pairs of statements that went through its classifier.
        logits: Of the reader, behind the first prompt.
        versions: Of the packages it used.
    """

    seconds: dict[str, float]
    distinct: dict[str, list[int]]
    judged: int
    logits: list[float]
    versions: dict[str, str]


def environment(peer: Peer, cache: Path) -> Path:
    """Return the Python of a peer's environment; make it where it is not there yet.

    Raises:
        PeerError: If it cannot be made.
    """
    folder = (cache / peer.package).absolute()
    python = folder / "bin" / "python"
    done = folder / ".installed"
    wanted = peer.constraints.read_text(encoding="utf-8")
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run([*pip, "pip>=25.1"])
    _run([*pip, "--constraint", str(peer.constraints), peer.package])
    done.write_text(wanted, encoding="utf-8")
    return python


def ask(peer: Peer, python: Path, job: Path) -> Answer:
    """Let a peer do a job.

    Raises:
        PeerError: If it fails.
    """
    result = job.with_suffix(f".{peer.name}.json")
    _run([str(python), str(peer.script), str(job), str(result)], job.parent)
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return Answer(**{name: found[name] for name in Answer._fields})


def _run(command: list[str], home: Path | None = None) -> None:
    """Run a command; the peers look for nothing on the hub, and for nothing in the user's settings."""
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}
    settings = {**os.environ, **quiet, **({"HF_HOME": str(home / "hub")} if home else {})}
    settings.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise PeerError(f"{' '.join(command[:6])} … ended with {done.returncode}:\n{tail}")
