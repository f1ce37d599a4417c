"""The verbs of all methods."""

from __future__ import annotations

from typing import Any

import pytest

from surerag import FakeReader, LazyRAG, Passage
from surerag.errors import ServiceError
from surerag.methods.lazy_rag.component import FixedSummary


class Search:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        if "3" in query:
            raise ServiceError("the index is gone")
        return [Passage("Ada was born in Velm.")]


@pytest.mark.parametrize("verb", ["run_many", "arun_many"])
async def test_one_failure_of_many_need_not_lose_the_others(verb: str) -> None:
    rag = LazyRAG(FakeReader(lambda prompt: "Velm", entropy=9.0), Search(), FixedSummary("Ada."))
    questions = [f"Where was Ada born, {place}?" for place in range(5)]

    async def ask(**options: Any) -> list[Any]:
        results = getattr(rag, verb)(questions, **options)
        return results if verb == "run_many" else await results

    results = await ask(return_exceptions=True)
    assert [getattr(result, "answer", None) for result in results] == ["Velm"] * 3 + [None, "Velm"]
    assert isinstance(results[3], ServiceError)
    with pytest.raises(ServiceError, match="the index is gone"):
        await ask()
