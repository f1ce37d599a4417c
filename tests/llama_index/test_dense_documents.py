"""Where refined nodes come from: documents cut anew, and the retrievers that put nodes together."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import HierarchicalNodeParser, SentenceWindowNodeParser, get_leaf_nodes
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import AutoMergingRetriever, QueryFusionRetriever
from llama_index.core.schema import MetadataMode, NodeRelationship, NodeWithScore, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from llama_index_surerag import AdaptiveSemanticNodeParser, DenseRefinerPostprocessor
from surerag import DenseRefiner as ContextRefiner
from surerag import Passage, SemanticChunker
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError
from tests.llama_index.corpus import HashEmbedding
from tests.llama_index.dense_cases import Found, LetterEmbedding, dumped, letter_nodes, tool, warnings
from tests.methods.dense_rag.script import MENDED, QUESTION, Shown, distinct, script

BORN = "Ada was born in Velm. Ada was born in spring."
TEXT = f"Tin melts.\n{BORN} Tin melts. Rivers are cold and wide."
QUERY = "Where was Ada born?"


def whole(name: str = "doc", text: str = TEXT, **fields: Any) -> Document:
    return Document(
        id_=name,
        text=text,
        metadata={"title": name},
        excluded_llm_metadata_keys=["title"],
        excluded_embed_metadata_keys=["title"],
        **fields,
    )


def pieces(document: Document, width: int = 30) -> list[NodeWithScore]:
    """Chunks of a fixed size, which cut sentences apart."""
    source = {NodeRelationship.SOURCE: document.as_related_node_info()}
    return [
        NodeWithScore(
            node=TextNode(
                id_=f"{document.node_id}-{start}",
                text=document.text[start : start + width].strip().replace("\n", " "),
                relationships=source,
            ),
            score=0.5,
        )
        for start in range(0, len(document.text), width)
    ]


def answers(context: Shown) -> str:
    """Sure only where the sentence is whole."""
    return "Velm" if any(BORN in text for text in context) else distinct(context)


def cutting(documents: Any, **settings: Any) -> DenseRefinerPostprocessor:
    chosen = {"embed_model": HashingEncoder(), "chunker": None, "top_n": 2, **settings}
    if chosen["chunker"] is None:
        chosen["chunker"] = AdaptiveSemanticNodeParser(HashingEncoder(), similarity_threshold=0.4)
    reader = script(answers, rephrase=lambda text: f"So: {text}")
    return DenseRefinerPostprocessor(reader, entailer=ExactEntailer(), documents=documents, **chosen)


def store() -> SimpleDocumentStore:
    kept = SimpleDocumentStore()
    kept.add_documents([whole(embedding=[1.0, 0.0])])
    return kept


@pytest.mark.parametrize(
    "documents",
    [store(), [whole(embedding=[1.0, 0.0])], lambda nodes: [whole(nodes[0].node.ref_doc_id)]],
    ids=["store", "list", "call"],
)
async def test_documents_of_uncertain_questions_are_cut_anew(documents: Any) -> None:
    given = pieces(whole())
    before = dumped(given)
    refiner = cutting(documents)
    result = refiner.refine(given, QUERY)
    assert [one.rechunked for one in result.rounds][:1] == [True]
    found = refiner.postprocess_nodes(given, query_str=QUERY)
    assert dumped(await refiner.apostprocess_nodes(given, query_str=QUERY)) == dumped(found)
    assert dumped(given) == before
    assert found[0].text == BORN
    core = ContextRefiner(
        script(answers, rephrase=lambda text: f"So: {text}"),
        ExactEntailer(),
        chunker=SemanticChunker(
            HashingEncoder(), refiner.chunker.core.count_tokens, similarity_threshold=0.4
        ),
        top_n=2,
        max_chunks=2,
    ).run(QUERY, [Passage(node.text) for node in given], [Passage(TEXT, id="doc")])
    assert [node.text for node in found] == [passage.text for passage in core.passages]
    assert result.score == pytest.approx(core.score, abs=1e-5)
    for node in found:
        start, end = node.node.start_char_idx, node.node.end_char_idx
        assert TEXT[start:end] == node.text
        assert node.node_id == f"doc@{start}:{end}"
        assert node.node.ref_doc_id == "doc"
        assert node.node.source_node == whole().as_related_node_info()
        assert (node.metadata["title"], node.node.embedding, node.score) == ("doc", None, None)
        [told] = node.metadata["provenance"]
        assert (told["id"], TEXT[told["source_start"] : told["source_end"]]) == ("doc", node.text)
        assert "provenance" not in node.get_content(metadata_mode=MetadataMode.LLM)
        assert "provenance" not in node.get_content(metadata_mode=MetadataMode.EMBED)
        assert {"document", "start", "end"}.isdisjoint(node.metadata)
        assert node.metadata["dense"]["score"] == result.score


def test_a_certain_question_keeps_its_nodes() -> None:
    found = cutting([whole()], top_n=1).postprocess_nodes(
        [NodeWithScore(node=TextNode(id_="x", text=BORN)), *pieces(whole())], query_str=QUERY
    )
    assert [node.node_id for node in found] == ["x"]


def test_documents_that_are_not_there_are_told_and_nodes_stand_for_themselves(spans: Any) -> None:
    stray = NodeWithScore(node=TextNode(id_="stray", text=f"Bo is away. {BORN}", start_char_idx=7))
    given = [*pieces(whole()), stray]
    found = cutting([whole("doc", "Tin melts.")]).postprocess_nodes(given, query_str=QUERY)
    assert [event.name for event in warnings()][:1] == ["dense_refiner.documents_missing"]
    assert warnings()[0].data["ids"] == ["stray"]
    [born] = [node for node in found if node.text == BORN]
    assert born.node.ref_doc_id == "stray"
    assert born.node.start_char_idx == len("Bo is away. ")


@pytest.mark.parametrize(
    ("documents", "name"),
    [
        (SimpleDocumentStore(), "dense_refiner.no_documents"),
        (lambda nodes: 1 / 0, "dense_refiner.documents_failed"),
        (lambda nodes: ["text"], "dense_refiner.documents_failed"),
    ],
)
async def test_without_documents_the_nodes_are_refined_as_they_are(
    spans: Any, documents: Any, name: str
) -> None:
    refiner = tool(script(MENDED), documents=documents)
    plain = dumped(tool(script(MENDED)).postprocess_nodes(letter_nodes(), query_str=QUESTION))
    assert dumped(refiner.postprocess_nodes(letter_nodes(), query_str=QUESTION)) == plain
    assert dumped(await refiner.apostprocess_nodes(letter_nodes(), query_str=QUESTION)) == plain
    assert [event.name for event in warnings()] == [name] * 2


def test_what_cannot_be_a_source_of_documents_is_refused() -> None:
    for documents in (7, "doc", ["doc"]):
        with pytest.raises(ConfigurationError, match="document"):
            tool(documents=documents)
    with pytest.raises(ConfigurationError, match="nothing to cut"):
        tool(chunker=SemanticChunker(HashingEncoder()))


async def asked(engine: RetrieverQueryEngine, question: str) -> list[NodeWithScore]:
    """Ask both ways; they find the same."""
    found = engine.query(question).source_nodes
    assert dumped((await engine.aquery(question)).source_nodes) == dumped(found)
    return found


async def test_behind_a_fusion_of_retrievers() -> None:
    fusion = QueryFusionRetriever(
        [Found(letter_nodes("abc")), Found(letter_nodes("def"))],
        MockLLM(),
        num_queries=1,
        similarity_top_k=6,
        use_async=False,
    )
    refiner = tool(embed_model=LetterEmbedding())
    engine = RetrieverQueryEngine.from_args(fusion, MockLLM(), node_postprocessors=[refiner])
    first = [node.text for node in fusion.retrieve(QUESTION)]
    found = await asked(engine, QUESTION)
    assert len(first) == 6
    assert all(node.metadata["dense"]["rounds"] >= 1 for node in found)
    assert [node.text for node in found] == [
        passage.text for passage in refiner.refine(fusion.retrieve(QUESTION), QUESTION).passages
    ]


async def test_behind_an_auto_merging_retriever() -> None:
    parser = HierarchicalNodeParser.from_defaults(chunk_sizes=[128, 16], chunk_overlap=0)
    nodes = parser.get_nodes_from_documents([whole()])
    context = StorageContext.from_defaults()
    context.docstore.add_documents(nodes)
    leaves = VectorStoreIndex(get_leaf_nodes(nodes), storage_context=context, embed_model=HashEmbedding())
    merging = AutoMergingRetriever(leaves.as_retriever(similarity_top_k=6), context)
    engine = RetrieverQueryEngine.from_args(
        merging, MockLLM(), node_postprocessors=[cutting([whole()], top_n=1)]
    )
    retrieved = merging.retrieve(QUERY)
    found = await asked(engine, QUERY)
    parents = {node.node_id for node in nodes} - {node.node_id for node in get_leaf_nodes(nodes)}
    assert parents & {node.node_id for node in retrieved}
    assert all(node.node.ref_doc_id == "doc" for node in found)


async def test_behind_sentence_windows() -> None:
    nodes = SentenceWindowNodeParser.from_defaults(window_size=1).get_nodes_from_documents([whole()])
    index = VectorStoreIndex(nodes, embed_model=HashEmbedding())
    reader = script(answers, rephrase=lambda text: f"So: {text}")
    windows = MetadataReplacementPostProcessor("window")
    refiner = DenseRefinerPostprocessor(reader, HashEmbedding(), ExactEntailer(), top_n=2)
    engine = index.as_query_engine(MockLLM(), similarity_top_k=4, node_postprocessors=[windows, refiner])
    found = await asked(engine, QUERY)
    assert 1 <= len(found) <= 2
    assert any(f"[1] {found[0].text}" in str(prompt) for prompt in reader.prompts)
    for node in found:
        assert node.text == node.metadata["window"]
        assert node.metadata["dense"]["label"]
        assert NodeRelationship.SOURCE in node.node.relationships


async def test_documents_behind_what_is_understood_are_not_fetched() -> None:
    asked: list[int] = []

    def fetched(nodes: Any) -> list[Document]:
        asked.append(len(nodes))
        return [whole()]

    understood = pieces(whole(), width=len(TEXT))
    refiner = cutting(fetched)
    refiner.postprocess_nodes(understood, query_str=QUERY)
    await refiner.apostprocess_nodes(understood, query_str=QUERY)
    assert asked == []
    refiner.postprocess_nodes(pieces(whole()), query_str=QUERY)
    assert len(asked) == 1
