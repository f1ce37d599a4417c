"""Models of Hugging Face: text alone through HuggingFaceLLM, everything through a TransformersReader."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.huggingface import HuggingFaceLLM

from llama_index_surerag import ClusterCompressorPostprocessor, LazyRetrievalQueryEngine, reader_from_llm
from surerag import TransformersReader
from surerag.encoders import HashingEncoder
from surerag.errors import CapabilityError
from surerag.messages import SamplingParams
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, scored
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

TEXT = SamplingParams(max_tokens=12, trace="none")


@pytest.fixture
def parts() -> tuple[Any, Any]:
    return tiny_model("llama"), tiny_tokenizer()


def llm(parts: tuple[Any, Any], **settings: Any) -> HuggingFaceLLM:
    model, tokenizer = parts
    defaults = {"max_new_tokens": 12, "generate_kwargs": {"do_sample": False}, "context_window": 512}
    return HuggingFaceLLM(model=model, tokenizer=tokenizer, **{**defaults, **settings})


@pytest.mark.parametrize(
    "settings", [{}, {"system_prompt": "Be brief."}, {"query_wrapper_prompt": "Q: {query_str}"}]
)
def test_says_what_predict_says(parts: tuple[Any, Any], settings: dict[str, Any]) -> None:
    model = llm(parts, **settings)
    [[results]] = reader_from_llm(model).generate(["Where is Velm?"], TEXT)
    assert results.text == model.predict(PromptTemplate("Where is Velm?")).strip()


def test_is_refused_where_log_probabilities_are_needed(parts: tuple[Any, Any]) -> None:
    model, tokenizer = parts
    with pytest.raises(CapabilityError, match=r"HuggingFaceLLM returns no log-probabilities") as caught:
        LazyRetrievalQueryEngine.from_args(corpus.index(), llm(parts))
    assert "TransformersReader(model, tokenizer)" in str(caught.value)
    reader = TransformersReader(model, tokenizer)
    response = LazyRetrievalQueryEngine.from_args(corpus.index(), reader, max_tokens=40).query(KNOWN)
    lower, upper = response.metadata["interval"]
    assert lower == upper


def test_text_is_enough_for_a_compressor(parts: tuple[Any, Any]) -> None:
    compressor = ClusterCompressorPostprocessor(llm(parts), HashingEncoder(), variant="copy", min_tokens=0)
    assert compressor.postprocess_nodes(scored("Ada was born in Velm.", "Bo."), query_str=KNOWN)


@pytest.mark.parametrize("local", [False, True])
async def test_the_event_loop_goes_on(parts: tuple[Any, Any], local: bool) -> None:
    reader = TransformersReader(*parts) if local else llm(parts, max_new_tokens=200)
    engine = LazyRetrievalQueryEngine.from_args(
        corpus.index(), reader, gate="semantic_entropy", n_samples=3, max_tokens=200
    )
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.002)

    ticker = asyncio.create_task(tick())
    await engine.aquery(KNOWN)
    ticker.cancel()
    assert ticks > 3
