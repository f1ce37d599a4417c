"""The systems of the tables: plain RAG, the methods, and the frameworks' own components for the same problem.

Every system is a function from a question to an answer with its costs. All systems use the same reader, the
same encoder and the same final prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os.path import commonprefix
from typing import Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langchain_core.retrievers import BaseRetriever
from llama_index.core.llms import CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata
from pydantic import PrivateAttr

from langchain_surerag import ChatReader
from langchain_surerag.inputs import role_of
from studies.real.data import Data
from studies.real.reading import KeepingReader, ReaderAround
from surerag import Passage, SamplingParams, Services
from surerag.drivers import run
from surerag.effects import Generate, Program, perform
from surerag.evaluation import EvaluationAnswer, Question
from surerag.evaluation.systems import System
from surerag.messages import Generation, Message, Prompt, TraceKind, Usage
from surerag.prompts import FROM_CONTEXT, format_passages
from surerag.readers.protocol import BaseReader
from surerag.retrieval import PassageIndex
from surerag.retrieval.index import top_places
from surerag.services import Encoder

MAX_TOKENS = 32
"""Longest answer, in tokens."""

WRITTEN = 256
"""Longest intermediate text of a model, in tokens."""


class Setting(NamedTuple):
    """The parts from which the systems of a table are built."""

    reader: BaseReader
    encoder: Encoder
    data: Data
    k: int
    judges: bool = False
    decodes: bool = True


class Meter:
    """Generates the texts for one question, and counts their costs.

    Args:
        reader: The reader.

    Attributes:
        usage: Calls and tokens.
        noted: Intermediate scores by name.
        read: Prompt tokens, where a shared beginning of concurrent prompts counts once.
    """

    def __init__(self, reader: BaseReader) -> None:
        self.reader, self._services = reader, Services(reader=reader)
        self.usage, self.read = Usage(), 0
        self.noted: dict[str, float] = {}

    def generate(self, prompt: Prompt, max_tokens: int = MAX_TOKENS, trace: TraceKind = "none") -> Generation:
        """Return the greedy answer; calls from several threads are batched."""
        return self.generate_all([prompt], max_tokens, trace)[0]

    def generate_all(
        self, prompts: Sequence[Prompt], max_tokens: int = MAX_TOKENS, trace: TraceKind = "none"
    ) -> list[Generation]:
        """Return the greedy answers to concurrent prompts."""
        answers = run(_greedy_answers(prompts, max_tokens, trace), self._services)
        shared = self.reader.count_tokens(commonprefix([str(prompt) for prompt in prompts]))  # noqa: RUF071
        self.read += sum(answer.prompt_tokens for answer in answers) - shared * (len(prompts) - 1)
        return [self.counted(answer) for answer in answers]

    def generate_beside(
        self, prompt: Prompt, references: Sequence[str], trace: TraceKind = "none"
    ) -> tuple[Generation, dict[str, float]]:
        """Return the greedy answer, and the log-probability of the first reference as a score."""
        if not (references and isinstance(self.reader, KeepingReader)):
            return self.generate(prompt, trace=trace), {}
        self.reader.expect(prompt, references[0])
        answer = self.generate(prompt, trace=trace)
        likelihood = self.reader.likelihood(prompt)
        return answer, {} if likelihood is None else {"reference": likelihood}

    def counted(self, answer: Generation) -> Generation:
        """Add the costs of an answer, and return the answer."""
        self.usage += Usage(1, answer.prompt_tokens, answer.completion_tokens)
        return answer


def _greedy_answers(
    prompts: Sequence[Prompt], max_tokens: int, trace: TraceKind
) -> Program[list[Generation]]:
    sampling = SamplingParams(max_tokens=max_tokens, trace=trace)
    return [answer for [answer] in (yield from perform(Generate(prompts, sampling)))]


class FirstSamples(ReaderAround):
    """A reader that samples each prompt once and returns the first n of these samples.

    Different numbers of samples, and different weights, are then compared on the same answers.

    Args:
        reader: The reader.
        most: Number of samples of each prompt.
    """

    def __init__(self, reader: BaseReader, most: int) -> None:
        super().__init__(reader)
        self._most = most
        self._samples: dict[Prompt, list[Generation]] = {}

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return the first samples of each prompt."""
        missing = [one for one in dict.fromkeys(prompts) if one not in self._samples]
        if missing:
            rows = self._reader.generate(missing, replace(sampling, n=self._most))
            self._samples |= zip(missing, rows, strict=True)
        return [self._samples[one][: sampling.n] for one in prompts]


# The reader as the frameworks' models


class ReaderChat(ChatReader):
    """A greedy reader as LangChain's chat model; a meter counts its costs."""

    max_tokens: int | None = WRITTEN
    _meter: Meter = PrivateAttr()

    def __init__(self, meter: Meter, **fields: Any) -> None:
        super().__init__(meter.reader, **fields)
        self._meter = meter

    def _program(self, messages: Sequence[BaseMessage], *_: Any) -> Program[Generation]:
        turns = tuple(Message(role_of(one.type), str(one.content)) for one in messages)
        [answer] = yield from _greedy_answers([turns], self.max_tokens or WRITTEN, "none")
        return self._meter.counted(answer)


