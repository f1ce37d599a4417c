"""The cost of stopping after n tokens and going on: ``begin`` and ``finish`` against ``generate``.

Run ``python -m benchmarks.begin_finish``. All prompts go on, which is the dearest case; a method that
drops some saves the rest of their tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.models import SMALL, TINY, Bench, arguments, build
from benchmarks.paired import Comparison, Contender, compare, show
from surerag.messages import SamplingParams


def overheads(
    bench: Bench,
    *,
    turns: int,
    n: int,
    new_tokens: int,
    prompt_tokens: int,
    synchronize: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Comparison]:
    """Compare for one prompt, and for a batch of eight."""
    sampling = SamplingParams(max_tokens=new_tokens)
    reader = bench.reader
    found = []
    for count in (1, 8):
        prompts = [bench.prompt(prompt_tokens, variant) for variant in range(count)]
        found.append(
            compare(
                f"{new_tokens} tokens for {count} prompt(s) of {prompt_tokens}",
                Contender("generate", lambda prompts=prompts: reader.generate(prompts, sampling)),
                Contender(
                    f"begin({n}) and finish",
                    lambda prompts=prompts: reader.finish(reader.begin(prompts, n, sampling)),
                ),
                turns=turns,
                synchronize=synchronize,
                clock=clock,
            )
        )
    return found


def main() -> None:
    """Measure, and print a table."""
    given = arguments(__doc__ or "", turns=9).parse_args()
    torch.set_num_threads(given.threads)
    bench = build(TINY if given.tiny else SMALL)
    new_tokens, prompt_tokens = (6, 16) if given.tiny else (48, 200)
    found = overheads(
        bench,
        turns=given.turns,
        n=3 if given.tiny else 8,
        new_tokens=new_tokens,
        prompt_tokens=prompt_tokens,
        clock=given.clock,
    )
    show(found, as_overhead=True, caption=f"{given.threads} threads")


if __name__ == "__main__":
    main()
