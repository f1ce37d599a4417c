"""A real llama.cpp server with a real model; it runs where ``make test-server`` has built one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from surerag import LazyRAG, Passage
from surerag.readers.conformance import check_reader
from surerag.readers.hosted import OpenAIReader
from surerag.readers.hosted.requests import Api
from tests.servers import llama_cpp

pytestmark = pytest.mark.skipif(not llama_cpp.PYTHON, reason="make test-server runs it")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_cpp.llama_cpp_server(tmp_path_factory.mktemp("server") / "log.txt") as root:
        yield root


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_probed_reader_passes_the_conformance_suite(root: str, api: Api) -> None:
    reader = OpenAIReader("smollm2", base_url=root, api=api)
    reader.probe()
    assert reader.capabilities.logprobs
    # In four bits its figures depend on what is read at once, and samples of one seed with them.
    report = check_reader(reader, tolerance=0.5, seeded=False)
    assert report.passed, str(report)


class Search:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage("The Eiffel Tower was opened in 1889.", id="tower")]


def test_the_gate_measures_the_servers_answer(root: str) -> None:
    reader = OpenAIReader("smollm2", base_url=root)
    reader.probe()
    lazy = LazyRAG(reader, Search(), "A page about the towers of Paris.", max_tokens=16)
    result = lazy.run("When was the Eiffel Tower opened?")
    assert result.answer and result.decision.score is not None and result.decision.score > 0
