"""A small town, who talks about it, and a tiny base to train, for the rewriter's tests."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from surerag.readers.protocol import BaseReader, Capabilities
from surerag.readers.scripted import reply
from surerag.training.rewriter import Query
from surerag.types import Generation, Passage, Prompt, Sampling, as_messages
from tests.readers.sizes import END_ID, VOCABULARY
from tests.readers.tiny_models import tiny_tokenizer

NAMES = ("Ada", "Bo", "Cyr", "Dov", "Eli", "Fay", "Gus", "Hal", "Ivo", "Jan")
TOWNS = ("Velm", "Orun", "Tark", "Sild", "Brae", "Cald", "Dorn", "Esk", "Fenn", "Gort")
QUERIES = [
    Query(f"Where was {name} raised?", (town, f"in {town}"), f"q{place}")
    for place, (name, town) in enumerate(zip(NAMES, TOWNS, strict=True))
]
CORPUS = [
    Passage(f"{name} was born in {town}.", id=f"p{place}")
    for place, (name, town) in enumerate(zip(NAMES, TOWNS, strict=True))
]


class Corpus:
    """Finds what tells of the person that a query names, if it asks for a birth; else the first passages."""

    def retrieve(self, query: str, k: int) -> list[Passage]:
        found = [p for p in CORPUS if p.text.split()[0] in query and "born" in query]
        return (found + CORPUS)[:k]


class Talker(BaseReader):
    """Answers prompts by a rule, and notes in a file what it is asked before it does.

    Args:
        say: From a prompt and the number of the sample to a text and a log-probability of each of its words.
        notes: Gets a line for each prompt; stays the same file however often the process is killed.
        local: Whether it is a model in this process.
        fails_at: Prompts that contain this fail.
        dies_after: Prompts after which the process is to end, as far as this reader can bring it about.
    """

    def __init__(
        self,
        say: Callable[[str, int], tuple[str, float]],
        notes: Path | None = None,
        *,
        local: bool = True,
        fails_at: str | None = None,
        dies_after: int | None = None,
    ) -> None:
        self._say, self._notes, self._local = say, notes, local
        self._fails_at, self._left = fails_at, dies_after
        self.asked: list[str] = []

    @property
    def name(self) -> str:
        return f"talker {self._say.__name__}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(logprobs=True, entropy=None, local=self._local)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        texts = [as_messages(prompt)[-1].content for prompt in prompts]
        for text in texts:
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    raise KeyboardInterrupt
            if self._fails_at is not None and self._fails_at in text:
                raise RuntimeError(f"cannot say anything of {self._fails_at}")
        self.asked += texts
        if self._notes is not None:
            handle = os.open(self._notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(handle, "".join(json.dumps(text) + "\n" for text in texts).encode())
            os.close(handle)
        return [[self._reply(text, at) for at in range(sampling.n)] for text in texts]

    def _reply(self, text: str, at: int) -> Generation:
        said, logprob = self._say(text, at)
        return reply(said, logprobs=logprob)


def rewriting(prompt: str, at: int) -> tuple[str, float]:
    """Write four kinds of rewrites: a good one, a copy, nothing, and the good one again."""
    query = prompt.rpartition("Query: ")[2]
    name = query.split()[2]
    good = f"Where was {name} born?"
    return (good, query, "", good, f"{name}, where?")[at % 5], -0.1


def reading(prompt: str, at: int) -> tuple[str, float]:
    """Answer certainly from the right passage, uncertainly from others; digits depend on the prompt."""
    name = prompt.rpartition("Question: ")[2].split()[2]
    for passage in CORPUS:
        if passage.text.startswith(name) and passage.text in prompt:
            return passage.text.rpartition(" ")[2].rstrip("."), -0.125
    doubt = hashlib.sha256(prompt.encode()).digest()[0] / 256
    return "Nowhere", -1 - doubt


def teaching(prompt: str, at: int) -> tuple[str, float]:
    """Rewrite as a good teacher would."""
    return rewriting(prompt, 0)


def tiny_base(folder: Path, *, chat: bool = True) -> Path:
    """Write a random model of some thousand weights."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, eos_token_id=END_ID,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer(chat=chat).save_pretrained(folder)
    return folder
