"""A web service: answers as server-sent events, each with how sure the model was, and whether to show it.

    pip install ".[langchain,demo]" langchain-community faiss-cpu langchain-huggingface langchain-openai
    pip install fastapi uvicorn
    python cookbooks/service.py      # the demo's model and text; then, in another terminal:
    curl -N localhost:8000/ask --json '{"question": "When was the Battle of Hastings?"}'

The answer arrives as events named ``token``. The last event is ``end``, with the uncertainty and ``shown``.
If ``shown`` is false, the page that displays the tokens must replace them by ``answer``, which then is
"I do not know.". With ``{"question": …, "draft": false}`` no word is sent before the service knows whether
the answer may be shown. A failure is an event named ``error``, without details of the servers behind.

Settings are environment variables:

- ``BASE_URL`` and ``MODEL``: an OpenAI-compatible server and its model, such as vLLM or Ollama; its key is
  ``OPENAI_API_KEY``. Without them the demo's small model answers in this process.
- ``PORT``: 8000 if it is not set.
- ``POLICY``: a file that ``surerag calibrate run.db --max-risk 0.1 --output policy.json`` wrote. Without it,
  answers whose uncertainty exceeds 1 nat are not shown. This limit is a guess: calibrate it.

Put your own documents, embeddings and prompt in the place of those in ``load_chain``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from langchain_core.messages import AIMessageChunk
from langchain_core.runnables import Runnable
from pydantic import BaseModel, Field

from surerag import AbstentionPolicy, Certainty

SECONDS = 60.0  # for one answer
NO_ANSWER = "I do not know."
LIMIT = 1.0  # nats; answers of a greater uncertainty are not shown, where there is no policy

logger = logging.getLogger(__name__)


class Ask(BaseModel):
    """A question, in the body of a request: addresses end up in the logs of proxies."""

    question: str = Field(min_length=1, max_length=2000)
    draft: bool = True


def load_chain() -> Runnable[Any, Any]:
    """Load the model, the documents and their index, once for the life of the service."""
    from langchain_community.vectorstores import FAISS
    from langchain_core.documents import Document
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnablePassthrough
    from langchain_huggingface import HuggingFaceEmbeddings
    from langchain_openai import ChatOpenAI

    from langchain_surerag import ChatReader, with_certainty
    from surerag.demo import load_corpus, load_reader
    from surerag.encoders import packaged_minilm_path

    if address := os.environ.get("BASE_URL"):
        model: Any = ChatOpenAI(model=os.environ["MODEL"], base_url=address, timeout=SECONDS)
    else:
        model = ChatReader(load_reader(), max_tokens=64)
    texts = [item for item in load_corpus() if item.metadata["title"] == "Normans"]
    embeddings = HuggingFaceEmbeddings(model_name=str(packaged_minilm_path()))
    store = FAISS.from_documents([Document(item.text, id=item.id) for item in texts], embeddings)

    def join(documents: list[Document]) -> str:
        return "\n".join(document.page_content for document in documents)

    prompt = ChatPromptTemplate.from_template("Context: {context}\nQuestion: {question}\nAnswer:")
    search = store.as_retriever(search_kwargs={"k": 3})
    return {"context": search | join, "question": RunnablePassthrough()} | prompt | with_certainty(model)


def create_app(load: Callable[[], Runnable[Any, Any]] = load_chain, seconds: float = SECONDS) -> FastAPI:
    """Return the service of a chain that ends in a model with a certainty."""
    path = os.environ.get("POLICY")
    policy = AbstentionPolicy.load(path) if path else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.chain = await asyncio.to_thread(load)
        yield

    app = FastAPI(title="Answers, and how sure the model is of them", lifespan=lifespan)

    @app.post("/ask")
    async def ask(asked: Ask, request: Request) -> StreamingResponse:
        events = answer_events(request.app.state.chain, policy, asked, seconds)
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    return app


def to_event(name: str, **data: Any) -> str:
    """Return a server-sent event with its data as JSON."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


async def answer_events(
    chain: Runnable[Any, Any], policy: AbstentionPolicy | None, asked: Ask, seconds: float
) -> AsyncIterator[str]:
    """Yield the tokens of an answer, then whether to show it; closing it closes the generation."""
    whole = AIMessageChunk("")
    try:
        async with aclosing(read_stream(chain, asked.question, seconds)) as chunks:
            async for chunk in chunks:
                whole += chunk
                if asked.draft and chunk.text:
                    yield to_event("token", text=chunk.text)
        end = decide(whole, policy)
    except TimeoutError:
        yield to_event("error", message=f"no answer within {seconds:g} seconds")
    except Exception:
        logger.exception("a question was not answered")
        yield to_event("error", message="the model did not answer")
    else:
        if end["shown"] and not asked.draft:
            yield to_event("token", text=whole.text)
        yield to_event("end", **end)


def decide(answer: AIMessageChunk, policy: AbstentionPolicy | None) -> dict[str, Any]:
    """Return whether to show an answer, and its certainty."""
    certainty = Certainty.from_dict(answer.response_metadata["certainty"])
    if policy is None:
        shown, probability = certainty.uncertainty is not None and certainty.uncertainty <= LIMIT, None
    else:
        selected = policy.select(answer.text, certainty)
        shown, probability = not selected.abstained, selected.probability
    text = answer.text if shown else NO_ANSWER
    return {"shown": shown, "answer": text, "uncertainty": certainty.uncertainty, "probability": probability}


async def read_stream(
    chain: Runnable[Any, Any], question: str, seconds: float
) -> AsyncIterator[AIMessageChunk]:
    """Yield the pieces of an answer, all of them within a number of seconds."""
    deadline = asyncio.get_running_loop().time() + seconds
    async with aclosing(chain.astream(question)) as stream:  # type: ignore[type-var]
        while True:
            async with asyncio.timeout_at(deadline):
                chunk = await anext(stream, None)
            if chunk is None:
                return
            yield chunk


app = create_app()

if __name__ == "__main__":
    import uvicorn

    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
