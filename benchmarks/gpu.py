"""The same comparisons on a CUDA device, with random weights in the shapes of a 1 B and an 8 B Llama.

Run ``python -m benchmarks.gpu``; it needs the core, torch and transformers, about 24 GB of device memory
for the larger shape, and less than 8 minutes. ``--device cpu --tiny`` shows that it runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console

from benchmarks import begin_finish, engines, entailing, entropies, sampling, throughput
from benchmarks.models import LLAMA_1B, LLAMA_8B, TINY, Bench, Shape, arguments, build
from benchmarks.paired import compare, show, show_race


def measure(title: str, shape: Shape, *, device: str, turns: int, tiny: bool) -> None:
    """Run all comparisons on one shape, and print their tables."""
    cuda = device.startswith("cuda")
    bench = build(shape, device=device, dtype=torch.bfloat16)
    work = sampling.TINY_WORK if tiny else sampling.WORK
    contenders = sampling.contenders(bench, work)
    synchronize = torch.cuda.synchronize if cuda else lambda: None
    comparison = compare(
        f"{title}: {work.samples} samples of {work.new_tokens} tokens, prompt of {work.prompt_tokens}",
        *contenders,
        turns=turns,
        synchronize=synchronize,
    )
    show([comparison], caption=f"{title}, bfloat16, {device}")
    if cuda:
        peaks = {contender.name: _peak(contender.run) for contender in contenders}
        memory = ", ".join(f"{name} {peak:.0f} MB" for name, peak in peaks.items())
        Console().print(f"Peak memory above the loaded model: {memory}")
    new_tokens, prompt_tokens = (4, 16) if tiny else (48, 200)
    size: dict[str, Any] = {
        "turns": turns,
        "new_tokens": new_tokens,
        "prompt_tokens": prompt_tokens,
        "synchronize": synchronize,
    }
    overheads = [
        *entropies.overheads(bench, **size),
        *begin_finish.overheads(bench, n=2 if tiny else 8, **size),
    ]
    show(overheads, as_overhead=True, caption=f"{title}, bfloat16, {device}")
    _throughput(title, bench, device=device, tiny=tiny)
    side_by_side = engines.Engines(bench, engines.TOY if tiny else engines.GPU)
    for found in side_by_side.races(1 if tiny else 2, synchronize):
        show_race(found)
    side_by_side.close()


def _throughput(title: str, bench: Bench, *, device: str, tiny: bool) -> None:
    batches, prompt_tokens, new_tokens = ((1, 3), 16, 4) if tiny else ((1, 8, 64, 256), 128, 32)
    bandwidth = throughput.copy_bandwidth(device) if not tiny else 1e10
    found = throughput.rates(
        bench, batches, prompt_tokens=prompt_tokens, new_tokens=new_tokens, bandwidth=bandwidth, turns=2
    )
    throughput.show(f"{title}: tokens a second, prompts of {prompt_tokens}, answers of {new_tokens}", found)
    pairs, asked, said = (3, 16, 8) if tiny else (128, 200, 60)
    seconds = throughput.scoring(bench, pairs, asked, said)
    told = ", ".join(f"{name} {value:.3f} s" for name, value in seconds.items())
    Console().print(f"{title}, {pairs} answers of {said} tokens scored: {told}")


def _peak(run: Callable[[], object]) -> float:
    """Return the device memory that a run takes at most, above what is taken before, in MB."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def main() -> None:
    """Measure, and print tables."""
    parser = arguments(__doc__ or "", turns=3)
    parser.add_argument("--device", default="cuda", help="such as cuda:1")
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(given.threads)
    shapes = {"tiny": TINY} if given.tiny else {"1 B": LLAMA_1B, "8 B": LLAMA_8B}
    for title, shape in shapes.items():
        measure(title, shape, device=given.device, turns=given.turns, tiny=given.tiny)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    dtype = torch.float32 if given.device == "cpu" else torch.float16
    pairs = 24 if given.tiny else 4000
    show_race(entailing.contest(pairs, turns=given.turns, device=given.device, dtype=dtype, tiny=given.tiny))


if __name__ == "__main__":
    main()
