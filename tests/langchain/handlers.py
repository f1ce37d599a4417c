"""Callback handlers as users write them."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler


class Seen(BaseCallbackHandler):
    """Shows tokens, and notes each call."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.calls: list[tuple[Any, ...]] = []

    def on_chat_model_start(self, *_: Any, tags: Any = None, name: Any = None, **__: Any) -> None:
        self.calls.append(("start", name, *sorted(tags)))

    def on_llm_start(self, *_: Any, tags: Any = None, name: Any = None, **__: Any) -> None:
        self.calls.append(("start", name, *sorted(tags)))

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self.tokens.append(token)

    def on_llm_end(self, response: Any, **_: Any) -> None:
        self.calls.append(("end",))

    def on_llm_error(self, error: BaseException, **_: Any) -> None:
        self.calls.append(("error", type(error).__name__))
