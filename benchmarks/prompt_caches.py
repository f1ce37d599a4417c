"""What each method does to a server's cache of prompts: ``python -m benchmarks.prompt_caches``.

A server that caches prefixes reads of a prompt only what comes after its longest beginning that it has read
before. Each method works on two questions about the same retrieved passages of a world; a scripted reader
answers, and what is counted are characters of prompts, which is close to tokens and depends on no
tokenizer. Real servers cache in blocks (16 tokens in vLLM, 128 after the first 1,024 at OpenAI), so that
short prompts gain nothing there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from surerag import (
    ClusterCompressor,
    ContextRefiner,
    Dense,
    LazyRAG,
    Passage,
    ScriptedReader,
    SePer,
    UncertaintyRewriter,
)
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.evaluation.differences import mean_difference
from surerag.prompts import NOTHING_TO_EXTRACT, format_passages
from surerag.readers.scripted import reply
from surerag.world import World

SHOWN, POOL = 5, 10


class Case(NamedTuple):
    """Two questions about the same passages, and passages that only another query finds."""

    first: str
    second: str
    passages: list[Passage]
    others: list[Passage]


class Row(NamedTuple):
    """What a method does, means over cases.

    Attributes:
        prompts: Prompts for a question.
        characters: Their characters, in all.
        in_turn: Share of these that are in the cache if prompts are read one after another.
        at_once: The same if prompts that can be asked together are read at the same time.
        again: Share of the second question's that are there from the first one.
        context: Share of the pipeline's own context, for the second question, that begins like the first's.
    """

    prompts: float
    characters: float
    in_turn: float
    at_once: float
    again: float
    context: float


class Retriever:
    """Finds a case's passages for its questions, and half of them, among others, for any other query."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return passages, best first."""
        case = self._case
        half = [passage for pair in zip(case.others, case.passages, strict=False) for passage in pair]
        found = case.passages if query in (case.first, case.second) else half
        return found[:k]


def answering(prompt: str) -> Any:
    """Say other words for a text or a query, quote from documents, and answer one of three things."""
    if prompt.startswith("Rewrite the text"):
        return "In other words, " + prompt.split("Text: ", 1)[1]
    if prompt.startswith("Rewrite the query"):
        return "What is known of " + prompt.split("Query: ", 1)[1]
    if prompt.startswith("Extract"):
        lines = [line.split("] ", 1)[1] for line in prompt.splitlines() if line.startswith("[")]
        question = prompt.split("Question: ", 1)[1].split("\n", 1)[0]
        kept = [line.split(". ")[0] for line in lines if crc32((question + line).encode()) % 2]
        return ". ".join(kept) or NOTHING_TO_EXTRACT
    if "yes or no" in prompt:
        return "no"
    return reply(f"answer {crc32(prompt.encode()) % 3}", logprobs=-1.5, entropy=3.0)


Method = Callable[[ScriptedReader, Case, str], Sequence[Passage]]
"""Works on one question of a case; returns what the pipeline shows the model that answers."""


def _lazy(threshold: float) -> Method:
    def run(reader: ScriptedReader, case: Case, question: str) -> Sequence[Passage]:
        summary = " ".join(passage.text.split(". ")[0] for passage in case.passages[:3])
        rag = LazyRAG(reader, Retriever(case), summary, threshold=threshold, top_n=SHOWN)
        result = rag.run(question)
        return result.passages or result.summaries

    return run


def _rewriting(documents: Any) -> Method:
    def run(reader: ScriptedReader, case: Case, question: str) -> Sequence[Passage]:
        rewriter = UncertaintyRewriter(reader, Retriever(case), documents=documents, top_n=SHOWN)
        return rewriter.run(question).passages

    return run


def _compressing(**options: Any) -> Method:
    def run(reader: ScriptedReader, case: Case, question: str) -> Sequence[Passage]:
        compressor = ClusterCompressor(reader, HashingEncoder(), pass_below=0, **options)
        return compressor.run(question, case.passages).passages

    return run


def _measuring(reader: ScriptedReader, case: Case, question: str) -> Sequence[Passage]:
    return Dense(reader, ExactEntailer()).run(question, case.passages[:SHOWN]).passages


