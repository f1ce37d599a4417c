"""The core, LlamaIndex and LangChain compress alike, sync and async."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from llama_index.core.schema import NodeWithScore, TextNode

import langchain_surerag
import llama_index_surerag
from surerag import ClusterCompressor, FakeReader
from surerag.encoders import HashingEncoder
from surerag.prompts import NOTHING_TO_EXTRACT
from world import World

WORLD = World(seed=3, size=60)


def quoting(entity: str) -> FakeReader:
    def answer(prompt: str) -> str:
        documents = prompt.split("Documents:\n")[-1].splitlines()
        return next((line.split("] ")[-1] for line in documents if entity in line), NOTHING_TO_EXTRACT)

    return FakeReader(answer)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"variant": "official"},
        {"budget": 40, "mode": "fact_check"},
        {"bridging": 2, "first_cluster_size": 1},
    ],
)
@pytest.mark.parametrize("k", [1, 2, 12])
async def test_three_ways_sync_and_async_give_the_same_passages(k: int, settings: dict[str, Any]) -> None:
    question = next(q for q in WORLD.questions(20) if len(q.gold_passages) == 1)
    passages = WORLD.context(question, k, noise=0.5, redundancy=0.4)
    nodes = [NodeWithScore(node=TextNode(id_=p.id, text=p.text)) for p in passages]
    documents = [Document(p.text, id=p.id) for p in passages]
    services = quoting(question.entity), HashingEncoder()
    core = ClusterCompressor(*services, **settings)
    llama = llama_index_surerag.ClusterCompressorPostprocessor(*services, **settings)
    chain = langchain_surerag.ClusterCompressor(*services, **settings)
    found = [
        [(p.id, p.text) for p in core.run(question.text, passages).passages],
        [(p.id, p.text) for p in (await core.arun(question.text, passages)).passages],
        [(p.id, p.text) for p in core.run_many([(question.text, passages)])[0].passages],
        [(n.node_id, n.text) for n in llama.postprocess_nodes(nodes, query_str=question.text)],
        [(n.node_id, n.text) for n in await llama.apostprocess_nodes(nodes, query_str=question.text)],
        [(d.id, d.page_content) for d in chain.compress_documents(documents, question.text)],
        [(d.id, d.page_content) for d in await chain.acompress_documents(documents, question.text)],
    ]
    assert found[0]
    assert all(other == found[0] for other in found)
