"""Prompts that begin alike, samples of one prompt, and recurrent models with prompts of different lengths.

Run ``python -m benchmarks.sharing``. The first two compare the reader with itself where every row has a copy
of what it could share; the last one with ``generate`` on a padded batch. ``--profile`` shows where a step of
decoding spends its time, with copies and without.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, Lfm2Config

from benchmarks.models import SMALL, TINY, Bench, _tokenizer, arguments, build
from benchmarks.paired import Comparison, Contender, compare, show
from benchmarks.throughput import _prompt
from surerag.readers.local import TransformersReader
from surerag.messages import SamplingParams


def copying(bench: Bench) -> TransformersReader:
    """Return a reader around the same model that copies what rows could share."""
    reader = TransformersReader(bench.model, bench.tokenizer)
    kind = reader._engine._prefill._kind
    copies = type("Copying", (kind,), {"forks": False, "fork": kind.gather})
    reader._engine._prefill._kind = copies
    return reader


def samples_of_one(bench: Bench, *, tokens: int, n: int, new: int) -> tuple[Contender, Contender]:
    """Ask for many samples of one long prompt."""
    asked, sampling = [_prompt(tokens, 3)], SamplingParams(n=n, temperature=1.0, max_tokens=new)
    return _both(bench, asked, sampling)


def shared_beginning(bench: Bench, *, tokens: int, prompts: int, new: int) -> tuple[Contender, Contender]:
    """Ask many prompts that begin alike and end in 20 tokens of their own."""
    beginning = _prompt(tokens, 0)
    asked = [beginning + _prompt(20, 1 + row) for row in range(prompts)]
    return _both(bench, asked, SamplingParams(max_tokens=new))


def scored_after(bench: Bench, *, tokens: int, prompts: int, new: int) -> tuple[Contender, Contender]:
    """Answer prompts, and score a short text after each of them in a second call."""
    keeping = TransformersReader(bench.model, bench.tokenizer, kept_prompt_bytes=1 << 30)
    turns = count()

    def of(reader: TransformersReader) -> Callable[[], object]:
        def run() -> object:
            turn = f"{next(turns):04d}"
            asked = [turn + _prompt(tokens, row)[4:] for row in range(prompts)]
            reader.generate(asked, SamplingParams(max_tokens=new))
            return reader.score(asked, ["w"] * prompts)

        return run

    return Contender("read twice", of(bench.reader)), Contender("kept", of(keeping))


def called_after_another(bench: Bench, *, tokens: int, calls: int, new: int) -> tuple[Contender, Contender]:
    """Ask prompts that begin alike and end in 20 tokens of their own, each in a call of its own."""
    turns = count()

    def of(**options: int) -> Callable[[], object]:
        reader = TransformersReader(bench.model, bench.tokenizer, **options)

        def run() -> object:
            beginning = f"{next(turns):04d}" + _prompt(tokens, 0)[4:]
            asked = [beginning + _prompt(20, 1 + row) for row in range(calls)]
            return [reader.generate([prompt], SamplingParams(max_tokens=new)) for prompt in asked]

        return run

    return Contender("each read", of()), Contender("kept", of(kept_prompt_bytes=1 << 30))


def hybrid(*, tiny: bool) -> tuple[Contender, Contender]:
    """Ask sixteen prompts of different lengths of a model with convolutions beside attention."""
    torch.manual_seed(0)
    vocabulary, width = (512, 32) if tiny else (32_000, 256)
    config = Lfm2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["conv", "conv", "full_attention", "conv"] * 2,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    tokenizer = _tokenizer(vocabulary)
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.convert_ids_to_tokens(0), "left"
    reader = TransformersReader(model, tokenizer)
    asked, new = [_prompt(100 + 5 * row, row) for row in range(16)], 4 if tiny else 32
    padded = tokenizer(asked, padding=True, return_tensors="pt")
    inputs = {name: padded[name] for name in ("input_ids", "attention_mask")}

    def plain() -> object:
        return model.generate(**inputs, max_new_tokens=new, do_sample=False, pad_token_id=0)

    sampling = SamplingParams(max_tokens=new)
    return Contender("generate", plain), Contender("reader", lambda: reader.generate(asked, sampling))


def _both(bench: Bench, asked: list[str], sampling: SamplingParams) -> tuple[Contender, Contender]:
    copies = copying(bench)
    return (
        Contender("copies", lambda: copies.generate(asked, sampling)),
        Contender("shared", lambda: bench.reader.generate(asked, sampling)),
    )


def _profile(contenders: tuple[Contender, Contender]) -> None:
    for contender in contenders:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            contender.run()
        Console().print(f"\n{contender.name}")
        print(
            profiled.key_averages().table(
                sort_by="self_cpu_time_total", row_limit=7, max_name_column_width=50
            )
        )


def main() -> None:
    """Measure, and print tables."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--profile", action="store_true", help="where time goes, in place of tables")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    bench = build(TINY if given.tiny else SMALL)
    long, short = (60, 48) if given.tiny else (2000, 1500)
    samples = samples_of_one(bench, tokens=long, n=10, new=4 if given.tiny else 24)
    if given.profile:
        _profile(samples)
        return
    found: list[Comparison] = [
        compare(f"10 samples, prompt of {long}", *samples, turns=given.turns, clock=given.clock),
        compare(
            f"64 prompts that share {short}",
            *shared_beginning(bench, tokens=short, prompts=64, new=4 if given.tiny else 16),
            turns=given.turns,
            clock=given.clock,
        ),
        compare(
            f"8 prompts of {long // 4} answered, then scored",
            *scored_after(bench, tokens=long // 4, prompts=8, new=4 if given.tiny else 16),
            turns=given.turns,
            clock=given.clock,
        ),
        compare(
            f"8 calls that share {short}",
            *called_after_another(bench, tokens=short, calls=8, new=4 if given.tiny else 16),
            turns=given.turns,
            clock=given.clock,
        ),
        compare("LFM2, 16 lengths", *hybrid(tiny=given.tiny), turns=given.turns, clock=given.clock),
    ]
    show(found)


if __name__ == "__main__":
    main()
