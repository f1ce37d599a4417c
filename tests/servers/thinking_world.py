"""The embedded reader behind an OpenAI-style server, with a scripted thought before its answers or without.

with FakeOpenAI(WorldModel(thinks=True)) as server:      # the marks stand in the content
    ...
    server.fault = reasoning_parser                      # as vLLM's: the thought in a field of its own,
                                                         # one list of log-probabilities over both
"""

from __future__ import annotations

import json
import threading
from functools import cache

import torch

from surerag.types import Sampling
from tests.readers.thinking_world import plain_reader
from tests.servers.fake_openai import Wire
from tests.servers.toy_model import Said, Token, ToyModel

OPEN, CLOSE = "<think>", "</think>"
THOUGHT = (OPEN, "\n", "Which", " river", "?", " Orun", ".", "\n", CLOSE, "\n\n")
_LISTED = 40
"""Likeliest tokens that are known of each place; more than any server lists."""


class WorldModel(ToyModel):
    """Answers as the embedded reader does, after a thought or at once.

    Args:
        thinks: Whether a thought comes before each answer.
    """

    vocabulary_size = 3879

    def __init__(self, *, thinks: bool) -> None:
        super().__init__()
        self._thought = [Token(text, -0.01, {text: -0.01, " so": -5.0}) for text in THOUGHT if thinks]
        self._lock = threading.Lock()

    def say(self, prompt: str, temperature: float, seed: int, max_tokens: int) -> Said:
        """Answer a prompt; ``max_tokens`` are those of thought and answer."""
        left = max_tokens - len(self._thought)
        if left <= 0:
            return Said(self._thought[:max_tokens], "length")
        with self._lock:
            answer = _answer(prompt, temperature, seed)
        tokens, finish = answer.tokens[:left], answer.finish
        return Said([*self._thought, *tokens], finish if len(tokens) == len(answer.tokens) else "length")


@cache
def _answer(prompt: str, temperature: float, seed: int) -> Said:
    reader = plain_reader()
    sampling = Sampling(temperature=temperature, seed=seed, max_tokens=24)
    ((answer,),) = reader.generate([prompt], sampling)
    assert answer.trace is not None
    texts = answer.trace.tokens
    if not texts:
        return Said([], answer.finish)
    before = reader._encoder.encode(prompt)
    after = reader._encoder.encode_with(prompt, "".join(texts))
    assert len(after) == len(texts)
    with torch.inference_mode():
        logits = reader._model._model(input_ids=torch.tensor([before + after])).logits[
            0, len(before) - 1 : -1
        ]
    logprobs = logits.float().log_softmax(-1)
    decode = reader._encoder._tokenizer.decode
    tokens = []
    for text, logprob, row in zip(texts, answer.trace.logprobs, logprobs, strict=True):
        values, ids = row.topk(_LISTED)
        top = {decode([i]): value for i, value in zip(ids.tolist(), values.tolist(), strict=True)}
        tokens.append(Token(text, logprob, {**top, text: logprob}))
    return Said(tokens, answer.finish)


def reasoning_parser(wire: Wire) -> None:
    """Answer as a server with a reasoning parser does."""
    if not wire.asked.get("stream"):
        body = wire.honest()
        for choice in body["choices"]:
            message = choice["message"]
            message["reasoning"], message["content"] = _parted(message["content"])
        wire.body(json.dumps(body).encode())
        return
    wire.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    said = ""
    for piece in wire.honest_pieces():
        for choice in piece["choices"]:
            fresh = choice["delta"].pop("content")
            before, said = said, said + fresh
            if CLOSE in before or OPEN not in said:
                choice["delta"]["content"] = fresh
            elif fresh not in (OPEN, CLOSE):
                choice["delta"]["reasoning"] = fresh
        wire.raw(b"data: " + json.dumps(piece).encode() + b"\n\n")
    wire.raw(b"data: [DONE]\n\n")


def _parted(content: str) -> tuple[str | None, str]:
    thought, closed, answer = content.partition(CLOSE)
    if not content.startswith(OPEN):
        return None, content
    return thought.removeprefix(OPEN), answer.removeprefix("\n\n") if closed else ""
