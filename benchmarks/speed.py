"""Speed of the local reader against ``generate`` and plain passes: ratios of processor time within one run.

Run ``python -m benchmarks.speed``; ``--model FOLDER`` takes a saved model in place of a random Llama.
Contenders take turns on one thread, and a row is the median of their ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from surerag.drivers.merging import queue_of
from surerag.effects import Generate
from surerag.messages import Generation, Prompt, SamplingParams
from surerag.readers.local import TransformersReader
from surerag.readers.protocol import BaseReader, Capabilities


class Row(NamedTuple):
    """One comparison: median seconds of both contenders, and the median of their ratios turn by turn."""

    work: str
    plain: float
    reader: float
    ratio: float


class Bench:
    """A model that never ends an answer by itself, its reader, and plain ways to do the same work."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        model.generation_config.eos_token_id = None
        tokenizer.eos_token = None
        tokenizer.chat_template = None
        self.model, self.tokenizer = model.eval(), tokenizer
        self.reader = TransformersReader(model, tokenizer)

    def prompt(self, tokens: int, variant: int = 0) -> str:
        """Return a text of exactly so many tokens; variants differ from the first on."""
        rng = random.Random(f"{tokens} {variant}")
        words = [
            w for w in self.tokenizer.get_vocab() if w.startswith("Ġ") and w[1:].isalpha() and w[1:].isascii()
        ]
        text = "".join(w.replace("Ġ", " ") for w in rng.choices(sorted(words), k=tokens))
        return str(self.tokenizer.decode(self.tokenizer(text)["input_ids"][:tokens]))

    def generate(self, prompts: Sequence[str], new_tokens: int, samples: int = 1) -> Any:
        """Generate with the library's own function: greedy for one sample, else by chance."""
        ids = [self.tokenizer(prompt)["input_ids"] for prompt in prompts]
        longest = max(map(len, ids))
        batch = torch.tensor([[0] * (longest - len(row)) + row for row in ids])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
        return self.model.generate(
            batch,
            attention_mask=mask,
            max_new_tokens=new_tokens,
            do_sample=samples > 1,
            top_k=0,
            num_return_sequences=samples,
            pad_token_id=0,
        )

    def score(self, prompt: str, answer: str) -> float:
        """Score an answer by one pass over prompt and answer."""
        before, after = (self.tokenizer(text)["input_ids"] for text in (prompt, answer))
        ids = torch.tensor([before + after])
        with torch.inference_mode():
            logits = self.model(ids, logits_to_keep=len(after) + 1).logits[0, :-1].float().log_softmax(-1)
        return float(logits[range(len(after)), after].sum())

    def seper(self, prompts: Sequence[str], new_tokens: int, samples: int) -> None:
        """Sample answers prompt by prompt, and take their log-probabilities from the logits."""
        for prompt in prompts:
            out = self.model.generate(
                torch.tensor([self.tokenizer(prompt)["input_ids"]]),
                max_new_tokens=new_tokens,
                do_sample=True,
                top_k=0,
                num_return_sequences=samples,
                pad_token_id=0,
                return_dict_in_generate=True,
                output_logits=True,
            )
            torch.stack(out.logits, dim=1).log_softmax(-1)


