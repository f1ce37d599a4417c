"""The parts that users put into a pipeline, each run with a model: in the core and in both frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from surerag.errors import SureragError
from surerag.types import Passage

House = Literal["core", "LlamaIndex", "LangChain"]
HOUSES: Mapping[House, str] = {"core": "core", "LlamaIndex": "llama-index", "LangChain": "langchain"}
"""Each with the name of its page."""

QUESTION = "Where was Ada born?"
ANSWER = "Velm"
TEXTS = (
    "Ada was born in Velm, a town of painters and of rain.",
    "Velm stands on the Orun, which is a river.",
)
SUMMARY = "Ada is a painter."
REPHRASED = "Velm, a town of painters and of rain, is where Ada was born."
EVIDENCE = "Ada was born in Velm."


def reply(prompt: str) -> str:
    """Answer any of the prompts as a good model would."""
    asked = prompt.lower()
    for sign, said in (
        ("reply only with entailment", "entailment"),
        ("reply only with yes or no", "yes"),
        ("rewrite the text", REPHRASED),
        ("rewrite the query", QUESTION),
        ("extract from the documents", EVIDENCE),
    ):
        if sign in asked:
            return said
    return ANSWER


class InvalidResultError(SureragError):
    """An evaluator says of an item that it could not be measured, and why."""


class Part(NamedTuple):
    """One part.

    Attributes:
        name: The method, as the table's column is called.
        run: Builds it around a model, runs it, and returns in a few words what came out.
    """

    name: str
    run: Callable[[Any], str]


def parts(house: House) -> list[Part]:
    """Return a house's parts; its framework is imported now."""
    return {"core": _core, "LlamaIndex": _llama_index, "LangChain": _langchain}[house]()


def _listed(
    lazy: Callable[..., str],
    compress: Callable[[Any], str],
    refine: Callable[[Any], str],
    understood: Callable[[Any], str],
    rewrite: Callable[..., str],
    worth: Callable[..., str],
) -> list[Part]:
    """Name a house's parts, in the order of the tables; some with two settings."""
    return [
        Part("L-RAG, entropy", lazy),
        Part("L-RAG, disagreement", partial(lazy, gate="disagreement")),
        Part("EDC²-RAG", compress),
        Part("DENSE refiner", refine),
        Part("DENSE", understood),
        Part("DynQR, perplexity", rewrite),
        Part("DynQR, disagreement", partial(rewrite, metric="disagreement")),
        Part("ΔSePer", worth),
        Part("ΔSePer, frequency", partial(worth, weights="frequency")),
    ]


def _decided(signal: float | None, answer: str) -> str:
    return f"{answer}, gate at {signal:.2f}" if signal is not None else answer


def _passages() -> list[Passage]:
    return [Passage(text, id=str(at)) for at, text in enumerate(TEXTS)]


class _Corpus:
    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:  # the protocol's signature
        return _passages()[:k]


def _core() -> list[Part]:
    from surerag import ClusterCompressor, ContextRefiner, Dense, LazyRAG, SePer, UncertaintyRewriter
    from surerag.encoders import HashingEncoder
    from surerag.entailment import ExactEntailer, JudgeEntailer

    def lazy(reader: Any, **options: Any) -> str:
        result = LazyRAG(reader, _Corpus(), SUMMARY, **options).run(QUESTION)
        return _decided(result.decision.signal, result.answer)

    def compress(reader: Any) -> str:
        tool = ClusterCompressor(reader, HashingEncoder(), pass_below=0)
        return " | ".join(passage.text for passage in tool.run(QUESTION, _passages()).passages)

    def refine(reader: Any) -> str:
        return f"{len(ContextRefiner(reader, ExactEntailer()).run(QUESTION, _passages()).passages)} passages"

    def rewrite(reader: Any, **options: Any) -> str:
        result = UncertaintyRewriter(reader, _Corpus(), **options).run(QUESTION)
        return f"{result.answer}, uncertainty {result.uncertainty:.2f}"

    def worth(reader: Any, **options: Any) -> str:
        result = SePer(reader, JudgeEntailer(reader), n_samples=3, **options).run(
            QUESTION, [ANSWER], _passages()
        )
        return f"Δ {result.delta:+.2f}, {result.weights} weights"

    def understood(reader: Any) -> str:
        return f"{Dense(reader, ExactEntailer()).run(QUESTION, _passages()).score:.2f} nats"

    return _listed(lazy, compress, refine, understood, rewrite, worth)


