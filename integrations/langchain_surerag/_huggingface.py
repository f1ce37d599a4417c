"""HuggingFacePipeline and ChatHuggingFace hold a local model: it is read directly, with exact entropies."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from langchain_core.runnables.base import RunnableBindingBase

from surerag.readers import BaseReader

_readers: weakref.WeakKeyDictionary[Any, dict[bool, BaseReader]] = weakref.WeakKeyDictionary()
_readers_lock = threading.Lock()


def pipeline_reader(model: object) -> BaseReader | None:
    """Return a reader of the model inside a Hugging Face pipeline, or None if there is none.

    LangChain's own way through a pipeline loses log-probabilities, all samples but the first, and stop
    texts. There is one reader for each pipeline, so that all who use it are answered in merged batches.
    """
    while isinstance(model, RunnableBindingBase):
        model = model.bound
    chat = model if type(model).__name__ == "ChatHuggingFace" else None
    llm = getattr(chat, "llm", None) if chat is not None else model
    pipeline = getattr(llm, "pipeline", None) if type(llm).__name__ == "HuggingFacePipeline" else None
    if pipeline is None or getattr(pipeline, "task", "") != "text-generation":
        return None
    tokenizer = getattr(chat, "tokenizer", None) or pipeline.tokenizer
    with _readers_lock:
        readers = _readers.setdefault(pipeline, {})
        if (chat is not None) not in readers:
            readers[chat is not None] = _reader_of(pipeline.model, tokenizer, chat=chat is not None)
        return readers[chat is not None]


def _reader_of(model: Any, tokenizer: Any, *, chat: bool) -> BaseReader:
    from surerag.readers.transformers import TransformersReader

    # An LLM's prompt is its text as it stands; a chat model's goes through the tokenizer's template.
    reader: BaseReader = TransformersReader(model, tokenizer, chat_template=chat)
    return reader