class Sleeper(BaseReader):
    """A model whose call takes 20 ms, whatever its size; counts its calls."""

    name = "sleeper"
    capabilities = Capabilities(logprobs=False, entropy=None, local=True)

    def __init__(self) -> None:
        self.calls = 0

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return each prompt as its answer."""
        self.calls += 1
        time.sleep(0.020)
        return [[Generation(str(prompt))] for prompt in prompts]


def merged_calls(threads: int = 64, rounds: int = 6) -> int:
    """Return the number of model calls for all requests of many threads."""
    reader = Sleeper()
    queue = queue_of(reader)

    def work(number: int) -> None:
        with queue.program():
            for turn in range(rounds):
                queue.ask(Generate((f"{number} {turn}",), SamplingParams()))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return reader.calls


def compare(work: str, plain: Callable[[], object], reader: Callable[[], object], turns: int) -> Row:
    """Time both contenders in turns."""
    seconds: list[tuple[float, float]] = []
    for _ in range(turns):
        started = time.process_time()
        plain()
        middle = time.process_time()
        reader()
        seconds.append((middle - started, time.process_time() - middle))
    plains, readers = zip(*seconds, strict=True)
    ratio = statistics.median(first / second for first, second in seconds)
    row = Row(work, statistics.median(plains), statistics.median(readers), ratio)
    print(f"{row.work:<58}{row.plain:>9.2f}{row.reader:>9.2f}{row.ratio:>8.2f}", flush=True)
    return row


def rows(bench: Bench, turns: int) -> list[Row]:
    """Compare on every kind of work."""
    reader = bench.reader
    bench.generate([bench.prompt(8)], 2)
    reader.generate([bench.prompt(8)], SamplingParams(max_tokens=2))
    greedy = SamplingParams(max_tokens=24)
    results = []
    for count in (1, 8, 32):
        # Lengths from 8 to 150 tokens, most of them short.
        prompts = [
            bench.prompt(8 + 142 * (n * 7 % count) ** 2 // max(count - 1, 1) ** 2, n) for n in range(count)
        ]
        if count == 1:
            prompts = [bench.prompt(100)]
        results.append(
            compare(
                f"greedy, {count} prompts of mixed length, 24 tokens",
                lambda p=prompts: bench.generate(p, 24),
                lambda p=prompts: reader.generate(p, greedy),
                turns if count > 1 else 3 * turns,
            )
        )
    contexts = [bench.prompt(250, n) for n in range(6)]
    answers = [bench.prompt(6 + 2 * n, 50 + n) for n in range(5)]
    pairs = [(context, answer) for context in contexts for answer in answers]
    results.append(
        compare(
            "score 5 answers after 6 contexts of 250 tokens",
            lambda: [bench.score(*pair) for pair in pairs],
            lambda: reader.score([context for context, _ in pairs], [answer for _, answer in pairs]),
            1,
        )
    )
    shared = bench.prompt(240, 7)
    questions = [shared + bench.prompt(12, n) for n in range(8)]
    results.append(
        compare(
            "greedy, 8 prompts of which 240 of 252 tokens are shared",
            lambda: bench.generate(questions, 24),
            lambda: reader.generate(questions, greedy),
            turns,
        )
    )
    eight = [bench.prompt(60, n) for n in range(8)]
    results.append(
        compare(
            "begin(8) and finish against the reader's generate",
            lambda: reader.generate(eight, greedy),
            lambda: reader.finish(reader.begin(eight, 8, greedy)),
            turns,
        )
    )
    sampled = SamplingParams(n=10, temperature=1.0, max_tokens=24)
    long = bench.prompt(2000)
    results.append(
        compare(
            "10 samples after a prompt of 2,000 tokens, 24 tokens",
            lambda: bench.generate([long], 24, 10),
            lambda: reader.generate([long], sampled),
            1,
        )
    )
    before, after = bench.prompt(60, 10), bench.prompt(760, 11)
    results.append(
        compare(
            "ΔSePer: 10 answers without and with 700 tokens of context",
            lambda: bench.seper([before, after], 16, 10),
            lambda: reader.generate([before, after], SamplingParams(n=10, temperature=1.0, max_tokens=16)),
            1,
        )
    )
    return results


def random_llama() -> Bench:
    """Build a random Llama of 8 layers and a byte-level tokenizer of some words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=8192,
    )
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces += [a + b for a in pieces for b in pieces if (a + b).isalpha()][:4000]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    return Bench(AutoModelForCausalLM.from_config(config), fast)


def main() -> None:
    """Measure and print every row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of a saved model; a random Llama without it")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.model is None:
        bench = random_llama()
    else:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        bench = Bench(model, AutoTokenizer.from_pretrained(options.model))
    print(f"{'work':<58}{'plain':>9}{'reader':>9}{'ratio':>8}   (processor seconds, one thread)")
    rows(bench, options.turns)
    print(f"384 requests of 64 threads, merged: {merged_calls()} calls")


if __name__ == "__main__":
    main()
