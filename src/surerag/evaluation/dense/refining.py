"""The refiner and its ablations on uncertain questions (form of Tables 1 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from surerag.components import AdaptiveChunker, ContextRefiner
from surerag.components.context_refiner import Candidates
from surerag.drivers.progress import Progress
from surerag.evaluation.dense.measuring import ANSWER, AT_ONCE, REPHRASE_TOKENS, Record
from surerag.methods.dense_cache import DenseCache
from surerag.methods.refinement_types import RefinementResult
from surerag.readers.protocol import Reader
from surerag.services import Entailer

Stages = Callable[[str], Progress]
"""From the name of a stage to what shall be told of its progress."""

FULL = "chunked, refined"
VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        FULL: {},
        "only removing": {"remove_only": True},
        "no self-evaluation": {"self_evaluation": False},
        "refill on certain": {"refill": "certain"},
        "the text's rules": {"variant": "paper"},
        "refinement alone": {"chunker": None},
    }
)
"""What is changed of the default. The first four are Table 4's; ``"the text's rules"`` are those of section
5.2 where Algorithm 3 says something else; the last one refines what was retrieved, without cutting anew."""


def refiner(
    reader: Reader, entailer: Entailer, chunker: AdaptiveChunker, cache: DenseCache, k: int
) -> ContextRefiner:
    """Return the refiner that all variants are made of."""
    return ContextRefiner(
        reader,
        entailer,
        encoder=chunker.encoder,
        chunker=chunker,
        k=k,
        max_tokens=ANSWER.max_tokens,
        rephrase_tokens=REPHRASE_TOKENS,
        on_failure="raise",
        cache=cache,
    )


def refined(
    default: ContextRefiner, records: Sequence[Record], stages: Stages
) -> dict[str, list[RefinementResult]]:
    """Refine the contexts of some questions by every variant."""
    asked = [
        Candidates(record.case.question.text, record.case.pool, record.case.documents) for record in records
    ]
    return {
        name: default.with_settings(**changes).run_many(asked, at_once=AT_ONCE, progress=stages(name))
        for name, changes in VARIANTS.items()
    }
