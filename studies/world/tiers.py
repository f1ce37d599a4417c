"""Both tiers of L-RAG over a world: an index of its passages, and one of its articles' leads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.world.world import World
from surerag.retrieval import PassageIndex
from surerag.services import Encoder, Retriever


class Tiers(NamedTuple):
    """The two tiers of L-RAG over one world: its passages, and the leads of its articles."""

    passages: Retriever
    summaries: Retriever


def index_world(world: World, encoder: Encoder, vectors: NDArray[np.float32] | None = None) -> Tiers:
    """Index all passages of a world; a summary is an article's lead, which is encoded with them.

    Args:
        world: The world.
        encoder: Encodes passages and questions.
        vectors: Of the passages, by this encoder, where they are there already.
    """
    passages = world.passages
    if vectors is None:
        vectors = encoder.encode([passage.text for passage in passages], "document")
    leads = [place for place, passage in enumerate(passages) if passage.metadata["part"] == "lead"]
    summaries = PassageIndex([passages[place] for place in leads], vectors[leads], encoder)
    return Tiers(PassageIndex(passages, vectors, encoder), summaries)
