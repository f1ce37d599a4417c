"""A random Llama that answers as often the same as it is told to, and a random DeBERTa-v3-small.

Both are built from configs, with tokenizers made of the benchmark's own words, and written to a folder, so
that peers in environments of their own load the same weights. The Llama costs what a Llama of its shape
costs; only its embeddings and its output matrix are not random. The embedding of a word points into a
direction of its own, far longer than what the layers add to it, and the output matrix maps each direction
to the words that may follow. So the next word depends on the last one alone, as in a Markov chain, with
any implementation that samples at temperature 1.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DebertaV2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from benchmarks._seper_world import WORD, Pool
from benchmarks.models import Shape

END, FULL_STOP = "</s>", "."
PAD, UNKNOWN = "<pad>", "<unk>"
_NLI_SPECIAL = _PAD, _CLS, _SEP, _UNK = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
_PIECE = r"\w{1,4}|[^\w\s]"
"""A token of the classifier: four letters, about what DeBERTa's own tokenizer has on average."""

_LEVEL = 30.0
"""Logit of what may follow; all other words together stay below e^-19 of it."""

_UNLIKELY = -12.0
"""Of the full stop behind an answer. A peer forbids the end before the second token: it says this then."""

_SCALE = 1000.0

Chain = Mapping[str, Mapping[str, float]]
"""Log-weights of the words that may follow a word."""


class NLIShape(NamedTuple):
    """A DeBERTa-v3's size."""

    layers: int
    width: int
    inner: int
    heads: int
    vocabulary: int


DEBERTA_SMALL = NLIShape(layers=6, width=768, inner=3072, heads=12, vocabulary=128_100)
DEBERTA_TINY = NLIShape(layers=2, width=32, inner=48, heads=2, vocabulary=4096)


def chain_of(pools: Iterable[Pool]) -> Chain:
    """Return which words follow which, so that every answer of a pool is equally likely behind its mark.

    An answer's first word stands for it; what follows a word is the same wherever it stands.

    Example:
        >>> chain_of([Pool("q0a", ("Velm", "w1 then1"))])["q0a"].keys()
        dict_keys(['Velm', 'w1'])
    """
    chain: dict[str, dict[str, float]] = {}
    for mark, answers in pools:
        chain[mark] = {answer.split()[0]: -math.log(len(answers)) for answer in answers}
        for answer in answers:
            words = answer.split()
            chain.update((word, {after: 0.0}) for word, after in pairwise(words))
    return chain


def save_reader(folder: Path, texts: Iterable[str], pools: Sequence[Pool], shape: Shape) -> None:
    """Build the Llama and its tokenizer and write them to a folder.

    Args:
        folder: Made if it is not there.
        texts: All that it will read.
        pools: All that it will say.
        shape: Its size.

    Raises:
        ValueError: If the shape has too few words or too few directions for all this.
    """
    words = dict.fromkeys((PAD, END, UNKNOWN, FULL_STOP))
    for text in (*texts, *(f"{pool.mark} {' '.join(pool.answers)}" for pool in pools)):
        words.update(dict.fromkeys(WORD.findall(text)))
    if len(words) > shape.vocabulary:
        raise ValueError(f"{len(words)} words for a vocabulary of {shape.vocabulary}: ask fewer questions")
    ids = {word: place for place, word in enumerate(words)}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=ids[END],
        pad_token_id=ids[PAD],
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    _teach(model, ids, chain_of(pools))
    model.save_pretrained(folder)
    backend = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    _save_tokenizer(
        folder,
        backend,
        {"pad_token": PAD, "eos_token": END, "unk_token": UNKNOWN, "padding_side": "left"},
        ["input_ids", "attention_mask"],
    )


def _teach(model: PreTrainedModel, ids: Mapping[str, int], chain: Chain) -> None:
    """Set embeddings and the output matrix, so that words follow one another as the chain says."""
    after_an_answer = {END: 0.0, FULL_STOP: _UNLIKELY}
    followers = {tuple(after_an_answer.items()): 0}
    groups = {ids[word]: followers.setdefault(tuple(f.items()), len(followers)) for word, f in chain.items()}
    embeddings = model.get_input_embeddings().weight.data
    outputs = model.get_output_embeddings().weight.data
    width = embeddings.shape[1]
    if len(followers) > width:
        raise ValueError(f"{len(followers)} directions in a width of {width}: ask fewer questions")
    directions = torch.linalg.qr(torch.randn(width, width))[0]
    which = torch.zeros(len(embeddings), dtype=torch.long)
    which[list(groups)] = torch.tensor(list(groups.values()), dtype=torch.long)
    embeddings += _SCALE * directions[which]
    outputs.zero_()
    for follower, group in followers.items():
        for word, log_weight in follower:
            # The last norm leaves a vector of length √width in the last word's direction.
            outputs[ids[word]] += (_LEVEL + log_weight) / math.sqrt(width) * directions[group]


def save_nli(folder: Path, texts: Iterable[str], shape: NLIShape) -> None:
    """Build the DeBERTa and its tokenizer and write them to a folder.

    Its bias says "contradiction", as most pairs of different answers of the world do: they do not mean the
    same, and so form as many clusters as there are distinct answers.
    """
    pieces = dict.fromkeys(_NLI_SPECIAL)
    for text in texts:
        pieces.update(dict.fromkeys(re.findall(_PIECE, text)))
    ids = {piece: place for place, piece in enumerate(list(pieces)[: shape.vocabulary])}
    torch.manual_seed(0)
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    config = DebertaV2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        max_position_embeddings=512,
        position_buckets=256,
        relative_attention=True,
        position_biased_input=False,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        type_vocab_size=0,
        pad_token_id=0,
        id2label=labels,
        label2id={name: place for place, name in labels.items()},
    )
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).eval()
    model.classifier.bias.data[0] = 1.0
    model.save_pretrained(folder)
    backend = Tokenizer(models.WordLevel(ids, unk_token=_UNK))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(_PIECE), "isolated")]
    )
    special = [(name, ids[name]) for name in (_CLS, _SEP)]
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    names = {"pad_token": _PAD, "cls_token": _CLS, "sep_token": _SEP, "unk_token": _UNK}
    _save_tokenizer(folder, backend, names, ["input_ids", "attention_mask"])


def _save_tokenizer(
    folder: Path, backend: Tokenizer, names: Mapping[str, str], inputs: Sequence[str]
) -> None:
    """Write a tokenizer in the form that every version of transformers reads."""
    backend.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        **names,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": list(inputs),
        "model_max_length": 512 if "cls_token" in names else 8192,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def load_reader(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load what :func:`save_reader` wrote."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


def load_nli(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Load what :func:`save_nli` wrote."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    return model, PreTrainedTokenizerFast.from_pretrained(folder)