class ReaderLLM(CustomLLM):
    """A greedy reader as LlamaIndex's LLM."""

    max_tokens: int = WRITTEN
    _meter: Meter = PrivateAttr()

    def __init__(self, meter: Meter, **fields: Any) -> None:
        super().__init__(**fields)
        self._meter = meter

    @property
    def metadata(self) -> LLMMetadata:
        """The context window and the longest output."""
        return LLMMetadata(context_window=16_384, num_output=self.max_tokens)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Return the greedy answer."""
        return CompletionResponse(text=self._meter.generate(prompt, self.max_tokens).text)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Yield the greedy answer as one piece."""
        yield self.complete(prompt)


class EncoderEmbeddings(Embeddings):
    """An encoder as LangChain's embeddings."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return vectors of documents."""
        return [list(map(float, row)) for row in self._encoder.encode(texts, "document")]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return list(map(float, self._encoder.encode([text], "query")[0]))


class IndexRetriever(BaseRetriever):
    """An index as LangChain's retriever."""

    k: int
    _index: PassageIndex = PrivateAttr()

    def __init__(self, index: PassageIndex, k: int) -> None:
        super().__init__(k=k)
        self._index = index

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return _documents(self._index.retrieve(query, self.k))


def _documents(passages: Sequence[Passage]) -> list[Document]:
    return [Document(one.text, id=one.id, metadata={"id": one.id}) for one in passages]


def _passages(documents: Sequence[Document]) -> list[Passage]:
    return [Passage(one.page_content, id=str(one.metadata.get("id", one.id))) for one in documents]


# Systems


Choose = Callable[[Meter, Question, Sequence[Passage]], Sequence[Passage]]
"""Chooses the passages to answer from among the passages of a question."""

Find = Callable[[Meter, str], Sequence[Passage]]
"""Searches for a question and returns the passages."""


def answer_from(
    meter: Meter,
    question: str,
    passages: Sequence[Passage],
    references: Sequence[str] = (),
    /,
    **scores: float,
) -> EvaluationAnswer:
    """Answer from passages with the prompt of plain RAG; the log-probability of a reference is a score."""
    texts = [passage.text for passage in passages]
    answer, likelihood = meter.generate_beside(plain_prompt(question, passages), references)
    return EvaluationAnswer(answer.text, tuple(texts), meter.usage, answer.finish, scores=scores | likelihood)


def plain_prompt(question: str, passages: Sequence[Passage]) -> Prompt:
    """Return the prompt of plain RAG."""
    return FROM_CONTEXT.render(context=format_passages(one.text for one in passages), question=question)


def share_of_gold(passages: Sequence[Passage], question: Question) -> float:
    """Return the share of a question's gold passages that occur unchanged among the passages."""
    texts = {passage.text for passage in passages}
    return sum(text in texts for text in question.contexts) / len(question.contexts)


def choosing(reader: BaseReader, shown: Mapping[str, Sequence[Passage]], **ways: Choose) -> dict[str, System]:
    """Return systems that answer from chosen or shortened passages of a question."""

    def system(name: str, choose: Choose) -> System:
        def answer(question: Question) -> EvaluationAnswer:
            meter = Meter(reader)
            chosen = choose(meter, question, shown[question.text])
            read = sum(len(one.text) for one in chosen) / max(
                1, sum(len(o.text) for o in shown[question.text])
            )
            seen = share_of_gold(chosen, question)
            asked = meter, question.text, chosen, question.references
            answered = answer_from(*asked, context_share=read, gold_shown=seen, kept=float(len(chosen)))
            return replace(answered, scores={**answered.scores, **meter.noted, "read": float(meter.read)})

        return System(name, answer, {"system": name, "reader": reader.name})

    return {name.replace("_", " "): system(name.replace("_", " "), way) for name, way in ways.items()}


def searching(reader: BaseReader, clean: Mapping[str, str], **ways: Find) -> dict[str, System]:
    """Return systems that search and answer; those named ``clean`` answer the question without slips.

    The score ``hit`` says whether a gold passage was retrieved.
    """

    def system(name: str, find: Find) -> System:
        def answer(question: Question) -> EvaluationAnswer:
            meter = Meter(reader)
            passages = find(meter, question.text)
            text = clean[question.text] if name.startswith("clean") else question.text
            hit = float(any(one.text in question.contexts for one in passages))
            return answer_from(meter, text, passages, hit=hit)

        return System(name, answer, {"system": name, "reader": reader.name})

    return {name.replace("_", " "): system(name.replace("_", " "), way) for name, way in ways.items()}


# The frameworks' components that shorten contexts