def _llama_index() -> list[Part]:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    import llama_index_surerag as pack
    from surerag.encoders import HashingEncoder
    from surerag.entailment import ExactEntailer

    def nodes() -> list[NodeWithScore]:
        return [
            NodeWithScore(node=TextNode(text=text, id_=str(at)), score=0.5) for at, text in enumerate(TEXTS)
        ]

    class Nodes(BaseRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return nodes()

    def lazy(llm: Any, **options: Any) -> str:
        engine = pack.LazyRetrievalQueryEngine.from_args(Nodes(), llm, summaries=SUMMARY, **options)
        response = engine.query(QUESTION)
        return _decided(response.metadata["signal"], str(response))

    def compress(llm: Any) -> str:
        tool = pack.ClusterCompressorPostprocessor(llm, HashingEncoder(), pass_below=0)
        return " | ".join(node.text for node in tool.postprocess_nodes(nodes(), query_str=QUESTION))

    def refine(llm: Any) -> str:
        tool = pack.DenseRefinerPostprocessor(llm, entailer=ExactEntailer())
        return f"{len(tool.postprocess_nodes(nodes(), query_str=QUESTION))} passages"

    def rewrite(llm: Any, **options: Any) -> str:
        response = pack.UncertaintyRewriteQueryEngine.from_args(Nodes(), llm, **options).query(QUESTION)
        return f"{response}, uncertainty {response.metadata['uncertainty']:.2f}"

    def worth(llm: Any, **options: Any) -> str:
        tool = pack.DeltaSePerEvaluator(llm=llm, entailer=llm, n_samples=3, **options)
        result = tool.evaluate(QUESTION, contexts=list(TEXTS), reference=ANSWER)
        if result.invalid_result:
            raise InvalidResultError(result.invalid_reason)
        return f"Δ {result.score:+.2f}, {result.weights} weights"

    def understood(llm: Any) -> str:
        result = pack.DenseEvaluator(llm, ExactEntailer()).evaluate(QUESTION, contexts=list(TEXTS))
        if result.invalid_result:
            raise InvalidResultError(result.invalid_reason)
        return f"{result.score:.2f} nats"

    return _listed(lazy, compress, refine, understood, rewrite, worth)


def _langchain() -> list[Part]:
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    import langchain_surerag as pack
    from surerag.encoders import HashingEncoder
    from surerag.entailment import ExactEntailer

    def documents() -> list[Document]:
        return [Document(text, id=str(at)) for at, text in enumerate(TEXTS)]

    class Documents(BaseRetriever):
        def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
            return documents()

    def lazy(model: Any, **options: Any) -> str:
        output = pack.LazyRetrievalChain(model, Documents(), SUMMARY, **options).invoke(QUESTION)
        return _decided(output["decision"]["signal"], output["answer"])

    def compress(model: Any) -> str:
        tool = pack.ClusterCompressor(model, HashingEncoder(), pass_below=0)
        return " | ".join(found.page_content for found in tool.compress_documents(documents(), QUESTION))

    def refine(model: Any) -> str:
        tool = pack.DenseRefiner(model, HashingEncoder(), entailer=ExactEntailer())
        return f"{len(tool.compress_documents(documents(), QUESTION))} passages"

    def rewrite(model: Any, **options: Any) -> str:
        found = pack.UncertaintyRewriteRetriever(model, Documents(), **options).invoke(QUESTION)
        return f"{len(found)} documents"

    def evaluated(tool: Any) -> tuple[Any, Any]:
        found = tool(
            inputs={"question": QUESTION},
            outputs={"documents": list(TEXTS)},
            reference_outputs={"answer": ANSWER},
        )["results"][0]
        if found["score"] is None:
            raise InvalidResultError(found["comment"])
        return found["score"], found

    def worth(model: Any, **options: Any) -> str:
        score, found = evaluated(pack.DeltaSePerEvaluator(model, model, n_samples=3, **options))
        return f"Δ {score:+.2f}, {found['value']['weights']} weights"

    def understood(model: Any) -> str:
        return f"{evaluated(pack.DenseEvaluator(model, ExactEntailer()))[0]:.2f} nats"

    return _listed(lazy, compress, refine, understood, rewrite, worth)
