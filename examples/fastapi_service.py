"""A question-answering service: it streams its answers, and searches only where its reader is unsure.

    pip install "surerag[demo]" langchain-huggingface fastapi uvicorn
    uvicorn fastapi_service:app
    curl -N localhost:8000/ask -d '{"question": "Where was Maela born?"}' -H 'Content-Type: application/json'

A line of the answer is a JSON object: first what the gate decided and what the reader was shown, then the
answer in pieces. What goes wrong before the first line has its status: 422 for what is no question, 503 for
what may pass, 500 for what is misconfigured.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings
from pydantic import BaseModel, Field

from langchain_surerag import LazyRetrievalChain
from surerag.encoders import packaged_minilm_path
from surerag.errors import InputError, SureragError
from surerag.world import embedded_reader

MODEL = embedded_reader  # yours: lambda: ChatOpenAI(model="gpt-4o")
DOCUMENTS = (
    "Maela was born in Drafstad. Maela works as a sailor. Maela plays the mandolin.",
    "Drafstad exports salt. Drafstad was founded in the year 1867.",
)

app = FastAPI(title="Ask")
log = logging.getLogger(__name__)


class Question(BaseModel):
    """What is asked."""

    question: str = Field(min_length=1, max_length=2000)


@cache
def chain() -> LazyRetrievalChain:
    """Build the pipeline, once; a local model then answers all callers in shared batches."""
    documents = [Document(text) for text in DOCUMENTS]
    embeddings = HuggingFaceEmbeddings(model_name=str(packaged_minilm_path()), model_kwargs={"device": "cpu"})
    store = InMemoryVectorStore.from_documents(documents, embeddings)
    retriever = store.as_retriever(search_kwargs={"k": 3})
    return LazyRetrievalChain.from_documents(documents, MODEL(), retriever, embeddings, max_tokens=64)


@app.post("/ask")
async def ask(asked: Question) -> StreamingResponse:
    """Answer a question, line by line."""
    chunks = chain().astream(asked.question)
    try:
        first = await anext(chunks)  # whether it can be answered at all is known before the first line
    except InputError as error:
        raise HTTPException(422, str(error)) from error
    except SureragError as error:
        log.exception("no answer")
        raise HTTPException(503 if error.retryable else 500, type(error).__name__) from error
    return StreamingResponse(_lines(first, chunks), media_type="application/x-ndjson")


async def _lines(first: dict[str, Any], rest: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    yield _line(first)
    async for chunk in rest:
        yield _line(chunk)


def _line(chunk: dict[str, Any]) -> str:
    told: dict[str, Any] = {}
    if "decision" in chunk:
        told["searched"] = chunk["decision"]["retrieve"]
        told["signal"] = chunk["decision"]["signal"]
    if "context" in chunk:
        told["shown"] = [document.page_content for document in chunk["context"]]
    if "answer" in chunk:
        told["answer"] = chunk["answer"]
    return json.dumps(told) + "\n"
