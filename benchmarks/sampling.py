"""Ten samples of a long prompt: the reader against ``generate(num_return_sequences=10)``.

Run ``python -m benchmarks.sampling``. Peak memory is measured in a process for each contender, above
what the loaded model takes.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from benchmarks.models import SMALL, TINY, Bench, arguments, build
from benchmarks.paired import Contender, compare, show
from surerag.messages import SamplingParams


class Work(NamedTuple):
    """How much is asked."""

    prompt_tokens: int
    samples: int
    new_tokens: int


WORK = Work(prompt_tokens=2000, samples=10, new_tokens=24)
TINY_WORK = Work(prompt_tokens=60, samples=3, new_tokens=4)


def contenders(bench: Bench, work: Work) -> tuple[Contender, Contender]:
    """Return the library's own way and the reader's."""
    prompt = bench.prompt(work.prompt_tokens)
    sampling = SamplingParams(n=work.samples, temperature=1.0, max_tokens=work.new_tokens)
    return (
        Contender("generate", lambda: bench.generate([prompt], work.new_tokens, samples=work.samples)),
        Contender("reader", lambda: bench.reader.generate([prompt], sampling)),
    )


def same_greedy_tokens(bench: Bench, work: Work) -> bool:
    """Tell whether both say the same where no chance is involved."""
    prompt = bench.prompt(work.prompt_tokens)
    plain = bench.generate([prompt], work.new_tokens)[0, work.prompt_tokens :]
    (answer,) = bench.reader.generate([prompt], SamplingParams(max_tokens=work.new_tokens))[0]
    # The reader does not show a last character of which only some bytes came.
    return bench.tokenizer.decode(plain).rstrip("\ufffd").strip() == answer.text


def peak_megabytes(name: str, *, tiny: bool) -> float:
    """Return how much memory one contender takes at most, above the loaded model."""
    command = [sys.executable, "-m", "benchmarks.sampling", "--peak-of", name]
    done = subprocess.run(
        [*command, *(["--tiny"] if tiny else [])], check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def _report_peak(bench: Bench, work: Work, name: str) -> None:
    chosen = {contender.name: contender for contender in contenders(bench, work)}[name]
    # One short run first, for what is allocated once and for all.
    bench.generate([bench.prompt(16)], 2)
    loaded = _peak()
    chosen.run()
    print(_peak() - loaded)


def _peak() -> float:
    """Return the largest resident size of this process so far, in MB."""
    status = Path("/proc/self/status")
    if status.exists():
        # Linux's rusage inherits the peak of the process that started this one.
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) / 1e3
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in kilobytes, macOS in bytes.
    return size / 1e6 if sys.platform == "darwin" else size / 1e3


def main() -> None:
    """Measure, and print a table."""
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--peak-of", choices=["generate", "reader"], help="only measure one contender's memory"
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    shape, work = (TINY, TINY_WORK) if given.tiny else (SMALL, WORK)
    bench = build(shape)
    if given.peak_of:
        _report_peak(bench, work, given.peak_of)
        return
    title = f"{work.samples} samples of {work.new_tokens} tokens, prompt of {work.prompt_tokens}"
    comparison = compare(title, *contenders(bench, work), turns=given.turns, clock=given.clock)
    peaks = {name: peak_megabytes(name, tiny=given.tiny) for name in ("generate", "reader")}
    memory = ", ".join(f"{name} {peak:.0f} MB" for name, peak in peaks.items())
    show([comparison], caption=f"{shape.layers} layers, {shape.width} wide, {given.threads} threads")
    Console().print(f"Peak memory above the loaded model: {memory}")
    Console().print(f"Same greedy tokens: {'yes' if same_greedy_tokens(bench, work) else 'no'}")


if __name__ == "__main__":
    main()
