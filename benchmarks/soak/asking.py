"""Every way of asking that the soak takes: methods and frameworks; sync, async, streamed and in batches."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.soak.server import evidence_of, question_of
from surerag import ClusterCompressor, LazyRAG, OpenAIReader, Passage, SePer, UncertaintyRewriter
from surerag.encoders import HashingEncoder
from surerag.entailment import JudgeEntailer

Texts = list[str]

LIMITS: Final = {"deadline": 4.0, "max_bytes": 2**21}
"""What an answer may take."""

_SUMMARY = "Every item is in some room."


@dataclass(frozen=True)
class Way:
    """A part of ours, and how it is asked; what it returns are texts that have to name the item.

    Attributes:
        family: ``"core"``, ``"llama-index"`` or ``"langchain"``.
        method: What it is.
        ask: Ask for an item.
        aask: The same, in an event loop.
        stream: Pieces of an answer.
        astream: The same, in an event loop.
        many: Ask for several items at once; an exception may stand in an answer's place.
        amany: The same, in an event loop.
    """

    family: str
    method: str
    ask: Callable[[int], Texts]
    aask: Callable[[int], Awaitable[Texts]]
    stream: Callable[[int], Iterator[str]] | None = None
    astream: Callable[[int], AsyncIterator[str]] | None = None
    many: Callable[[Sequence[int]], list[Texts | Exception]] | None = None
    amany: Callable[[Sequence[int]], Awaitable[list[Texts | Exception]]] | None = None


def is_right(texts: Texts, number: int) -> bool:
    """Whether each text names the item and no other one; or says what a server says behind its limit."""
    return bool(texts) and all(
        {int(digits) for digits in re.findall(r"\d+", text)} == {number} or set(text.split()) == {"on"}
        for text in texts
    )


def found_for(query: str) -> list[str]:
    """Find what is known of the item that a query names."""
    named = re.findall(r"\d+", query)
    return [evidence_of(int(named[-1])), f"Item {named[-1]} was bought late."] if named else []


class Corpus:
    """Finds what is known of an item, without async of its own."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return passages, best first."""
        return [Passage(text) for text in found_for(query)][:k]


def core(url: str) -> tuple[list[Way], Callable[[], None]]:
    """Return the core's ways, and what ends them."""
    reader = OpenAIReader(
        "core",
        base_url=url,
        api_key="k",
        top_logprobs=5,
        timeout=5.0,
        retries=2,
        max_wait=0.2,
        max_concurrency=64,
        **LIMITS,
    )
    corpus = Corpus()
    lazy = LazyRAG(reader, corpus, _SUMMARY)
    compressor = ClusterCompressor(reader, HashingEncoder(), pass_below=0)
    rewriter = UncertaintyRewriter(reader, corpus)
    seper = SePer(reader, JudgeEntailer(reader), n_samples=3)

    def case(number: int) -> tuple[str, list[str], list[Passage]]:
        return question_of(number), [evidence_of(number)], corpus.retrieve(question_of(number), 2)

    def sampled(result: Any) -> Texts:
        return [answer.text for belief in (result.before, result.after) for answer in belief.answers]

    def evidence(result: Any) -> Texts:
        return [passage.text for passage in result.passages]

    async def alazy(number: int) -> Texts:
        return [(await lazy.arun(question_of(number))).answer]

    async def acompressed(number: int) -> Texts:
        question, _, passages = case(number)
        return evidence(await compressor.arun(question, passages))

    async def arewritten(number: int) -> Texts:
        return [(await rewriter.arun(question_of(number))).answer]

    async def amany(numbers: Sequence[int]) -> list[Any]:
        return [
            [result.answer] for result in await lazy.arun_many([question_of(number) for number in numbers])
        ]

    async def amany_rewritten(numbers: Sequence[int]) -> list[Any]:
        results = await rewriter.arun_many([question_of(number) for number in numbers])
        return [[result.answer] for result in results]

    async def asampled(number: int) -> Texts:
        return sampled(await seper.arun(*case(number)))

    async def astreamed(number: int) -> AsyncIterator[str]:
        async for piece in await lazy.astream(question_of(number)):
            yield piece

    ways = [
        Way(
            "core",
            "LazyRAG",
            lambda number: [lazy.run(question_of(number)).answer],
            alazy,
            lambda number: iter(lazy.stream(question_of(number))),
            astreamed,
            lambda numbers: [[result.answer] for result in lazy.run_many(map(question_of, numbers))],
            amany,
        ),
        Way(
            "core",
            "ClusterCompressor",
            lambda number: evidence(compressor.run(question_of(number), case(number)[2])),
            acompressed,
            many=lambda numbers: [
                evidence(result)
                for result in compressor.run_many([(case(number)[0], case(number)[2]) for number in numbers])
            ],
        ),
        Way(
            "core",
            "UncertaintyRewriter",
            lambda number: [rewriter.run(question_of(number)).answer],
            arewritten,
            many=lambda numbers: [[result.answer] for result in rewriter.run_many(map(question_of, numbers))],
            amany=amany_rewritten,
        ),
        Way("core", "SePer", lambda number: sampled(seper.run(*case(number))), asampled),
    ]
    return ways, reader.close


