"""What only a GPU can show: freed memory, half precision, sizes of batches. Skipped without one."""

from __future__ import annotations

import copy
import gc

import pytest
import torch

from surerag.messages import SamplingParams
from surerag.readers.local import TransformersReader
from surerag.readers.protocol import BegunGeneration
from tests.readers.local.support import ONE, PROMPTS, SAMPLED, texts
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(params=["float32", "bfloat16"])
def reader(request: pytest.FixtureRequest) -> TransformersReader:
    model = copy.deepcopy(tiny_model("llama")).to("cuda", getattr(torch, request.param))
    return TransformersReader(model, tiny_tokenizer())


def test_answers_are_finite_and_begin_natively(reader: TransformersReader) -> None:
    assert reader.capabilities.begin == "native"
    rows = reader.generate(PROMPTS, SAMPLED)
    assert all(answer.trace is not None for row in rows for answer in row)
    if reader._model.model.dtype == torch.float32:
        begun = BegunGeneration.rest_of(reader.begin(PROMPTS, 3, ONE))
        assert [answer.text for answer in begun] == [row[0].text for row in reader.generate(PROMPTS, ONE)]
        assert texts(rows) == texts([reader.generate([prompt], SAMPLED)[0] for prompt in PROMPTS])


def test_memory_is_freed(reader: TransformersReader) -> None:
    reader.generate(PROMPTS, SAMPLED)
    gc.collect()
    before = torch.cuda.memory_allocated()
    begun = reader.begin(PROMPTS, 2, ONE)
    assert torch.cuda.memory_allocated() > before
    for item in begun:
        item.close()
    del begun
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_the_budget_follows_free_memory(reader: TransformersReader) -> None:
    assert reader._model.batch_tokens == 1 << 20
    assert len(reader.generate(PROMPTS * 20, SamplingParams(max_tokens=4))) == 100
