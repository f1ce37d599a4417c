"""What models report through LangChain's callbacks: calls and tokens of one question."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs

from surerag import Costs
from surerag.text import estimated_tokens


def counted_by(count: BaseCallbackHandler) -> RunnableConfig:
    """Return the config of the run that is under way, in which a count listens as well."""
    return merge_configs(ensure_config(), {"callbacks": [count]})


class Count(BaseCallbackHandler):
    """Counts calls and tokens of one question; models of a chain may report from several threads."""

    def __init__(self) -> None:
        self.costs, self.model = Costs(), ""
        self._lock = threading.Lock()
        self._asked: dict[UUID, str] = {}

    def on_llm_start(self, serialized: Any, prompts: list[str], *, run_id: UUID, **_: Any) -> None:
        """Note what was asked."""
        self._began(run_id, "".join(prompts))

    def on_chat_model_start(
        self, serialized: Any, messages: list[list[BaseMessage]], *, run_id: UUID, **_: Any
    ) -> None:
        """Note what was asked."""
        self._began(run_id, "".join(str(one.text) for row in messages for one in row))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Count what a model reports, or estimate it."""
        read = wrote = cached = 0
        for generation in (one for row in response.generations for one in row):
            message = generation.message if isinstance(generation, ChatGeneration) else None
            usage = message.usage_metadata if isinstance(message, AIMessage) else None
            if usage is None or message is None:
                wrote += estimated_tokens(generation.text)
                continue
            read, wrote = read + usage["input_tokens"], wrote + usage["output_tokens"]
            cached += usage.get("input_token_details", {}).get("cache_read", 0)
            with self._lock:
                self.model = self.model or str(message.response_metadata.get("model_name", ""))
        with self._lock:
            asked = self._asked.pop(run_id, "")
            self.costs += Costs(read or estimated_tokens(asked), wrote, min(cached, read))

    def _began(self, run_id: UUID, asked: str) -> None:
        with self._lock:
            self._asked[run_id] = asked
            self.costs += Costs(calls=1)
