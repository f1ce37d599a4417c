"""Settings for all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.servers.fake_openai import FakeOpenAI

# No test may ask a model hub; set before any library reads it.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["SURERAG_CACHE"] = "off"

# LangSmith's evaluation sends traces home even where results are not uploaded: nobody listens here.
os.environ["LANGSMITH_ENDPOINT"] = os.environ["LANGCHAIN_ENDPOINT"] = "http://127.0.0.1:9"

# The same examples on every machine, however slow it is.
settings.register_profile("surerag", deadline=None, derandomize=True)
settings.load_profile("surerag")


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Undo what commands and studies set: tests after them read the log."""
    yield
    logging.getLogger("surerag").setLevel(logging.NOTSET)


@pytest.fixture
def fake_openai() -> Iterator[FakeOpenAI]:
    """An OpenAI-compatible server in this process: a toy model, until ``answers`` are set."""
    with FakeOpenAI() as server:
        yield server
