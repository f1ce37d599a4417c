"""A local reader that answers by rule and remembers the batches it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from surerag.effects import Generate, Program, perform
from surerag.errors import ServiceError
from surerag.messages import EntropyTrace, Generation, PartialGeneration, Prompt, SamplingParams, TokenTrace
from surerag.readers.protocol import BaseReader, Capabilities


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
    ) -> list[PartialGeneration]:
        self._note("begin", prompts)
        begun = []
        for prompt in prompts:
            whole = self._whole(str(prompt))
            trace = whole.trace
            assert trace is not None
            head = _trace(trace.tokens[:n_tokens], self.entropy(str(prompt)))
            done = len(trace) <= n_tokens
            partial = (
                whole if done else Generation("".join(head.tokens).strip(), 3, head, "partial", n_tokens)
            )
            begun.append(PartialGeneration(partial, done, whole))
        self.open.update(map(id, begun))
        return begun

    def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        self.batches.append(("finish", len(begun)))
        self.open -= set(map(id, begun))
        return [item.state for item in begun]

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        self.open -= set(map(id, begun))

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


def _trace(tokens: tuple[str, ...], entropy: float) -> TokenTrace:
    values = (entropy,) * len(tokens)
    return TokenTrace(tokens, (-0.1,) * len(tokens), EntropyTrace(values, values, exact=True))


def ask_once(prompt: str) -> Program[str]:
    """Ask one prompt."""
    [[answer]] = yield from perform(Generate([prompt], SamplingParams()))
    return answer.text
