"""A clean process, to see what code loads in it."""

from __future__ import annotations

import subprocess
import sys


def loaded_by(code: str, *names: str) -> list[str]:
    """Run code in a clean process; return which of the top-level packages it loaded."""
    script = f"{code}\nimport sys\nprint(*sorted(set({names!r}) & {{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
