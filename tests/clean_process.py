"""A clean process, to see what code loads in it, or what the command line says there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def loaded_by(code: str, *names: str) -> list[str]:
    """Run code in a clean process; return which of the top-level packages it loaded."""
    script = f"{code}\nimport sys\nprint(*sorted(set({names!r}) & {{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def command_line(
    arguments: Sequence[str], *, before: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a clean process.

    Args:
        arguments: Of ``surerag``.
        before: Code to run there first.
        folder: Where to run it.
    """
    given = ["surerag", *arguments]
    script = f"{before}\nimport sys\nsys.argv = {given!r}\nfrom surerag.cli import main\nmain()\n"
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
