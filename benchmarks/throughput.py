"""Tokens a second on an accelerator: the reader against ``generate``, and both against what memory allows.

A step of decoding has to read all weights, and the keys and values of all rows, once. What the device copies
in a second bounds how many steps it can do: the floor. Run it by ``python -m benchmarks.gpu``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.models import Bench
from surerag.messages import SamplingParams


class Rate(NamedTuple):
    """What one batch size gives.

    Attributes:
        rows: Prompts at once.
        generate: Tokens a second of ``generate``.
        reader: Tokens a second of the reader, with exact entropies.
        floor: Tokens a second if nothing but memory took time.
    """

    rows: int
    generate: float
    reader: float
    floor: float


def copy_bandwidth(device: str) -> float:
    """Measure bytes a second that are read or written when the device copies a large tensor."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = _median_seconds(lambda: target.copy_(source), turns=5)
    return 2 * source.numel() / seconds


def rates(
    bench: Bench, batches: Sequence[int], *, prompt_tokens: int, new_tokens: int, bandwidth: float, turns: int
) -> list[Rate]:
    """Measure, for each batch size, prompts of one length and answers of another."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in bench.model.parameters())
    config = bench.model.config
    width = config.hidden_size // config.num_attention_heads
    a_token = 2 * config.num_hidden_layers * config.num_key_value_heads * width * bench.model.dtype.itemsize
    found = []
    for rows in batches:
        prompts = [_prompt(prompt_tokens, row) for row in range(rows)]
        sampling = SamplingParams(max_tokens=new_tokens)
        plain = _median_seconds(lambda p=prompts: bench.generate(p, new_tokens), turns)
        ours = _median_seconds(lambda p=prompts, s=sampling: bench.reader.generate(p, s), turns)
        step = (weights + rows * (prompt_tokens + new_tokens / 2) * a_token) / bandwidth
        tokens = rows * new_tokens
        found.append(Rate(rows, tokens / plain, tokens / ours, rows / step))
    return found


def show(title: str, found: Sequence[Rate]) -> None:
    """Print a table of rates."""
    table = Table(title=title)
    for column in ("rows", "generate", "reader", "reader / generate", "floor", "reader / floor"):
        table.add_column(column, justify="right")
    for rate in found:
        table.add_row(
            str(rate.rows),
            f"{rate.generate:,.0f}",
            f"{rate.reader:,.0f}",
            f"{rate.reader / rate.generate:.2f}",
            f"{rate.floor:,.0f}",
            f"{rate.reader / rate.floor:.1%}",
        )
    Console().print(table)


def scoring(bench: Bench, pairs: int, prompt_tokens: int, answer_tokens: int) -> dict[str, float]:
    """Return the seconds for scoring answers of one length: a plain forward pass a pair, and the reader."""
    asked = [_prompt(prompt_tokens, row) for row in range(pairs)]
    answers = [_prompt(answer_tokens, row + 7) for row in range(pairs)]
    rows = [
        torch.tensor([bench.tokenizer(p + a)["input_ids"]], device=bench.model.device)
        for p, a in zip(asked, answers, strict=True)
    ]

    def one_by_one() -> None:
        with torch.inference_mode():
            for row in rows:
                logits = bench.model(input_ids=row, logits_to_keep=answer_tokens + 1).logits[:, :-1].float()
                logits.log_softmax(-1).gather(-1, row[:, -answer_tokens:, None]).sum().item()

    return {
        "one by one": _median_seconds(one_by_one, 2),
        "reader": _median_seconds(lambda: bench.reader.score(asked, answers), 2),
    }


def _prompt(tokens: int, variant: int) -> str:
    """Return a text of exactly so many tokens, one a character; variants differ from the first on."""
    letters = "".join(chr(97 + (variant * 7 + at * 3) % 26) for at in range(8))
    return (f"{chr(97 + variant % 26)}{chr(65 + variant // 26 % 26)}" + letters * (tokens // 8 + 1))[:tokens]


def _median_seconds(run: Callable[[], object], turns: int) -> float:
    times = []
    for turn in range(turns + 1):
        _synchronize()
        started = time.perf_counter()
        run()
        _synchronize()
        if turn:
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