def with_chain_extractor(meter: Meter, question: Question, passages: Sequence[Passage]) -> Sequence[Passage]:
    """LangChain's ``LLMChainExtractor``: one call for each passage, all of them concurrent."""
    from langchain_classic.retrievers.document_compressors import LLMChainExtractor

    compressor = LLMChainExtractor.from_llm(ReaderChat(meter))
    return _passages(list(asyncio.run(compressor.acompress_documents(_documents(passages), question.text))))


def with_embeddings_filter(encoder: Encoder, k: int) -> Choose:
    """LangChain's ``EmbeddingsFilter``: the k passages nearest to the question."""
    from langchain_classic.retrievers.document_compressors import EmbeddingsFilter

    compressor = EmbeddingsFilter(embeddings=EncoderEmbeddings(encoder), k=k)

    def choose(meter: Meter, question: Question, passages: Sequence[Passage]) -> Sequence[Passage]:
        return _passages(list(compressor.compress_documents(_documents(passages), question.text)))

    return choose


def with_llm_rerank(k: int) -> Choose:
    """LlamaIndex's ``LLMRerank``: the model names the passages that help, and how much.

    If the reply cannot be parsed, the component raises an error, and the first k passages are kept.
    """
    from llama_index.core.postprocessor import LLMRerank
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    def choose(meter: Meter, question: Question, passages: Sequence[Passage]) -> Sequence[Passage]:
        nodes = [NodeWithScore(node=TextNode(text=one.text, id_=one.id)) for one in passages]
        part = LLMRerank(llm=ReaderLLM(meter), top_n=k, choice_batch_size=len(nodes))
        try:
            ranked = part.postprocess_nodes(nodes, QueryBundle(question.text))
        except (ValueError, IndexError):
            ranked = []
        return [Passage(one.node.get_content(), id=one.node.node_id) for one in ranked or nodes[:k]]

    return choose


def with_sentence_optimizer(encoder: Encoder, share: float) -> Choose:
    """LlamaIndex's ``SentenceEmbeddingOptimizer``: the sentences of each passage nearest to the question."""
    from llama_index.core.embeddings import BaseEmbedding
    from llama_index.core.postprocessor import SentenceEmbeddingOptimizer
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    from surerag.text import split_sentences

    class Encoded(BaseEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            return EncoderEmbeddings(encoder).embed_query(query)

        def _get_text_embedding(self, text: str) -> list[float]:
            return EncoderEmbeddings(encoder).embed_documents([text])[0]

        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            return EncoderEmbeddings(encoder).embed_documents(texts)

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._get_query_embedding(query)

    part = SentenceEmbeddingOptimizer(
        embed_model=Encoded(),
        percentile_cutoff=share,
        context_before=0,  # by default each sentence comes with its neighbours, some of them twice
        context_after=0,
        tokenizer_fn=lambda text: [one.text for one in split_sentences(text)],
    )

    def choose(meter: Meter, question: Question, passages: Sequence[Passage]) -> Sequence[Passage]:
        nodes = [NodeWithScore(node=TextNode(text=one.text, id_=one.id)) for one in passages]
        found = part.postprocess_nodes(nodes, QueryBundle(question.text))
        return [Passage(one.node.get_content(), id=one.node.node_id) for one in found]

    return choose


# The frameworks' components that rewrite queries


def with_rephrase_query(index: PassageIndex, k: int) -> Find:
    """LangChain's ``RePhraseQueryRetriever``: the model shortens the question before the search."""
    from langchain_classic.retrievers import RePhraseQueryRetriever

    def find(meter: Meter, question: str) -> Sequence[Passage]:
        chat: Any = ReaderChat(meter, max_tokens=64)  # typed for completions alone
        return _passages(RePhraseQueryRetriever.from_llm(IndexRetriever(index, k), chat).invoke(question))

    return find


def with_multi_query(index: PassageIndex, k: int) -> Find:
    """LangChain's ``MultiQueryRetriever``: search with three wordings of the question.

    The retriever returns the union of the results without ranking it; the first k passages are shown.
    """
    from langchain_classic.retrievers import MultiQueryRetriever

    def find(meter: Meter, question: str) -> Sequence[Passage]:
        chat = ReaderChat(meter, max_tokens=128)
        part = MultiQueryRetriever.from_llm(IndexRetriever(index, k), chat, include_original=True)
        return _passages(part.invoke(question))[:k]

    return find


def with_hyde(index: PassageIndex, encoder: Encoder, k: int) -> Find:
    """LlamaIndex's ``HyDEQueryTransform``: search with the question and an invented answer."""
    from llama_index.core.indices.query.query_transform import HyDEQueryTransform

    def find(meter: Meter, question: str) -> Sequence[Passage]:
        bundle = HyDEQueryTransform(llm=ReaderLLM(meter, max_tokens=96), include_original=True)(question)
        vector = encoder.encode(bundle.embedding_strs, "query").mean(axis=0)
        return [index.passages[at] for at in top_places(index.vectors @ vector, k)]

    return find
