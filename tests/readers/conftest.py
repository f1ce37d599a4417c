"""Servers for the readers' tests."""

from collections.abc import Iterator

import pytest
from tests.servers.fake_openai import FakeOpenAI


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as running:
        yield running
