"""A local reader that answers by rule and remembers the batches it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from surerag.effects import Generate, Program, perform
from surerag.errors import ServiceError
from surerag.messages import EntropyTrace, Generation, Prompt, SamplingParams, TokenTrace
from surerag.readers.protocol import BaseReader, BegunGeneration, Capabilities


class LocalReader(BaseReader):
    """Answers ``answer(prompt)`` word by word; a prompt that contains ``poison`` fails its whole batch."""

    name = "local"
    capabilities = Capabilities(logprobs=True, entropy="exact", begin="native", local=True)

    def __init__(
        self, answer: Callable[[str], str] = str, entropy: Callable[[str], float] = lambda _: 0.1
    ) -> None:
        self.answer = answer
        self.entropy = entropy
        self.batches: list[tuple[str, int]] = []
        self.threads: set[int] = set()
        self.open: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        self._note("generate", prompts)
        return [
            [self._whole(str(prompt), f"#{i}" if i else "") for i in range(sampling.n)] for prompt in prompts
        ]

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[BegunGeneration]:
        self._note("begin", prompts)
        begun: list[BegunGeneration] = []
        for prompt in prompts:
            whole = self._whole(str(prompt))
            trace = whole.trace
            assert trace is not None
            head = _trace(trace.tokens[:n_tokens], self.entropy(str(prompt)))
            done = len(trace) <= n_tokens
            partial = Generation("".join(head.tokens).strip(), 3, head, "partial", n_tokens)
            begun.append(BegunGeneration(whole, whole) if done else BegunAnswer(self, partial, whole))
        self.open.update(map(id, begun))
        return begun

    def _note(self, verb: str, prompts: Sequence[Prompt]) -> None:
        self.gate.wait()
        self.threads.add(threading.get_ident())
        self.batches.append((verb, len(prompts)))
        if any("poison" in str(prompt) for prompt in prompts):
            raise ServiceError("the prompt is poisoned")

    def _whole(self, prompt: str, suffix: str = "") -> Generation:
        words = (self.answer(prompt) + suffix).split()
        tokens = tuple(word if place == 0 else f" {word}" for place, word in enumerate(words))
        return Generation("".join(tokens), 3, _trace(tokens, self.entropy(prompt)), "stop", len(tokens))


class BegunAnswer(BegunGeneration):
    """Knows its whole answer from the beginning; its reader remembers the batches it is completed in."""

    def __init__(self, reader: LocalReader, partial: Generation, answer: Generation) -> None:
        super().__init__(partial)
        self.reader, self.answer = reader, answer

    def rest(self) -> Generation:
        return self._rest_together([self])[0]

    def _rest_together(self, begun: Sequence[BegunAnswer]) -> list[Generation]:
        self.reader.batches.append(("rest", len(begun)))
        for item in begun:
            item.close()
        return [item.answer for item in begun]

    def close(self) -> None:
        self.reader.open.discard(id(self))


def _trace(tokens: tuple[str, ...], entropy: float) -> TokenTrace:
    values = (entropy,) * len(tokens)
    return TokenTrace(tokens, (-0.1,) * len(tokens), EntropyTrace(values, values, exact=True))


def ask_once(prompt: str) -> Program[str]:
    """Ask one prompt."""
    [[answer]] = yield from perform(Generate([prompt], SamplingParams()))
    return answer.text