def _refining(reader: ScriptedReader, case: Case, question: str) -> Sequence[Passage]:
    refiner = ContextRefiner(reader, ExactEntailer(), HashingEncoder(), top_n=SHOWN, refill="certain")
    return refiner.run(question, case.passages).passages


def _worth(reader: ScriptedReader, case: Case, question: str) -> Sequence[Passage]:
    SePer(reader, ExactEntailer()).run(question, ["gold"], case.passages[:SHOWN])
    return case.passages[:SHOWN]


METHODS: dict[str, Method] = {
    "L-RAG, gate stays shut": _lazy(9.0),
    "L-RAG, gate opens": _lazy(1.0),
    "DynQR, substitute": _rewriting("substitute"),
    "DynQR, expand": _rewriting("expand"),
    "EDC²-RAG": _compressing(),
    "EDC²-RAG, bridging=1": _compressing(bridging=1),
    "DENSE": _measuring,
    "DENSE-RAG refiner": _refining,
    "SePer": _worth,
}


def common(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike.

    Example:
        >>> common("Where is Velm?", "Where was Velm?")
        6
    """
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def cached(prompt: str, before: Sequence[str]) -> int:
    """Return how much of a prompt's beginning is in the cache."""
    return max((common(prompt, known) for known in before), default=0)


def measured(method: Method, case: Case) -> Row:
    """Work on both questions of a case, and look at the prompts."""
    calls: list[list[tuple[str, ...]]] = []
    contexts: list[str] = []
    for question in (case.first, case.second):
        reader = ScriptedReader(answering)
        shown = method(reader, case, question)
        contexts.append(format_passages(passage.text for passage in shown))
        # What is asked once is read once, however many samples there are.
        asked = [
            tuple(dict.fromkeys(call.prompts))
            for call in reader.history
            if call.verb in ("generate", "begin")
        ]
        calls.append(asked)
    first, second = ([prompt for group in groups for prompt in group] for groups in calls)
    characters = sum(map(len, first))
    in_turn = sum(cached(prompt, first[:at]) for at, prompt in enumerate(first))
    earlier: list[str] = []
    at_once = 0
    for group in calls[0]:
        at_once += sum(cached(prompt, earlier) for prompt in group)
        earlier += group
    again = sum(cached(prompt, first) for prompt in second)
    return Row(
        prompts=len(first),
        characters=characters,
        in_turn=in_turn / characters,
        at_once=at_once / characters,
        again=again / sum(map(len, second)),
        context=common(*contexts) / len(contexts[1]),
    )


def cases(n: int, seed: int) -> list[Case]:
    """Return cases of a world: a pool of passages each, and two questions."""
    world = World(seed)
    questions = [question.text for question in world.questions(2 * n)]
    passages = list(world.passages)
    found = []
    for at in range(n):
        start = at * 2 * POOL
        pool, others = passages[start : start + POOL], passages[start + POOL : start + 2 * POOL]
        found.append(Case(questions[2 * at], questions[2 * at + 1], pool, others))
    return found


def rows(n: int, seed: int) -> dict[str, tuple[str, ...]]:
    """Return the table's cells for each method, with the means' 95 % intervals over cases."""
    chosen = cases(n, seed)
    found = {}
    for name, method in METHODS.items():
        each = [measured(method, case) for case in chosen]
        prompts, characters = (sum(column) / n for column in list(zip(*each, strict=True))[:2])
        shares = [mean_difference(np.array(column)) for column in list(zip(*each, strict=True))[2:]]
        told = (f"{one.value:.0%} [{one.low:.0%}, {one.high:.0%}]" for one in shares)
        found[name] = (f"{prompts:.1f}", f"{characters:,.0f}", *told)
    return found


HEADS = (
    "method",
    "prompts",
    "characters",
    "in turn",
    "all at once",
    "next question",
    "context, next question",
)


def table(n: int, seed: int) -> list[str]:
    """Return the lines of the table, in Markdown."""
    lines = [HEADS, ("---", *["---:"] * (len(HEADS) - 1))]
    lines += [(name, *cells) for name, cells in rows(n, seed).items()]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=30, help="cases: two questions about the same passages")
    parser.add_argument("--seed", type=int, default=0, help="of the world")
    given = parser.parse_args()
    print(*table(given.n, given.seed), sep="\n")
    print(f"\nn = {given.n}, seed {given.seed}; means with 95 % intervals over cases")


if __name__ == "__main__":
    main()
