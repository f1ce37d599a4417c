"""Entry point: failures that we foresaw are words on stderr and an exit code, not a traceback."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import warnings
from typing import NoReturn

from rich.markup import escape

from surerag.cli.app import app
from surerag.cli.display import errors
from surerag.decisions.policy import CalibrationWarning
from surerag.documents import SkippedFilesWarning
from surerag.errors import MissingExtraError, SureragError
from surerag.extras import extra
from surerag.readers.refusals import LeftOutWarning
from surerag.visible import visible

FAILED = 1
INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line.

    Exit codes: 0 done; 1 it failed, and stderr says why; 2 wrong usage; 130 interrupted.
    """
    _quiet()
    _printable()
    try:
        with extra("demo"):
            app()
    except SureragError as error:
        errors.print(f"[bold red]Error:[/] {escape(_at_once(error))}", soft_wrap=True, highlight=False)
        errors.print(f"[dim]More about it: {error.page}[/]", soft_wrap=True, highlight=False)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        errors.print("Interrupted.")
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        # The command line's own library has made an exit code of the key, and says nothing.
        if ended.code == INTERRUPTED:
            errors.print("Interrupted.")
        raise
    sys.exit(0)


def _at_once(error: SureragError) -> str:
    """Name the extra that has all a command needs, so that nobody installs one after the other."""
    if not isinstance(error, MissingExtraError):
        return str(error)
    return re.sub(r"surerag\[(?!train|field-test|remote|ray)[\w-]+\]", "surerag[demo]", str(error))


def _quiet() -> None:
    """Let the libraries below speak of errors only; their progress bars and notices are not ours."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")
    for name in ("transformers", "sentence_transformers", "faiss", "httpx", "pypdf"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    for ours in (SkippedFilesWarning, CalibrationWarning, LeftOutWarning):
        warnings.simplefilter("always", ours)
    warnings.formatwarning = _note


def _printable() -> None:
    """Have a terminal that lacks a letter show a question mark: documents hold letters of every language."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _note(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"Note: {visible(str(message))}.\n"
