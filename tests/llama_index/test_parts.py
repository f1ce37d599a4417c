"""Small parts of the integration: nodes that are copied, and what belongs to an event loop."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from llama_index_surerag._fanout import PerLoop, Turns
from llama_index_surerag.nodes import copy_of


def test_whatever_is_done_to_a_copy_leaves_the_node_alone() -> None:
    node = TextNode(
        id_="a",
        text="Velm",
        metadata={"page": 1},
        excluded_llm_metadata_keys=["page"],
        excluded_embed_metadata_keys=["page"],
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="d")},
    )
    before = node.to_json()
    copied = copy_of(NodeWithScore(node=node, score=0.5)).node
    assert copied.to_json() == before
    copied.metadata["page"] = 2
    copied.excluded_llm_metadata_keys.append("x")
    copied.excluded_embed_metadata_keys.append("x")
    copied.relationships.clear()
    assert node.to_json() == before


def test_values_of_loops_that_are_closed_go_with_them() -> None:
    slots = PerLoop(lambda: asyncio.Semaphore(1))
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def contend() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        turn = slots.get()
        assert slots.get() is turn

        async def one() -> None:
            # Contended, a semaphore holds on to its loop.
            async with turn:
                await asyncio.sleep(0)

        await asyncio.gather(one(), one(), one())

    for _ in range(3):
        asyncio.run(contend())
    gc.collect()
    # Only the last loop, whose successor has not come yet, may still be there.
    assert [loop() for loop in loops[:2]] == [None, None]


@pytest.mark.parametrize("at_once", [1, 4])
async def test_turns_keep_order_and_limit_in_threads_and_in_loops(at_once: int) -> None:
    turns = Turns(at_once)
    assert await asyncio.to_thread(turns.map, str, range(7)) == [str(item) for item in range(7)]

    async def call(item: int) -> str:
        await asyncio.sleep(0)
        return str(item)

    assert await turns.amap(call, range(7)) == [str(item) for item in range(7)]
