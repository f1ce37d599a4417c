"""One model, many ways to ask: the same answers, decisions and entropies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import pytest
import transformers
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from surerag.adapting import ChatTemplateWarning

from langchain_surerag import LazyRetrievalChain, RunnableRetriever, reader_from_model, summaries_of
from surerag import LazyRAG, TransformersReader
from surerag.messages import Message, SamplingParams
from tests.langchain.conftest import HashEmbeddings
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

QUESTIONS = ["Where does Velm lie?", "Where was Ada born?", "What is the Orun?", "Is Tarn old?", "Why?"]
GREEDY = SamplingParams(max_tokens=6)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return transformers.pipeline(
        "text-generation", model=tiny_model("llama"), tokenizer=tiny_tokenizer(chat=True), device="cpu"
    )


@pytest.fixture
def retriever(documents: list[Document]) -> Any:
    return InMemoryVectorStore.from_documents(documents, HashEmbeddings()).as_retriever()


def seen(answer: str, decision: dict[str, Any], documents: Iterable[str]) -> tuple[Any, ...]:
    return answer, decision["retrieve"], pytest.approx(decision["signal"], abs=1e-5), list(documents)


def seen_in(output: dict[str, Any]) -> tuple[Any, ...]:
    documents = [document.page_content for document in output["passages"]]
    return output["answer"], output["decision"]["retrieve"], output["decision"]["signal"], documents


async def test_core_and_chain_sync_and_async_alone_and_batched(
    pipeline: Any, retriever: Any, documents: list[Document]
) -> None:
    reader = TransformersReader(pipeline.model, pipeline.tokenizer)
    summaries = summaries_of(documents, embeddings=HashEmbeddings())
    settings: dict[str, Any] = {"top_n": 2, "n_summaries": 1, "max_tokens": 6, "gate_tokens": 3}
    trial = LazyRAG(reader, RunnableRetriever(retriever), summaries, **settings).run_many(QUESTIONS)
    # A threshold between two entropies: both branches are taken, and rounding decides nothing.
    entropies = sorted(result.decision.signal or 0.0 for result in trial)
    tau = (entropies[1] + entropies[2]) / 2
    core = LazyRAG(reader, RunnableRetriever(retriever), summaries, threshold=tau, **settings)
    expected = [
        seen(result.answer, asdict(result.decision), [passage.text for passage in result.passages])
        for result in map(core.run, QUESTIONS)
    ]
    assert {row[1] for row in expected} == {True, False}
    chain = LazyRetrievalChain(
        ChatHuggingFace(llm=HuggingFacePipeline(pipeline=pipeline), tokenizer=pipeline.tokenizer),
        retriever,
        summaries,
        threshold=tau,
        return_details=True,
        **settings,
    )
    ways = {
        "invoke": [chain.invoke(question) for question in QUESTIONS],
        "ainvoke": [await chain.ainvoke(question) for question in QUESTIONS],
        "batch": await asyncio.to_thread(chain.batch, QUESTIONS),
        "abatch": await chain.abatch(QUESTIONS),
        "stream": [added(chain.stream(question)) for question in QUESTIONS],
    }
    for way, outputs in ways.items():
        assert [seen_in(output) for output in outputs] == expected, way


def added(chunks: Iterable[Any]) -> Any:
    whole: Any = None
    for chunk in chunks:
        whole = chunk if whole is None else whole + chunk
    return whole


def test_a_pipeline_is_read_directly(pipeline: Any) -> None:
    plain = HuggingFacePipeline(pipeline=pipeline)
    chat = ChatHuggingFace(llm=plain, tokenizer=pipeline.tokenizer)
    core = TransformersReader(pipeline.model, pipeline.tokenizer)
    for model in (plain, chat, chat.bind(stop=["x"]).with_retry()):
        reader = reader_from_model(model)
        assert reader.capabilities.entropy == "exact"
        assert reader.capabilities.local
        assert reader.generate(["Velm"], GREEDY) == core.generate(["Velm"], GREEDY)
    # One reader, and so one queue, for all who use a pipeline in one way.
    assert reader_from_model(chat) is reader_from_model(chat.with_retry())
    assert reader_from_model(chat) is reader_from_model(plain)


def test_a_bare_pipeline_is_asked_through_its_chat_template_and_told_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = tiny_tokenizer(chat=True)
    model = transformers.pipeline(
        "text-generation", model=tiny_model("llama"), tokenizer=tokenizer, device="cpu"
    )
    plain = HuggingFacePipeline(pipeline=model)
    with pytest.warns(ChatTemplateWarning, match=r"reader_from_model\(llm, chat_template=False\)") as warned:
        readers = [reader_from_model(plain), reader_from_model(plain.bind(stop=["x"]))]
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert [record.name for record in caplog.records if "chat template" in record.message] == ["surerag"]
    assert readers[0] is readers[1]
    raw = reader_from_model(plain, chat_template=False)
    for reader, template in ((readers[0], True), (raw, False)):
        core = TransformersReader(model.model, tokenizer, chat_template=template)
        assert reader.generate(["Velm"], GREEDY) == core.generate(["Velm"], GREEDY)
    assert raw.generate(["Velm"], GREEDY) != readers[0].generate(["Velm"], GREEDY)


@pytest.mark.filterwarnings("error::surerag.adapting.ChatTemplateWarning")
def test_without_a_template_or_with_a_chat_model_nothing_is_to_be_said() -> None:
    bare = transformers.pipeline(
        "text-generation", model=tiny_model("llama"), tokenizer=tiny_tokenizer(), device="cpu"
    )
    reader = reader_from_model(HuggingFacePipeline(pipeline=bare))
    core = TransformersReader(bare.model, bare.tokenizer)
    assert reader.generate(["Velm"], GREEDY) == core.generate(["Velm"], GREEDY)
    chat = transformers.pipeline(
        "text-generation", model=tiny_model("llama"), tokenizer=tiny_tokenizer(chat=True), device="cpu"
    )
    plain = HuggingFacePipeline(pipeline=chat)
    reader_from_model(plain, chat_template=False)
    reader_from_model(ChatHuggingFace(llm=plain, tokenizer=chat.tokenizer))


def test_a_pipelines_prompt_is_its_own(pipeline: Any) -> None:
    """What the reader reads equals what LangChain's own classes feed to the pipeline."""
    plain = HuggingFacePipeline(pipeline=pipeline, pipeline_kwargs={"max_new_tokens": 6, "do_sample": False})
    [[answer]] = reader_from_model(plain, chat_template=False).generate(["Velm"], GREEDY)
    assert (
        plain.bind(skip_prompt=True, pipeline_kwargs=plain.pipeline_kwargs).invoke("Velm").strip()
        == answer.text
    )
    chat = ChatHuggingFace(llm=plain, tokenizer=pipeline.tokenizer)
    conversation = (Message("system", "Be brief."), Message("user", "Velm?"))
    [[answer]] = reader_from_model(chat).generate([conversation], GREEDY)
    own = chat.bind(skip_prompt=True, pipeline_kwargs=plain.pipeline_kwargs)
    assert own.invoke([("system", "Be brief."), ("human", "Velm?")]).text.strip() == answer.text


def test_only_its_text_is_used_on_request(pipeline: Any) -> None:
    plain = HuggingFacePipeline(pipeline=pipeline, pipeline_kwargs={"max_new_tokens": 6})
    assert not reader_from_model(plain, logprobs=False).capabilities.logprobs


class MyPipeline(HuggingFacePipeline):
    """A user's own child of LangChain's class."""


def test_a_child_of_a_pipelines_class_is_read_like_it(pipeline: Any) -> None:
    readers = [
        reader_from_model(kind(pipeline=pipeline), chat_template=False)
        for kind in (HuggingFacePipeline, MyPipeline)
    ]
    assert readers[0] is readers[1]
    assert readers[1].capabilities.entropy == "exact"