def llama_index(url: str) -> list[Way]:
    """Return LlamaIndex's ways."""
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.embeddings import MockEmbedding
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.llms.openai_like import OpenAILike  # noqa: TID251  # what users have

    from llama_index_surerag import (
        ClusterCompressorPostprocessor,
        LazyRetrievalQueryEngine,
        UncertaintyRewriteQueryEngine,
        reader_from_llm,
    )

    llm = reader_from_llm(
        OpenAILike(
            model="llama-index", api_base=url, api_key="k", is_chat_model=True, max_retries=1, timeout=5.0
        ),
        **LIMITS,
    )

    def nodes(query: str) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text=text), score=1.0) for text in found_for(query)]

    class Items(BaseRetriever):
        def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
            return nodes(query_bundle.query_str)

    lazy = LazyRetrievalQueryEngine.from_args(Items(), llm, summaries=_SUMMARY)
    streaming = LazyRetrievalQueryEngine.from_args(Items(), llm, summaries=_SUMMARY, streaming=True)
    compressor = ClusterCompressorPostprocessor(llm, MockEmbedding(embed_dim=4), pass_below=0)
    rewriting = UncertaintyRewriteQueryEngine.from_args(Items(), llm)

    def compressed(number: int) -> Texts:
        question = question_of(number)
        return [node.text for node in compressor.postprocess_nodes(nodes(question), query_str=question)]

    async def acompressed(number: int) -> Texts:
        question = question_of(number)
        found = await compressor.apostprocess_nodes(nodes(question), query_str=question)
        return [node.text for node in found]

    async def alazy(number: int) -> Texts:
        return [str(await lazy.aquery(question_of(number)))]

    async def arewritten(number: int) -> Texts:
        return [str(await rewriting.aquery(question_of(number)))]

    async def astreamed(number: int) -> AsyncIterator[str]:
        async for piece in (await streaming.aquery(question_of(number))).async_response_gen():
            yield piece

    return [
        Way(
            "llama-index",
            "LazyRAG",
            lambda number: [str(lazy.query(question_of(number)))],
            alazy,
            lambda number: iter(streaming.query(question_of(number)).response_gen),
            astreamed,
        ),
        Way("llama-index", "ClusterCompressor", compressed, acompressed),
        Way(
            "llama-index",
            "UncertaintyRewriter",
            lambda number: [str(rewriting.query(question_of(number)))],
            arewritten,
        ),
    ]


def langchain(url: str) -> list[Way]:
    """Return LangChain's ways."""
    from langchain_core.documents import Document
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_core.runnables import RunnableLambda
    from langchain_openai import ChatOpenAI

    from langchain_surerag import ClusterCompressor as Compressor
    from langchain_surerag import LazyRetrievalChain, UncertaintyRewriteRetriever, reader_from_model

    model = reader_from_model(
        ChatOpenAI(model="langchain", base_url=url, api_key="k", max_retries=1, timeout=5.0), **LIMITS
    )

    def documents(query: str) -> list[Document]:
        return [Document(text) for text in found_for(query)]

    items = RunnableLambda(documents)
    lazy = LazyRetrievalChain(model, items, _SUMMARY)
    compressor = Compressor(model, DeterministicFakeEmbedding(size=4), pass_below=0)
    rewriting = UncertaintyRewriteRetriever(model, items)

    def texts(found: Sequence[Document]) -> Texts:
        return [document.page_content for document in found]

    def answers(outputs: Sequence[Any]) -> list[Any]:
        return [output if isinstance(output, Exception) else [output["answer"]] for output in outputs]

    def streamed(number: int) -> Iterator[str]:
        return (chunk["answer"] for chunk in lazy.stream(question_of(number)) if "answer" in chunk)

    async def astreamed(number: int) -> AsyncIterator[str]:
        async for chunk in lazy.astream(question_of(number)):
            if "answer" in chunk:
                yield chunk["answer"]

    async def alazy(number: int) -> Texts:
        return [(await lazy.ainvoke(question_of(number)))["answer"]]

    async def acompressed(number: int) -> Texts:
        question = question_of(number)
        return texts(await compressor.acompress_documents(documents(question), question))

    async def afound(number: int) -> Texts:
        return texts(await rewriting.ainvoke(question_of(number)))

    async def amany(numbers: Sequence[int]) -> list[Any]:
        return answers(await lazy.abatch(list(map(question_of, numbers)), return_exceptions=True))

    return [
        Way(
            "langchain",
            "LazyRAG",
            lambda number: [lazy.invoke(question_of(number))["answer"]],
            alazy,
            streamed,
            astreamed,
            lambda numbers: answers(lazy.batch(list(map(question_of, numbers)), return_exceptions=True)),
            amany,
        ),
        Way(
            "langchain",
            "ClusterCompressor",
            lambda number: texts(
                compressor.compress_documents(documents(question_of(number)), question_of(number))
            ),
            acompressed,
        ),
        Way(
            "langchain",
            "UncertaintyRewriter",
            lambda number: texts(rewriting.invoke(question_of(number))),
            afound,
        ),
    ]
