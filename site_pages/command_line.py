"""The page of the command line, which Typer makes from the help of the commands."""

from __future__ import annotations

import html
import subprocess
import sys


def command_line_page() -> str:
    """Return the help of every command as Markdown."""
    command = [sys.executable, "-m", "typer", "surerag.cli.app", "utils", "docs", "--name", "surerag"]
    done = subprocess.run([*command, "--title", "Command line"], capture_output=True, text=True, check=True)  # noqa: S603  # its own words
    return html.unescape(done.stdout)
