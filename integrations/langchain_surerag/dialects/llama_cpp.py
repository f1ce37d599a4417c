"""A model of llama.cpp in this process: one answer at a time, and nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_surerag._connections import OpenedStreams
from langchain_surerag.dialects.base import DO_WITHOUT, Dialect, Prepared
from langchain_surerag.dialects.settings import SETTINGS, Asked
from langchain_surerag.dialects.text import TextDialect


class ChatLlamaCppDialect(Dialect):
    """ChatLlamaCpp: takes the keywords of llama.cpp's ``create_chat_completion``."""

    serial = True
    takes = SETTINGS - {"n"}
    fix = f"build it with ChatLlamaCpp(…, logits_all=True); {DO_WITHOUT}"

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Say what stands for no limit."""
        found = dict(settings)
        if found.get("top_k", 1) is None:
            found["top_k"] = 0
        return found

    def prepared(self, asked: Asked) -> Prepared:
        """Ask for a whole answer as one: joined from pieces it would lose its stop texts."""
        settled = self.settled(asked)
        arguments = {**self.kept(settled), **self.keywords(settled.values)}
        model = self.copied(asked, streaming=False, **self.fields_without(settled.unset))
        return Prepared(model, arguments, OpenedStreams())


class LlamaCppDialect(TextDialect):
    """LlamaCpp, whose class drops log-probabilities."""

    serial = True
    fix = f"use ChatLlamaCpp(…, logits_all=True), which keeps them; {DO_WITHOUT}"
