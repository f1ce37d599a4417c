"""One server for all tests, with the embedded reader converted to GGUF; and that reader itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from surerag import OpenAIReader, TransformersReader
from surerag.world import World, embedded_reader_path
from tests.server.llama_server import PYTHON, llama_server

collect_ignore_glob = [] if PYTHON else ["test_*.py"]

MODEL = Path(os.environ.get("SURERAG_SERVER_MODEL", embedded_reader_path()))
"""A llama.cpp server of the embedded reader, or of another model that ``tools.to_gguf`` can convert."""

PLAIN = {"repeat_penalty": 1.0}
"""Keeps this server from avoiding words that were said before, which it does unless told otherwise."""


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tools.to_gguf import convert

    file = tmp_path_factory.mktemp("server") / "reader.gguf"
    convert(MODEL, file)
    return file


@pytest.fixture(scope="session")
def server(gguf: Path) -> Iterator[str]:
    with llama_server(gguf, gguf.with_name("server.log")) as root:
        yield root


@pytest.fixture(scope="session")
def local() -> TransformersReader:
    return TransformersReader.from_pretrained(str(MODEL), dtype="float32")


@pytest.fixture(scope="session")
def chat(server: str, questions: list[str]) -> OpenAIReader:
    reader = OpenAIReader("embedded", base_url=server, vocabulary_size=_vocabulary(), extra_body=PLAIN)
    reader.probe(questions[0])
    return reader


@pytest.fixture(scope="session")
def completions(server: str, rendered: list[str]) -> OpenAIReader:
    reader = OpenAIReader(
        "embedded", base_url=server, api="completions", vocabulary_size=_vocabulary(), extra_body=PLAIN
    )
    reader.probe(rendered[0])
    return reader


@pytest.fixture(scope="session")
def questions() -> list[str]:
    """Prompts as the methods write them, on a world that the embedded reader never saw."""
    from surerag.prompts import CLOSED_BOOK, FROM_CONTEXT

    world = World(seed=1999)
    asked = world.questions(12)
    told = [FROM_CONTEXT.render(context=_gold(world, q), question=q.text) for q in asked[:6]]
    return told + [CLOSED_BOOK.render(question=question.text) for question in asked[6:]]


@pytest.fixture(scope="session")
def rendered(questions: list[str]) -> list[str]:
    """The same prompts, with the model's chat template written out."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    conversations = [[{"role": "user", "content": question}] for question in questions]
    return [
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        for turns in conversations
    ]


def _gold(world: World, question: object) -> str:
    return " ".join(world.passage[name].text for name in question.gold_passages)  # type: ignore[attr-defined]


def _vocabulary() -> int:
    from transformers import AutoConfig

    size: int = AutoConfig.from_pretrained(MODEL).vocab_size
    return size
