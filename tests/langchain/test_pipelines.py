"""HuggingFacePipeline and ChatHuggingFace as they are: text only, and no setting of the user's lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline

from langchain_surerag import (
    ClusterCompressor,
    LazyRetrievalChain,
    LazyRetrievalMiddleware,
    reader_from_model,
)
from surerag import SamplingParams
from surerag.encoders import HashingEncoder
from surerag.errors import CapabilityError
from tests.langchain.conftest import SUMMARY, search


class Pipeline:
    """A transformers pipeline that answers alike, and remembers how it was called."""

    task = "text-generation"

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.tokenizer = SimpleNamespace(
            apply_chat_template=lambda messages, **_: "\n".join(one["content"] for one in messages)
        )
        self.model = SimpleNamespace(name_or_path="tiny")

    def __call__(self, prompts: list[str], **kwargs: Any) -> list[Any]:
        self.calls.append(kwargs)
        return [[{"generated_text": "Ada was born in Velm."}] for _ in prompts]


@pytest.fixture(params=["llm", "chat"])
def model(request: Any) -> Any:
    llm = HuggingFacePipeline(pipeline=Pipeline(), model_id="tiny", pipeline_kwargs={"max_new_tokens": 24})
    if request.param == "llm":
        return llm
    return ChatHuggingFace(llm=llm, tokenizer=llm.pipeline.tokenizer, model_id="tiny")


def pipeline_of(model: Any) -> Pipeline:
    pipeline: Pipeline = getattr(model, "llm", model).pipeline
    return pipeline


WAY_OUT = r"TransformersReader\(llm\.pipeline\.model, llm\.pipeline\.tokenizer\)"


async def test_text_is_enough_and_the_length_of_the_user_holds(model: Any) -> None:
    with pytest.warns(UserWarning, match=WAY_OUT):
        compressor = ClusterCompressor(model, HashingEncoder(), variant="copy", min_tokens=0)
    from langchain_core.documents import Document

    for documents in (
        compressor.compress_documents([Document("Ada, a painter, was born in Velm.")], "Where?"),
        await compressor.acompress_documents([Document("Ada, a painter, was born in Velm.")], "Where?"),
    ):
        assert documents[0].page_content == "Ada, a painter, was born in Velm."
    with pytest.warns(UserWarning, match=WAY_OUT):
        reader = reader_from_model(model)
    reader.generate(["?"], SamplingParams(n=2, temperature=0.7, trace="none"))
    calls = pipeline_of(model).calls
    assert [call["max_new_tokens"] for call in calls] == [24] * 4
    assert [call.get("temperature") for call in calls] == [None, None, 0.7, 0.7]


@pytest.mark.filterwarnings("ignore")
async def test_what_needs_logprobs_is_refused_with_the_way_out(model: Any) -> None:
    name = type(model).__name__
    with pytest.raises(CapabilityError, match=rf"{name} returns no log-probabilities.*{WAY_OUT}"):
        LazyRetrievalChain(model, search, SUMMARY)
    around = rf"RunnableWithFallbacks of {name} returns no log-probabilities.*{WAY_OUT}"
    with pytest.raises(CapabilityError, match=around):
        LazyRetrievalChain(model.with_fallbacks([model]), search, SUMMARY)
    if name == "ChatHuggingFace":
        agent = create_agent(model, middleware=[LazyRetrievalMiddleware(RunnableLambda(lambda _: []))])
        with pytest.raises(CapabilityError, match=r"ChatHuggingFace returns no .*semantic_entropy"):
            agent.invoke({"messages": [("human", "Where?")]})
    chain = LazyRetrievalChain(model, search, SUMMARY, gate="semantic_entropy", n_samples=2)
    assert chain.invoke("Where?")["answer"] == "Ada was born in Velm."
    assert (await chain.ainvoke("Where?"))["decision"]["retrieve"] is False
    assert "".join([chunk.get("answer", "") async for chunk in chain.astream("?")]) == "Ada was born in Velm."
