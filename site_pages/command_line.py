"""The page of the command line, made by Typer of the command line's own help."""

from __future__ import annotations

import html
import subprocess
import sys

_FRONT = "---\ntitle: Command line\n---\n\n"


def command_line_page() -> str:
    """Return the help of every command as Markdown."""
    command = [sys.executable, "-m", "typer", "surerag.cli.app", "utils", "docs", "--name", "surerag"]
    done = subprocess.run([*command, "--title", "Command line"], capture_output=True, text=True, check=True)  # noqa: S603  # its own words
    return _FRONT + html.unescape(done.stdout)
