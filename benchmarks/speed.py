"""Speed of the local reader, as ratios to ``generate`` and to plain passes within one run.

Run ``python -m benchmarks.speed``; ``--model FOLDER`` takes a saved model in place of a random Llama, and
``--rows greedy`` only rows whose name contains the word. Contenders take turns on one thread, seconds are
those of the processor (of the clock on a GPU), and a ratio is the median over the turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from surerag.drivers.answering import queue_of
from surerag.effects import Generate
from surerag.messages import Generation, Prompt, SamplingParams
from surerag.readers.local import TransformersReader
from surerag.readers.protocol import BaseReader, BegunGeneration, Capabilities

NEW_TOKENS = 24
GREEDY = SamplingParams(max_tokens=NEW_TOKENS)
JUDGED = SamplingParams(max_tokens=1, trace="logprobs")
"""As judges reply: one word, with its log-probability."""
SAMPLED = SamplingParams(n=10, temperature=1.0, max_tokens=NEW_TOKENS)


class Work(NamedTuple):
    """Work for two contenders."""

    name: str
    plain: Callable[[], object]
    reader: Callable[[], object]
    turns: int = 3


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

    def tensor(self, rows: list[list[int]]) -> torch.Tensor:
        """Return token ids on the model's device."""
        return torch.tensor(rows, device=self.model.device)

    def generate(self, prompts: Sequence[str], new_tokens: int, samples: int = 1) -> Any:
        """Generate with the library's own function: greedy for one sample, else by chance."""
        ids = [self.tokenizer(prompt)["input_ids"] for prompt in prompts]
        longest = max(map(len, ids))
        batch = self.tensor([[0] * (longest - len(row)) + row for row in ids])
        mask = self.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids])
        return self.model.generate(
            batch,
            attention_mask=mask,
            max_new_tokens=new_tokens,
            do_sample=samples > 1,
            top_k=0,
            num_return_sequences=samples,
            pad_token_id=0,
        )

    def score_next(self, prompts: Sequence[str]) -> None:
        """Score every token that may follow each prompt, by one pass over each."""
        with torch.inference_mode():
            for prompt in prompts:
                ids = self.tensor([self.tokenizer(prompt)["input_ids"]])
                self.model(ids, logits_to_keep=1).logits[0, -1].float().log_softmax(-1)

    def sample_with_logprobs(self, prompts: Sequence[str], new_tokens: int, samples: int) -> None:
        """Sample answers prompt by prompt, and take their log-probabilities from the logits."""
        for prompt in prompts:
            out = self.model.generate(
                self.tensor([self.tokenizer(prompt)["input_ids"]]),
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
        queue.enter(number)
        for turn in range(rounds):
            queue.answer(Generate((f"{number} {turn}",), SamplingParams()))
        queue.leave(number)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return reader.calls


def works(bench: Bench) -> Iterator[Work]:
    """Yield every kind of work."""
    reader = bench.reader
    for count in (1, 8, 32):
        # Lengths from 8 to 150 tokens, most of them short.
        lengths = (
            [8 + 142 * (n * 7 % count) ** 2 // (count - 1) ** 2 for n in range(count)] if count > 1 else [100]
        )
        prompts = [bench.prompt(length, n) for n, length in enumerate(lengths)]
        yield Work(
            f"greedy, {count} prompt(s) of mixed length",
            partial(bench.generate, prompts, NEW_TOKENS),
            partial(reader.generate, prompts, GREEDY),
            9 if count == 1 else 3,
        )
    statements = [bench.prompt(250, n) + bench.prompt(6 + 2 * m, 50 + m) for n in range(6) for m in range(5)]
    yield Work(
        "scoring: judge 5 statements on each of 6 contexts of 250 tokens",
        partial(bench.score_next, statements),
        partial(reader.generate, statements, JUDGED),
    )
    shared = bench.prompt(240, 7)
    questions = [shared + bench.prompt(12, n) for n in range(8)]
    yield Work(
        "greedy, 8 prompts that share 240 of 252 tokens",
        lambda: bench.generate(questions, NEW_TOKENS),
        lambda: reader.generate(questions, GREEDY),
    )
    eight = [bench.prompt(60, n) for n in range(8)]
    yield Work(
        "begin(8) and rest_of, against the reader's own generate",
        lambda: reader.generate(eight, GREEDY),
        lambda: BegunGeneration.rest_of(reader.begin(eight, 8, GREEDY)),
    )
    long = bench.prompt(2000)
    yield Work(
        "10 samples after a prompt of 2,000 tokens",
        lambda: bench.generate([long], NEW_TOKENS, 10),
        lambda: reader.generate([long], SAMPLED),
        1,
    )
    both = [bench.prompt(60, 10), bench.prompt(760, 11)]
    yield Work(
        "ΔSePer: 10 answers without and with 700 tokens of context",
        lambda: bench.sample_with_logprobs(both, 16, 10),
        lambda: reader.generate(both, SamplingParams(n=10, temperature=1.0, max_tokens=16)),
        1,
    )


def measure(work: Work, clock: Callable[[], float]) -> None:
    """Time both contenders in turns, and print the medians."""
    seconds: list[tuple[float, float]] = []
    for _ in range(work.turns):
        started = clock()
        work.plain()
        middle = clock()
        work.reader()
        seconds.append((middle - started, clock() - middle))
    plain, reader = (statistics.median(column) for column in zip(*seconds, strict=True))
    ratio = statistics.median(first / second for first, second in seconds)
    print(f"{work.name:<60}{plain:>8.2f}{reader:>8.2f}{ratio:>8.2f}", flush=True)


def random_llama(device: str) -> Bench:
    """Build a random Llama of 8 layers and a byte-level tokenizer of some words."""
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
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*alphabet, *(f"Ġ{letter}" for letter in letters)]
    merges = [("Ġ", letter) for letter in letters]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    model = AutoModelForCausalLM.from_config(config).to(device)
    return Bench(model, PreTrainedTokenizerFast(tokenizer_object=backend))


def main() -> None:
    """Measure and print every row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of a saved model; a random Llama without it")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.model is None:
        bench = random_llama(options.device)
    else:
        model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        bench = Bench(model.to(options.device), AutoTokenizer.from_pretrained(options.model))
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    bench.generate([bench.prompt(8)], 2)
    bench.reader.generate([bench.prompt(8)], SamplingParams(max_tokens=2))
    print(f"{'work':<60}{'plain':>8}{'reader':>8}{'ratio':>8}")
    for work in works(bench):
        if options.rows in work.name:
            measure(work, clock)
    if options.rows in "merged":
        print(f"384 requests of 64 threads, merged: {merged_calls()} calls")


if __name__ == "__main__":
    main()
