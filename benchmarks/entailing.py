"""Judging pairs of statements: ``NLIEntailer`` against batches in the order in which the pairs come.

Run ``python -m benchmarks.entailing``; ``python -m benchmarks.gpu`` runs it in half precision. The classifier
is a BERT of six layers, 768 wide, or a toy, with random weights; most statements are short, as answers are,
some are long, and nothing is kept between turns.
"""

from __future__ import annotations

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from benchmarks.models import arguments
from benchmarks.paired import Contender, Race, race, show_race
from surerag.entailment import NLIEntailer
from surerag.messages import Pair

_WORDS = [f"w{i}" for i in range(200)]
_LABELS = {0: "contradiction", 1: "entailment", 2: "neutral"}


def pairs_of(count: int) -> list[Pair]:
    """Return pairs of which most are short, each after a question."""
    rng = random.Random(0)

    def statement() -> str:
        return " ".join(rng.choices(_WORDS, k=rng.choice((3, 5, 8, 8, 12, 60))))

    return [Pair(statement(), statement(), question=f"{i} {statement()}") for i in range(count)]


def contest(count: int, *, turns: int, device: str, dtype: torch.dtype, tiny: bool) -> Race:
    """Let both judge the same pairs."""
    torch.manual_seed(0)
    width, layers = (32, 2) if tiny else (768, 6)
    vocabulary = {word: at for at, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *_WORDS])}
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 8 if tiny else 12,
        intermediate_size=4 * width,
        num_labels=3,
        id2label=_LABELS,
    )
    model = BertForSequenceClassification(config).to(device=device, dtype=dtype).eval()
    special = {"pad_token": "[PAD]", "sep_token": "[SEP]", "cls_token": "[CLS]", "unk_token": "[UNK]"}
    backend = Tokenizer(models.WordLevel(vocabulary, special["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    pairs, entailer = pairs_of(count), NLIEntailer(model, tokenizer, cached_pairs=0)

    def plain() -> None:
        for start in range(0, len(pairs), 32):
            some = pairs[start : start + 32]
            encoded = tokenizer(
                [f"{pair.question} {pair.premise}" for pair in some],
                [f"{pair.question} {pair.hypothesis}" for pair in some],
                padding=True,
                return_tensors="pt",
            ).to(device)
            with torch.inference_mode():
                model(**encoded).logits.float().softmax(-1).cpu()

    contenders = [Contender("batches of 32", plain), Contender("NLIEntailer", lambda: entailer.entail(pairs))]
    return race(f"{count:,} pairs judged", contenders, turns=turns)


def main() -> None:
    """Measure, and print a table."""
    given = arguments(__doc__ or "", turns=3).parse_args()
    torch.set_num_threads(given.threads)
    count = 24 if given.tiny else 500
    show_race(contest(count, turns=given.turns, device="cpu", dtype=torch.float32, tiny=given.tiny))


if __name__ == "__main__":
    main()
