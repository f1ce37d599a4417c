"""Types of what is alive in a part; it is checked where it becomes a service, with a hint of what to do."""

from __future__ import annotations

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from pydantic import SkipValidation

from surerag.readers import Reader
from surerag.services import Encoder, Entailer

Model = SkipValidation[LLM | Reader | None]
"""A LlamaIndex LLM, or a reader of surerag; ``Settings.llm`` if left out."""

EmbedModel = SkipValidation[BaseEmbedding | Encoder | None]
"""A LlamaIndex embedding model, or an encoder of surerag; ``Settings.embed_model`` if left out."""

Judge = SkipValidation[Entailer | LLM | Reader | None]
"""An entailer of surerag, or a model that is asked in words."""
