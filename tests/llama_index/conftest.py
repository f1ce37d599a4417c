"""What the LlamaIndex integration's tests share: what instrumentation heard, models, other evaluators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.evaluation import BaseEvaluator, EvaluationResult
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.llms.openai_like import OpenAILike

from tests.llama_index.watching import EVENTS, Recorder
from tests.servers.fake_openai import FakeOpenAI

KEY = "sk-very-secret"


@pytest.fixture
def spans() -> Iterator[SimpleSpanHandler]:
    root, recorder, spans = get_dispatcher(), Recorder(), SimpleSpanHandler()
    EVENTS.clear()
    root.add_event_handler(recorder)
    root.add_span_handler(spans)
    yield spans
    root.event_handlers.remove(recorder)
    root.span_handlers.remove(spans)


def like(server: FakeOpenAI, *, chat: bool = True, **settings: object) -> OpenAILike:
    """Return an OpenAILike that talks to the fake server."""
    defaults = {"model": "toy", "api_base": server.base_url, "api_key": KEY, "max_retries": 0}
    return OpenAILike(is_chat_model=chat, **{**defaults, **settings})


class Length(BaseEvaluator):
    """Another evaluator of the same batch, with arguments of its own."""

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass

    async def aevaluate(
        self, query: Any = None, response: Any = None, contexts: Any = None, limit: int = 0, **kwargs: Any
    ) -> EvaluationResult:
        return EvaluationResult(query=query, score=float(len(response) - limit))
