"""Many questions at once against one after the other: ``run_many`` against a loop over ``run``.

Run ``python -m benchmarks.run_many``. L-RAG answers 64 questions, first with a random Llama, whose gate opens
for half of them, and then with the embedded reader on a world's questions. Both ways read, decide and
generate the same; ``run_many`` asks the model for all questions together. What that saves is in the steps
that generate, where the weights are read once for all; reading prompts costs the same either way.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console

from benchmarks.models import SMALL, TINY, Bench, arguments, build
from benchmarks.paired import Comparison, Contender, compare, show
from surerag import LazyRAG, Passage
from surerag.methods.lazy_rag.result import LazyRAGResult
from world import World, embedded_reader
from world.retrievers import BM25Retriever

GATE = 8
"""Tokens of the first pass that the gate looks at."""


class Drawn:
    """A retriever of random letters: every query gets its own, and the same ones again."""

    def __init__(self, length: int) -> None:
        self._length = length

    def retrieve(self, query: str, k: int) -> Sequence[Passage]:
        """Return k passages of ``length`` letters each."""
        rng = random.Random(f"{query} {self._length}")
        letters = ["".join(rng.choices("abcdefgh ", k=self._length)) for _ in range(k)]
        return [Passage(text, id=str(place)) for place, text in enumerate(letters)]


def random_llama(bench: Bench, questions: Sequence[str], *, length: int, new_tokens: int) -> LazyRAG:
    """L-RAG around a random Llama, with the threshold that half of the questions exceed.

    Args:
        bench: The model.
        questions: What will be asked.
        length: Tokens of a summary and of each of three passages.
        new_tokens: Tokens of an answer.
    """
    rag = LazyRAG(
        bench.reader,
        Drawn(length),
        Drawn(length),
        n_summaries=1,
        top_n=3,
        gate_tokens=GATE,
        max_tokens=new_tokens,
    )
    # A gate that never opens measures the first pass of every question.
    shut = rag.with_options(threshold=1e9, max_tokens=GATE).run_many(questions)
    return rag.with_options(threshold=statistics.median(_entropy(result) for result in shut))


def embedded(world: World, *, new_tokens: int) -> LazyRAG:
    """L-RAG around the embedded reader; tier 1 is every article's lead, both tiers are searched by BM25."""
    leads = [document.passages[0] for document in world.documents]
    return LazyRAG(
        embedded_reader(),
        BM25Retriever(world.passages),
        BM25Retriever(leads),
        top_n=3,
        gate_tokens=GATE,
        max_tokens=new_tokens,
    )


def contest(
    title: str,
    rag: LazyRAG,
    questions: Sequence[str],
    *,
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Compare on the same questions, and say whether the results are the same."""
    results: dict[str, list[LazyRAGResult]] = {}

    def loop() -> None:
        results["loop"] = [rag.run(question) for question in questions]

    def together() -> None:
        results["run_many"] = rag.run_many(questions)

    comparison = compare(
        f"{title}, {len(questions)} questions",
        Contender("a loop over run", loop),
        Contender("run_many", together),
        turns=turns,
        clock=clock,
    )
    pairs = list(zip(results["loop"], results["run_many"], strict=True))
    decisions = sum(one.decision.retrieve == other.decision.retrieve for one, other in pairs)
    answers = sum(one.answer == other.answer for one, other in pairs)
    opened = sum(one.decision.retrieve for one, _ in pairs)
    Console().print(
        f"{title}: {opened} of {len(pairs)} retrieved; "
        f"same decisions: {decisions}, same answers: {answers} of {len(pairs)}"
    )
    return comparison


def _entropy(result: LazyRAGResult) -> float:
    assert result.decision.signal is not None
    return result.decision.signal


def main() -> None:
    """Measure, and print a table."""
    parser = arguments(__doc__ or "", turns=3)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1, help="of the world")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    shape, length, new_tokens = (TINY, 12, GATE + 2) if given.tiny else (SMALL, 150, 32)
    count = min(given.questions, 4) if given.tiny else given.questions
    world = World(seed=given.seed, size=60) if given.tiny else World(seed=given.seed)
    asked = [f"What is {place}?" for place in range(count)]
    rag = random_llama(build(shape), asked, length=length, new_tokens=new_tokens)
    found = [contest("random Llama", rag, asked, turns=given.turns, clock=given.clock)]
    asked = [question.text for question in world.questions(count)]
    rag = embedded(world, new_tokens=new_tokens)
    found.append(contest("embedded reader", rag, asked, turns=given.turns, clock=given.clock))
    show(found, caption=f"{shape.layers} layers, {shape.width} wide, {given.threads} threads")


if __name__ == "__main__":
    main()
