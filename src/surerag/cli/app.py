"""Entry point of the command line; an expected error prints one line to standard error."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from surerag.calibration import CalibrationWarning
from surerag.cli.calibrate import calibrate
from surerag.cli.compare import compare
from surerag.cli.demo import demo
from surerag.cli.display import show, show_error, show_note
from surerag.cli.doctor import doctor
from surerag.cli.evaluate import evaluate
from surerag.cli.models import INTERRUPTED
from surerag.cli.train_rewriter import train_rewriter
from surerag.documents import FileNotesWarning, SkippedFilesWarning
from surerag.encoders import EmbeddingCacheWarning
from surerag.errors import ConfigurationError, InputError, PromptError, SureragError
from surerag.evaluation.run import StoredAnswersWarning

FAILED, WRONG_USAGE = 1, 2
_WARNINGS_AS_NOTES = (
    SkippedFilesWarning, FileNotesWarning, EmbeddingCacheWarning, CalibrationWarning, StoredAnswersWarning
)  # fmt: skip
"""Classes of warnings that are printed as notes; warnings of other classes are hidden."""

app = typer.Typer(
    help="RAG that uses its model's uncertainty. Exit codes: 0 = success. 1 = failure. 2 = an argument, "
    "an option or a file cannot be used. 3 = a requirement (--require) is not met. 4 = a requirement is "
    "undecided, calibrate found no guarantee, or the trained rewriter does not help. 130 = interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (demo, doctor, compare, evaluate, calibrate, train_rewriter):
    app.command(_command.__name__.replace("_", "-"))(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        show(f"surerag {version('surerag')}")
        raise typer.Exit


@app.callback()
def _common_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line, and exit with one of the codes that ``surerag --help`` lists."""
    _silence_libraries()
    try:
        app()
    except SureragError as error:
        show_error(_with_names_of_options(str(error)))
        wrong_usage = isinstance(error, ConfigurationError | InputError | PromptError)
        sys.exit(WRONG_USAGE if wrong_usage else FAILED)
    except KeyboardInterrupt:
        show_error("interrupted")
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _with_names_of_options(message: str) -> str:
    """Return an error's message with the name of an option in place of the name of a Python argument.

    Example:
        >>> _with_names_of_options("max_loss must be in (0, 1], got 2.0")
        '--max-loss must be in (0, 1], got 2.0'
    """
    commands = typer.main.get_group(app).commands.values()
    names = {option.name for command in commands for option in command.params if option.opts[0][:2] == "--"}
    return re.sub(
        r"\w+(?= must be )", lambda m: f"--{m[0].replace('_', '-')}" if m[0] in names else m[0], message
    )


def _silence_libraries() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")
    for name in ("transformers", "sentence_transformers", "httpx", "matplotlib", "surerag"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    for category in _WARNINGS_AS_NOTES:
        warnings.simplefilter("always", category)
    warnings.showwarning = lambda message, *_, **__: show_note(str(message))
