from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from surerag.encoders import MINILM, SentenceTransformerEncoder, packaged_minilm, packaged_minilm_path
from surerag.errors import ConfigurationError, ServiceError
from surerag.services import Encoder

WORDS = ("ada", "was", "born", "in", "velm", "where", "query", "rivers", "are", "wet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved random model of a few thousand weights."""
    plain, saved = (tmp_path_factory.mktemp(name) for name in ("plain", "saved"))
    vocabulary = {word: place for place, word in enumerate(("[PAD]", "[UNK]", *WORDS))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        plain
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(vocabulary), max_position_embeddings=32, **sizes)).save_pretrained(
        plain
    )
    transformer = Transformer(str(plain))
    model = SentenceTransformer(
        modules=[transformer, Pooling(8)], prompts={"query": "query ", "document": ""}
    )
    model.save(str(saved))
    return saved


def test_rows_have_length_one_and_do_not_depend_on_the_batch(folder: Path) -> None:
    encoder = SentenceTransformerEncoder(folder, batch_size=2, device="cpu")
    texts = ["ada was born in velm", "rivers are wet", "where", "ada was"]
    together = encoder.encode(texts, "document")
    alone = np.concatenate([encoder.encode([text], "document") for text in texts])
    assert together.shape == (4, 8)
    assert together.dtype == np.float32
    assert np.linalg.norm(together, axis=1) == pytest.approx(np.ones(4), abs=1e-6)
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_a_query_is_read_with_the_models_query_prompt(folder: Path) -> None:
    encoder = SentenceTransformerEncoder(folder, device="cpu")
    as_query = encoder.encode(["where was ada born"], "query")
    with_prompt = encoder.encode(["query where was ada born"], "document")
    without = encoder.encode(["where was ada born"], "document")
    np.testing.assert_allclose(as_query, with_prompt, atol=1e-6)
    assert np.abs(as_query - without).max() > 1e-3


def test_a_built_model_and_its_path_give_the_same(folder: Path) -> None:
    built = SentenceTransformerEncoder(SentenceTransformer(str(folder), device="cpu"), name="mine")
    loaded = SentenceTransformerEncoder(str(folder), device="cpu")
    assert isinstance(built, Encoder)
    assert (built.name, loaded.name) == ("mine", str(folder))
    np.testing.assert_array_equal(built.encode(["ada"], "query"), loaded.encode(["ada"], "query"))


def test_no_texts_give_no_rows(folder: Path) -> None:
    assert SentenceTransformerEncoder(folder, device="cpu").encode([], "query").shape == (0, 8)


def test_bad_settings_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="batch_size"):
        SentenceTransformerEncoder(folder, batch_size=0)
    with pytest.raises(ConfigurationError, match="device"):
        SentenceTransformerEncoder(SentenceTransformer(str(folder), device="cpu"), device="cpu")


def test_a_model_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="nowhere"):
        SentenceTransformerEncoder(tmp_path / "nowhere", device="cpu")


def test_the_packaged_minilm_works_offline() -> None:
    assert (packaged_minilm_path() / "model.safetensors").is_file()
    encoder = packaged_minilm(device="cpu")
    assert (encoder.name, encoder.dimensions) == (MINILM, 384)
    query = encoder.encode(["In which town did Ada come into the world?"], "query")[0]
    near, far = encoder.encode(["Ada was born in Velm.", "Copper melts at high temperatures."], "document")
    assert query @ near > query @ far + 0.2


def test_documents_in_bfloat16_are_nearly_the_same_and_queries_the_same(folder: Path) -> None:
    exact, fast = (SentenceTransformerEncoder(folder, device="cpu", bfloat16=on) for on in (False, True))
    texts = ["ada was born in velm", "rivers are wet"]
    documents = [encoder.encode(texts, "document") for encoder in (exact, fast)]
    assert (documents[0] * documents[1]).sum(axis=1).min() > 0.999
    assert (documents[0] != documents[1]).any()
    assert (exact.encode(texts, "query") == fast.encode(texts, "query")).all()
