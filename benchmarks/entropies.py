"""The cost of log-probabilities and exact entropies over plain ``generate``.

Run ``python -m benchmarks.entropies``. Both decode greedily; the reader also gives every token's
log-probability, the entropy and log-sum-exp of its step, and its text.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.models import SMALL, TINY, Bench, arguments, build
from benchmarks.paired import Comparison, Contender, compare, show
from surerag.types import Sampling


def overheads(
    bench: Bench,
    *,
    turns: int,
    new_tokens: int,
    prompt_tokens: int,
    synchronize: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Comparison]:
    """Compare for one prompt, and for a batch of eight."""
    found = []
    for count in (1, 8):
        prompts = [bench.prompt(prompt_tokens, variant) for variant in range(count)]
        found.append(
            compare(
                f"{new_tokens} tokens for {count} prompt(s) of {prompt_tokens}",
                Contender("generate", lambda prompts=prompts: bench.generate(prompts, new_tokens)),
                Contender(
                    "reader, with entropies",
                    lambda prompts=prompts: bench.reader.generate(prompts, Sampling(max_tokens=new_tokens)),
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
    new_tokens, prompt_tokens = (4, 16) if given.tiny else (48, 200)
    found = overheads(
        bench, turns=given.turns, new_tokens=new_tokens, prompt_tokens=prompt_tokens, clock=given.clock
    )
    show(found, as_overhead=True, caption=f"{given.threads} threads")


if __name__ == "__main__":
    main()
