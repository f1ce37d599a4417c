"""The chunker as a node parser: in ingestion pipelines, beside LlamaIndex's own, on awkward texts."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from llama_index.core import Document, Settings, VectorStoreIndex
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import ImageDocument, ImageNode, NodeRelationship, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from transformers import AutoTokenizer

import world
from llama_index_surerag import AdaptiveSemanticNodeParser
from surerag import SemanticChunker, SemanticChunkerOptions
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError
from tests.llama_index.corpus import HashEmbedding

TEXT = "Ada was born in Velm. Ada left Velm in spring. Tin melts. Tin melts easily. Rivers are cold."


class Embedding(HashEmbedding):
    """Has a setting that its vectors depend on, a key, and a count of what it was asked for."""

    width: int = 256
    api_key: str = "sk-very-secret"
    _asked: int = PrivateAttr(default=0)

    @property
    def asked(self) -> int:
        return self._asked

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        self._asked += len(texts)
        vectors: list[list[float]] = HashingEncoder(self.width).encode(texts, "document").tolist()
        return vectors


class Awaiting(Embedding):
    """Awaits; refuses to block."""

    async def _aget_text_embedding(self, text: str) -> list[float]:
        await asyncio.sleep(0)
        return self._vectors([text])[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        raise AssertionError("embedded without awaiting")


def words(text: str) -> list[str]:
    return text.split()


def parser(**settings: Any) -> AdaptiveSemanticNodeParser:
    chosen = {"similarity_threshold": 0.3, "tokenizer": words, "embed_model": Embedding(), **settings}
    return AdaptiveSemanticNodeParser.from_defaults(**chosen)


def document(text: str = TEXT, **fields: Any) -> Document:
    return Document(
        id_="doc", text=text, metadata={"title": "T"}, excluded_llm_metadata_keys=["title"], **fields
    )


def plain(nodes: Sequence[Any]) -> list[dict[str, Any]]:
    """Nodes without what is random: their ids, also where others point to them."""
    found = [node.to_dict() for node in nodes]
    for node in found:
        del node["id_"]
        for relation in (NodeRelationship.PREVIOUS, NodeRelationship.NEXT):
            node["relationships"].get(relation.value, {}).pop("node_id", None)
    return found


async def test_nodes_are_what_the_core_cuts_with_everything_that_llama_index_adds() -> None:
    given_document = document(embedding=[1.0])
    before = given_document.model_dump_json()
    cut = parser()
    nodes = cut.get_nodes_from_documents([given_document])
    expected = SemanticChunker(
        HashingEncoder(256), lambda text: len(words(text)), similarity_threshold=0.3
    ).run(TEXT)
    assert [(node.text, node.start_char_idx, node.end_char_idx) for node in nodes] == [
        chunk[:3] for chunk in expected
    ]
    assert [node.text for node in nodes] == [
        "Ada was born in Velm. Ada left Velm in spring.",
        "Tin melts. Tin melts easily.",
        "Rivers are cold.",
    ]
    for node in nodes:
        assert TEXT[node.start_char_idx : node.end_char_idx] == node.text
        assert (node.metadata, node.excluded_llm_metadata_keys) == ({"title": "T"}, ["title"])
        assert node.relationships[NodeRelationship.SOURCE] == given_document.as_related_node_info()
        assert node.embedding is None
    for left, right in pairwise(nodes):
        assert left.next_node.node_id == right.node_id
        assert right.prev_node.node_id == left.node_id
    assert (nodes[0].prev_node, nodes[-1].next_node) == (None, None)
    assert given_document.model_dump_json() == before
    for again in (cut([given_document]), await cut.acall([given_document])):
        assert plain(again) == plain(nodes)


def test_relationships_and_metadata_are_those_of_a_parser_of_llama_indexs_own() -> None:
    # Each sentence is a chunk, for both; LlamaIndex's takes the metadata's two words off its size.
    text = "Tin melts. Rivers are cold. Ada paints."
    source = [document(text)]
    theirs = SentenceSplitter(chunk_size=5, chunk_overlap=0, tokenizer=words, include_metadata=False)
    ours = parser(similarity_threshold=1.0, include_metadata=False)
    expected, found = (one.get_nodes_from_documents(source) for one in (theirs, ours))
    assert [node.text for node in found] == text.replace(". ", ".|").split("|")
    assert plain(found) == plain(expected)
    bare = parser(include_prev_next_rel=False, id_func=lambda i, doc: f"{doc.node_id}-{i}")
    nodes = bare.get_nodes_from_documents([document()])
    assert [node.node_id for node in nodes] == ["doc-0", "doc-1", "doc-2"]
    assert all(set(node.relationships) == {NodeRelationship.SOURCE} for node in nodes)


def test_offsets_are_exact_where_a_text_repeats_itself() -> None:
    text = "Tin melts. Tin sinks. Tin melts.\nOrun. Tin sinks. Tin melts."
    for tau in (0.2, 1.0):
        nodes = parser(similarity_threshold=tau).get_nodes_from_documents([document(text), document(text)])
        ends = [0, 0]
        half = len(nodes) // 2
        for place, node in enumerate(nodes):
            which = int(place >= half)
            assert text[node.start_char_idx : node.end_char_idx] == node.text
            assert not text[ends[which] : node.start_char_idx].strip()
            ends[which] = node.end_char_idx
        assert ends == [len(text)] * 2


AWKWARD = {
    "no sentence ends": "tin copper gold silver " * 40,
    "one enormous sentence": "Ada " + "and Bo " * 200 + "paint.",
    "one enormous word": "x" * 700,
    "chinese": "艾达出生在维尔姆。她画河流。锡很容易熔化！谁知道呢？" * 12,  # noqa: RUF001 (Chinese marks)
    "arabic": "ولدت آدا في فيلم. رسمت الأنهار. هل يذوب القصدير؟ نعم، بسهولة! " * 12,
    "table": "| name | place |\n|---|---|\n" + "".join(f"| n{row} | p{row} |\n" for row in range(60)),
    "code": "def f(x):\n    return x\n\n\nclass A:\n"
    + "".join(f"    y{row} = f({row})\n" for row in range(60)),
    "emoji": "🙂👩\u200d🚀 " * 90,
    "marks": "... !!! ??? --- *** " * 30,
}


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD)
@pytest.mark.parametrize("counting", ["llama index", "characters"])
def test_awkward_texts_stay_whole_and_below_the_maximum(text: str, counting: str) -> None:
    tokenizer = Settings.tokenizer if counting == "llama index" else list
    cut = AdaptiveSemanticNodeParser(
        HashEmbedding(), similarity_threshold=-1, chunk_size=40, tokenizer=tokenizer
    )
    nodes = cut.get_nodes_from_documents([document(text)])
    assert len(nodes) > 1
    assert max(len(tokenizer(node.text)) for node in nodes) <= 40
    assert re.sub(r"\s", "", "".join(node.text for node in nodes)) == re.sub(r"\s", "", text)
    assert all(text[node.start_char_idx : node.end_char_idx] == node.text for node in nodes)
    # As long as they may be: two neighbours would not have fitted into one chunk.
    if counting == "characters":
        sizes = [len(text[a.start_char_idx : b.end_char_idx]) for a, b in pairwise(nodes)]
        assert min(sizes) > 40


@hypothesis_settings(max_examples=40)
@given(
    st.lists(st.text("ab .!?\n。¶é́", max_size=40), max_size=3),
    st.sampled_from([-1.0, 0.3, 1.0]),
    st.integers(2, 12),
)
def test_any_texts(texts: list[str], tau: float, t_max: int) -> None:
    documents = [Document(id_=str(place), text=text) for place, text in enumerate(texts)]
    nodes = parser(similarity_threshold=tau, chunk_size=t_max, tokenizer=list).get_nodes_from_documents(
        documents
    )
    for place, text in enumerate(texts):
        own = [node for node in nodes if node.ref_doc_id == str(place)]
        assert "".join("".join(node.text for node in own).split()) == "".join(text.split())
        assert all(text[node.start_char_idx : node.end_char_idx] == node.text for node in own)
        assert all(len(node.text) <= t_max for node in own)


def test_empty_documents_images_and_nodes() -> None:
    image = ImageDocument(id_="image", text="", image="aGk=", embedding=[1.0])
    nodes = parser().get_nodes_from_documents([document(""), document(" \n"), image])
    assert [type(node) for node in nodes] == [ImageNode]
    assert (nodes[0].ref_doc_id, nodes[0].embedding) == ("image", [1.0])
    assert parser().get_nodes_from_documents([]) == []
    [inner] = SentenceSplitter().get_nodes_from_documents([document("Tin melts. Ada paints.")])
    cut = parser()([inner])
    assert [node.text for node in cut] == ["Tin melts.", "Ada paints."]
    assert all(node.ref_doc_id == "doc" and node.metadata == {"title": "T"} for node in cut)
    with pytest.raises(InputError, match="Raise chunk_size"):
        parser(chunk_size=1, tokenizer=lambda text: text * 3)([TextNode(text="abc")])


async def test_in_an_ingestion_pipeline_its_cache_knows_every_setting() -> None:
    model = Embedding()
    cache = IngestionCache()

    def cut(**changes: Any) -> AdaptiveSemanticNodeParser:
        return parser(**{"embed_model": model, **changes})

    async def asked(transformation: AdaptiveSemanticNodeParser, native: bool = False) -> int:
        using = transformation.embed_model
        before = using.asked
        pipeline = IngestionPipeline(transformations=[transformation], cache=cache)
        nodes = (
            await pipeline.arun(documents=[document()]) if native else pipeline.run(documents=[document()])
        )
        assert "".join(node.text for node in nodes).replace(" ", "") == TEXT.replace(" ", "")
        return using.asked - before

    assert await asked(cut()) == 5
    assert await asked(cut()) == await asked(cut(), native=True) == 0
    for other in (
        {"similarity_threshold": 0.4},
        {"chunk_size": 9},
        {"language": "de"},
        {"tokenizer": list},
        {"include_metadata": False},
        {"include_prev_next_rel": False},
        {"embed_model": Embedding(width=128)},
        {"embed_model": Embedding(model_name="other")},
    ):
        assert await asked(cut(**other), native=True) == 5, other
    # What does not change the vectors does not count.
    assert await asked(cut(embed_model=Embedding(api_key="sk-other", embed_batch_size=3))) == 0
    changed = cut()
    changed.chunk_size = 8
    assert await asked(changed) == 5


async def test_in_a_pipeline_with_a_docstore_that_the_refiner_can_use() -> None:
    kept = SimpleDocumentStore()
    pipeline = IngestionPipeline(
        transformations=[parser(), HashEmbedding()], docstore=kept, docstore_strategy="duplicates_only"
    )
    nodes = pipeline.run(documents=[document()])
    assert len(nodes) == 3
    assert all(node.embedding for node in nodes)
    assert pipeline.run(documents=[document()]) == []
    assert kept.get_document(nodes[0].ref_doc_id).get_content() == TEXT
    index = VectorStoreIndex(nodes, embed_model=HashEmbedding())
    [best] = index.as_retriever(similarity_top_k=1).retrieve("Where are rivers cold?")
    assert best.text == "Rivers are cold."


async def test_async_is_native_where_the_model_is_and_in_a_thread_where_it_is_not() -> None:
    threads: list[str] = []

    class Blocking(Embedding):
        def _get_text_embedding(self, text: str) -> list[float]:
            threads.append(threading.current_thread().name)
            return super()._get_text_embedding(text)

    documents = [document()]
    expected = plain(parser().get_nodes_from_documents(documents))
    for model in (Awaiting(), Blocking()):
        cut = parser(embed_model=model)
        found = await asyncio.gather(*(cut.aget_nodes_from_documents(documents) for _ in range(3)))
        assert [plain(nodes) for nodes in found] == [expected] * 3
    assert threads
    assert threading.main_thread().name not in threads
    # The sync form works inside this running loop.
    assert plain(parser()(documents)) == expected


def test_many_documents_are_embedded_in_few_calls() -> None:
    calls: list[int] = []

    class Batching(Embedding):
        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            calls.append(len(texts))
            return self._vectors(texts)

    documents = [Document(text=TEXT) for _ in range(100)]
    nodes = parser(embed_model=Batching(embed_batch_size=2048)).get_nodes_from_documents(documents)
    assert len(nodes) == 300
    assert calls == [64 * 5, 36 * 5]


def small_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(Path(world.__file__).parent / "small_reader")


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "a lambda": lambda: lambda text: text.split(),
    "a method of a class": lambda: str.split,
    "a partial": lambda: partial(str.split, sep=" "),
    "transformers": small_tokenizer,
    "its encode": lambda: small_tokenizer().encode,
    "its tokenize": lambda: small_tokenizer().tokenize,
    "tokenizers": lambda: small_tokenizer().backend_tokenizer,
    "its own encode": lambda: small_tokenizer().backend_tokenizer.encode,
}


@pytest.mark.parametrize("kind", TOKENIZERS)
async def test_any_tokenizer_serves_in_an_ingestion_pipeline(kind: str) -> None:
    text = "Ada was born in Velm and left it in spring. " * 20
    given = TOKENIZERS[kind]()
    cut = parser(tokenizer=given, chunk_size=24, similarity_threshold=-1.0)
    pipeline = IngestionPipeline(transformations=[cut])
    nodes = pipeline.run(documents=[document(text)])
    assert [node.get_content() for node in nodes] == [
        node.get_content() for node in await pipeline.arun(documents=[document(text)])
    ]
    count = str.split if kind in list(TOKENIZERS)[:3] else small_tokenizer().tokenize
    assert 12 < max(len(count(node.get_content())) for node in nodes) <= 24
    assert len(nodes) < 40


def test_a_tokenizer_of_transformers_works_in_several_processes() -> None:
    cut = parser(tokenizer=small_tokenizer(), chunk_size=24)
    documents = [Document(id_=f"d{number}", text="Ada was born in Velm. " * 9) for number in range(4)]
    alone = IngestionPipeline(transformations=[cut]).run(documents=documents)
    both = IngestionPipeline(transformations=[cut]).run(documents=documents, num_workers=2)
    assert [node.get_content() for node in both] == [node.get_content() for node in alone]


def test_tokenizers_of_one_name_are_told_apart() -> None:
    def counting(step: int) -> Any:
        return lambda text: text.split()[::step]

    names = [parser(tokenizer=counting(step)).to_dict()["tokenizer"] for step in (1, 2)]
    assert names[0] != names[1]
    assert parser(tokenizer=counting(1)).to_dict()["tokenizer"] == names[0]
    split = [parser(tokenizer=partial(str.split, sep=mark)).to_dict()["tokenizer"] for mark in " ."]
    assert split == ["builtins.str.split(sep=' ')", "builtins.str.split(sep='.')"]
    with pytest.raises(ConfigurationError, match="a function from a text to its tokens, got int"):
        parser(tokenizer=7)


def module_tokenizer(text: str) -> list[str]:
    return text.split()


def test_it_pickles_for_several_processes_or_says_what_does_not() -> None:
    cut = parser(tokenizer=module_tokenizer, similarity_threshold=0.4)
    again = pickle.loads(pickle.dumps(cut))
    assert again.to_dict() == cut.to_dict()
    assert plain(again([document()])) == plain(cut([document()]))
    assert pickle.loads(pickle.dumps(AdaptiveSemanticNodeParser(HashEmbedding()))).chunk_size == 512
    for name, broken in (("tokenizer", lambda text: text), ("id_func", lambda i, doc: str(i))):
        with pytest.raises(ConfigurationError, match=f"{name} cannot be pickled"):
            pickle.dumps(parser(**{name: broken}))


def test_settings_survive_serialisation_and_no_model_or_key_is_in_it() -> None:
    cut = parser(chunk_size=77, language="de")
    written = json.dumps(cut.to_dict())
    assert "secret" not in written
    values = json.loads(written)
    assert values["encoder"].startswith("HashEmbedding#") or values["encoder"].startswith("base_component#")
    assert values["tokenizer"].endswith("test_dense_node_parser.words")
    again = AdaptiveSemanticNodeParser.from_dict(values, embed_model=Embedding(), tokenizer=words)
    assert again.to_dict() == cut.to_dict()
    assert AdaptiveSemanticNodeParser(HashEmbedding()).to_dict()["tokenizer"] == (
        "Encoding:cl100k_base(allowed_special='all')"
    )
    named = parser(id_func=lambda i, doc: str(i)).to_dict()
    with pytest.raises(ConfigurationError, match="id_func"):
        AdaptiveSemanticNodeParser.from_dict(named, embed_model=Embedding())


@pytest.fixture
def settings() -> Iterator[None]:
    before = Settings._embed_model
    yield
    Settings._embed_model = before


def test_models_default_to_those_of_the_settings_and_settings_are_checked(settings: None) -> None:
    Settings.embed_model = Embedding()
    assert AdaptiveSemanticNodeParser.from_defaults().get_nodes_from_documents([document()])
    assert Settings.embed_model.asked == 5
    for wrong in ({"similarity_threshold": 1.5}, {"chunk_size": 0}, {"embed_model": object()}):
        with pytest.raises(ConfigurationError):
            parser(**wrong)


def test_tau_can_be_fitted_to_the_model() -> None:
    texts = [document(), document("Bo paints. Bo paints rivers.")]
    cut = parser()
    fitted = cut.with_quantile(texts, 1.0)
    expected = SemanticChunker(HashingEncoder(256)).with_quantile([text.text for text in texts], 1.0)
    assert (fitted.similarity_threshold, cut.similarity_threshold) == (expected.similarity_threshold, 0.3)
    assert len(cut.with_quantile(texts, 0.0)([document()])) == 1
    with pytest.raises(ConfigurationError, match="quantile"):
        cut.with_quantile(texts, 2)


async def test_spans_and_callbacks(spans: Any) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    cut = parser(callback_manager=CallbackManager([debug]))
    cut.get_nodes_from_documents([document()], show_progress=True)
    await cut.aget_nodes_from_documents([document()])
    assert len(debug.get_event_pairs(CBEventType.NODE_PARSING)) == 2
    names = {span.id_.split("-")[0] for span in spans.completed_spans}
    assert {f"AdaptiveSemanticNodeParser.{name}" for name in ("_parse_nodes", "_aparse_nodes")} <= names


def test_options_are_those_of_the_core_and_take_effect_or_raise() -> None:
    fields = AdaptiveSemanticNodeParser.model_fields
    for name, option in SemanticChunkerOptions.OPTIONS.items():
        assert (fields[name].default, fields[name].description) == (option.default, option.doc)
    cut = parser(similarity_threshold=-1.0)
    assert len(cut([document()])) == 1
    cut.chunk_size = 5
    assert len(cut([document()])) > 1
    with pytest.raises(ConfigurationError, match="chunk_size"):
        cut.chunk_size = 0
    assert cut.chunk_size == 5
    wider = cut.model_copy(update={"chunk_size": 99})
    assert (len(wider([document()])), cut.chunk_size) == (1, 5)
    assert copy.deepcopy(wider).core.encoder.name == wider.core.encoder.name
    with pytest.raises(ConfigurationError, match=r"'chunksize'.*chunk_size"):
        parser(chunksize=9)
