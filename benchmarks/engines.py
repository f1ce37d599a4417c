"""Engines side by side on one model: ``generate``, ``generate_batch``, our own engine, the running batch.

Run ``python -m benchmarks.engines``; ``python -m benchmarks.gpu`` runs it in the shapes of a 1 B and an 8 B
Llama. The first two give tokens alone, the last two exact entropies beside them; all take turns. The caches
of both running batches outlive a turn, hence prompts that begin with its number: no page was read before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.models import SMALL, TINY, Bench, arguments, build
from benchmarks.paired import Contender, Race, race, show_race
from benchmarks.throughput import _prompt
from surerag.drivers.merging import queue_of
from surerag.effects import Generate
from surerag.readers.transformers import TransformersReader
from surerag.types import Sampling


class Sizes(NamedTuple):
    """How much is asked.

    Attributes:
        batches: Prompts at once.
        prompt: Tokens of each.
        new: Tokens of answers.
        long: Tokens of the prompt that many samples are taken of.
        samples: How many.
        shared: Tokens that prompts have in common.
        sharing: How many prompts have them.
        callers: Threads that ask one after the other, each for answers of its own length.
        cache: Tokens that a running batch holds.
    """

    batches: tuple[int, ...]
    prompt: int
    new: int
    long: int
    samples: int
    shared: int
    sharing: int
    callers: int
    cache: int


TOY = Sizes((1, 3), 16, 4, 60, 3, 60, 4, 4, 2048)
CPU = Sizes((1, 16), 64, 8, 500, 10, 200, 16, 16, 4096)
GPU = Sizes((1, 64, 256), 128, 32, 2000, 10, 1500, 256, 64, 131_072)


class Engines:
    """What is compared: one model, and ways of running it."""

    def __init__(self, bench: Bench, sizes: Sizes) -> None:
        self.bench, self.sizes = bench, sizes
        self.own = TransformersReader(bench.model, bench.tokenizer, max_batch_tokens=sizes.cache)
        self.running = TransformersReader(
            bench.model, bench.tokenizer, max_batch_tokens=sizes.cache, engine="continuous"
        )
        self._turns = count()
        # It warns at each call that a manager that is kept was sized for another.
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)

    def races(self, turns: int, synchronize: Callable[[], object]) -> Iterator[Race]:
        """Run one work after the other."""
        size = self.sizes
        works = [
            (
                f"{rows} x {size.new} tokens, prompts of {size.prompt}",
                self._tokens(lambda rows=rows: [_prompt(size.prompt, row) for row in range(rows)], size.new),
            )
            for rows in size.batches
        ]
        beginning = _prompt(size.shared, 0)
        alike = [beginning + _prompt(20, 1 + row) for row in range(size.sharing)]
        works += [
            (
                f"{size.samples} samples of {size.new} tokens, prompt of {size.long}",
                self._tokens(lambda: [_prompt(size.long, 3)], size.new, size.samples),
            ),
            (
                f"{size.sharing} prompts that share {size.shared} tokens, {size.new} each",
                self._tokens(lambda: alike, size.new),
            ),
            (f"begin {size.new // 2} of {size.new} tokens and finish, 8 prompts", self._begun()),
            (f"{size.callers} callers, three answers of 1 to {2 * size.new} tokens each", self._callers()),
        ]
        for title, found in works:
            yield race(title, found, turns=turns, synchronize=synchronize)

    def close(self) -> None:
        """Give the memory of the library's batch back."""
        self.bench.model.destroy_cached_continuous_batching_manager()

    def _tokens(self, prompts: Callable[[], list[str]], new: int, samples: int = 1) -> list[Contender]:
        """All four, on the same work."""
        sampling = Sampling(n=samples, temperature=float(samples > 1), max_tokens=new)

        def fresh() -> list[str]:
            turn = f"{next(self._turns):04d}"
            return [turn + prompt[4:] for prompt in prompts()]

        def in_parts() -> None:
            asked = fresh()
            for start in range(0, len(asked), 64):
                # As many at once as `generate` has memory for.
                self.bench.generate(asked[start : start + 64], new, samples=samples)

        return [
            Contender("generate", in_parts),
            Contender("generate_batch", lambda: self._generate_batch(fresh(), new, samples)),
            Contender("own engine", lambda: self.own.generate(fresh(), sampling)),
            Contender("running batch", lambda: self.running.generate(fresh(), sampling)),
        ]

    def _generate_batch(self, prompts: Sequence[str], new: int, samples: int) -> None:
        tokenizer, model = self.bench.tokenizer, self.bench.model
        # A manager that is kept keeps its settings, too: samples are requests of their own.
        rows = [tokenizer(prompt)["input_ids"] for prompt in prompts for _ in range(samples)]
        page = 32
        model.generate_batch(
            inputs=rows,
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=new),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=page,
                num_blocks=self.sizes.cache // page,
                max_batch_tokens=min(self.sizes.cache, 512 if model.device.type == "cpu" else 4096),
                max_requests_per_batch=256,
                auto_switch_to_flash=False,
            ),
            persistent_manager=True,
        )

    def _begun(self) -> list[Contender]:
        prompts = [_prompt(self.sizes.prompt, row) for row in range(8)]
        sampling = Sampling(max_tokens=self.sizes.new)

        def of(reader: TransformersReader) -> Callable[[], object]:
            def run() -> object:
                turn = f"{next(self._turns):04d}"
                asked = [turn + prompt[4:] for prompt in prompts]
                return reader.finish(reader.begin(asked, self.sizes.new // 2, sampling))

            return run

        return [Contender("own engine", of(self.own)), Contender("running batch", of(self.running))]

    def _callers(self) -> list[Contender]:
        """Threads that ask for answers of different lengths: through the merging queue, and straight."""
        size, queue = self.sizes, queue_of(self.own)

        def of(ask: Callable[[str, Sampling], object]) -> Callable[[], object]:
            def caller(number: int, turn: int) -> None:
                for at in range(3):
                    new = 1 + (7 * number + 13 * at) % (2 * size.new)
                    prompt = f"{turn:04d}" + _prompt(size.prompt - number % 16, number)[4:]
                    ask(prompt, Sampling(max_tokens=new))

            def run() -> object:
                turn = next(self._turns)
                threads = [threading.Thread(target=caller, args=(i, turn)) for i in range(size.callers)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                return None

            return run

        return [
            Contender("own engine", of(lambda prompt, sampling: queue.ask(Generate((prompt,), sampling)))),
            Contender(
                "running batch", of(lambda prompt, sampling: self.running.generate([prompt], sampling))
            ),
        ]


def main() -> None:
    """Measure, and print a table."""
    given = arguments(__doc__ or "", turns=3).parse_args()
    torch.set_num_threads(given.threads)
    engines = Engines(build(TINY if given.tiny else SMALL), TOY if given.tiny else CPU)
    for found in engines.races(given.turns, lambda: None):
        show_race(found)
    engines.close()


if __name__ == "__main__":
    main()
