"""Settings for all tests."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.servers.fake_openai import FakeOpenAI

# No test may ask a model hub; set before any library reads it.
os.environ["HF_HUB_OFFLINE"] = "1"

# LangSmith's evaluation sends traces home even where results are not uploaded: nobody listens here.
os.environ["LANGSMITH_ENDPOINT"] = os.environ["LANGCHAIN_ENDPOINT"] = "http://127.0.0.1:9"

# Runs whose folder is elsewhere work here, and not in the user's cache.
os.environ["SURERAG_WORK"] = tempfile.mkdtemp(prefix="surerag-work-")
atexit.register(shutil.rmtree, os.environ["SURERAG_WORK"], ignore_errors=True)

# The same examples on every machine, however slow it is.
settings.register_profile("surerag", deadline=None, derandomize=True)
settings.load_profile("surerag")


@pytest.fixture
def fake_openai() -> Iterator[FakeOpenAI]:
    """An OpenAI-compatible server in this process: a toy model, until ``answers`` are set."""
    with FakeOpenAI() as server:
        yield server
