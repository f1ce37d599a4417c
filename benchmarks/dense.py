"""DENSE against a loop of plain calls: tokens read, answers compared, time; and the refiner round by round.

Run ``python -m benchmarks.dense``. The k + 1 contexts of a question differ in one chunk each. Asked one by
one, (k + 1) k chunks are read; what they share at their beginnings need be read once, which leaves
k + k (k + 1) / 2. Rephrasings are known beforehand, as they are after ``Dense.prepare``; tokens are those
that the reader counts as it reads them. Times are of a random Llama; how many answers need comparing is
measured with the embedded reader on a world's questions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.models import SMALL, TINY, Bench, arguments, build
from benchmarks.paired import Comparison, Contender, Spread, compare, show
from surerag import (
    ContextRefiner,
    Dense,
    DenseCache,
    DenseOptions,
    Passage,
    RefinementResult,
    TransformersReader,
)
from surerag.effects import Event
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.methods.dense_rag.memory import Memory
from surerag.types import Sampling
from surerag.world import World, embedded_reader
from surerag.world.retrievers import BM25Retriever

REPHRASE_TOKENS = 640
OPTIONS = DenseOptions()


class Case(NamedTuple):
    """A question, and its context."""

    question: str
    passages: list[Passage]


class Work(NamedTuple):
    """Questions whose chunks are known in other words.

    Attributes:
        cases: The questions, each with k chunks.
        rephrased: Each chunk's text in other words, which begin with another letter.
        length: Tokens of a chunk, in either wording.
    """

    cases: list[Case]
    rephrased: dict[str, str]
    length: int


class Read(NamedTuple):
    """Tokens that two contenders read.

    Attributes:
        plain: In a loop of plain calls.
        ours: By DENSE.
        naive: What a loop has to read of the chunks: (k + 1) k L for each question.
        floor: What is left of it if each shared beginning is read once: k L + L k (k + 1) / 2.
        instructions: What a loop reads besides; DENSE reads it once a question, and once for all where
            questions share it.
    """

    plain: int
    ours: int
    naive: int
    floor: int
    instructions: int


class Contest(NamedTuple):
    """Tokens and times of one piece of work."""

    comparison: Comparison
    read: Read

    @property
    def time_to_tokens(self) -> Spread:
        """How much the time's ratio exceeds the tokens' ratio, turn by turn; 1 if time follows tokens."""
        saved = self.read.plain / self.read.ours
        both = zip(self.comparison.first_seconds, self.comparison.second_seconds, strict=True)
        return Spread.of([saved / (plain / ours) for plain, ours in both])


def draw(count: int, k: int, length: int, *, pool: int = 0) -> Work:
    """Draw chunks of random letters, a token each, for some questions.

    A random model answers by the letter that it has read last: every chunk ends in another one than its
    neighbours and its rephrasing do, so that the last chunk of a context is the one that matters.

    Args:
        count: Questions.
        k: Chunks of each.
        length: Letters of a chunk.
        pool: Further chunks of each, candidates for a refiner.
    """
    rng = random.Random(f"dense {count} {k} {length}")
    rephrased: dict[str, str] = {}
    cases = []
    for place in range(count):
        passages = []
        for at in range(k + pool):
            last = "ijklmnop"[at % 8]
            text, other = (
                first + "".join(rng.choices("abcdefgh ", k=length - 2)) + end
                for first, end in (("x", last), ("y", last.upper()))
            )
            rephrased[text] = other
            passages.append(Passage(text, id=f"{place}-{at}"))
        cases.append(Case(f"What is {place:03}?", passages))
    return Work(cases, rephrased, length)


def knowing(reader: TransformersReader, work: Work) -> DenseCache:
    """Return a cache that knows every chunk in other words."""
    memory = Memory(reader=reader.name)
    for text, other in work.rephrased.items():
        prompt = OPTIONS.prompts["rephrase"].render(passage=text)
        memory.cache.rephrasings[memory.rephrasing_key(prompt, REPHRASE_TOKENS)] = other
    return memory.cache


def contexts(case: Case, work: Work) -> list[str]:
    """Return the k + 1 prompts of a question, as anyone would write them."""
    texts = [passage.text for passage in case.passages]
    edits = [[*texts[:at], work.rephrased[text], *texts[at + 1 :]] for at, text in enumerate(texts)]
    return [OPTIONS.answer_prompt(case.question, shown) for shown in (texts, *edits)]


def contest(
    title: str,
    reader: TransformersReader,
    work: Work,
    *,
    new_tokens: int,
    turns: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Contest:
    """Let DENSE and a loop of plain calls answer under the same contexts."""
    sampling = Sampling(max_tokens=new_tokens)
    tokens = {"plain": 0, "ours": 0}
    answers: dict[str, list[tuple[str, ...]]] = {}

    def loop() -> None:
        before = reader.tokens_read
        answers["plain"] = [
            tuple(reader.generate([prompt], sampling)[0][0].text.strip() for prompt in contexts(case, work))
            for case in work.cases
        ]
        tokens["plain"] = reader.tokens_read - before

    def together() -> None:
        before = reader.tokens_read
        dense = _dense(reader, work, new_tokens)
        answers["ours"] = [result.answers for result in dense.run_many(work.cases)]
        tokens["ours"] = reader.tokens_read - before

    comparison = compare(
        title,
        Contender("a loop of plain calls", loop),
        Contender("Dense", together),
        turns=turns,
        clock=clock,
    )
    same = sum(a == b for a, b in zip(answers["plain"], answers["ours"], strict=True))
    Console().print(f"{title}: same answers for {same} of {len(work.cases)} questions")
    return Contest(comparison, _read(reader, work, **tokens))


def _dense(reader: TransformersReader, work: Work, new_tokens: int) -> Dense:
    return Dense(
        reader,
        ExactEntailer(),
        max_tokens=new_tokens,
        rephrase_tokens=REPHRASE_TOKENS,
        cache=knowing(reader, work),
    )


def _read(reader: TransformersReader, work: Work, *, plain: int, ours: int) -> Read:
    k, questions = len(work.cases[0].passages), len(work.cases)
    # A chunk brings its number, and the end of its line.
    chunk = reader.count_tokens(f"[1] {work.cases[0].passages[0].text}\n")
    naive, floor = questions * (k + 1) * k * chunk, questions * (k * chunk + chunk * k * (k + 1) // 2)
    return Read(plain, ours, naive, floor, plain - naive)


class Round(NamedTuple):
    """One round of a refinement: chunks shown, tokens asked about, tokens read, and time."""

    chunks: int
    asked: int
    read: int
    seconds: float


def refinement(reader: TransformersReader, work: Work, k: int, *, new_tokens: int) -> list[Round]:
    """Refine one context whose last chunk the reader never understands, and count every round."""
    marks = [reader.tokens_read]

    def on_event(event: Event) -> None:
        if event.name == "context_refiner.round":
            marks.append(reader.tokens_read)

    refiner = ContextRefiner(
        reader,
        ExactEntailer(),
        HashingEncoder(),
        on_event=on_event,
        top_n=k,
        max_chunks=2 * k,
        max_tokens=new_tokens,
        rephrase_tokens=REPHRASE_TOKENS,
        cache=knowing(reader, work),
    )
    found: RefinementResult = refiner.run(*work.cases[0])
    reads = [after - before for before, after in pairwise(marks)]
    return [
        Round(len(one.measured.passages), one.calls.prompt_tokens, read, one.seconds)
        for one, read in zip(found.rounds, reads, strict=True)
    ]


class Compared(NamedTuple):
    """Pairs of answers that were judged, of those that a naive run would judge."""

    questions: int
    judged: int
    naive: int


def compared(world: World, count: int, k: int) -> Compared:
    """Count what the embedded reader's answers leave to judge, on contexts that BM25 finds."""
    reader = embedded_reader()
    dense = Dense(reader, ExactEntailer(), max_tokens=24, rephrase_tokens=64)
    retriever = BM25Retriever(world.passages)
    asked = [(question.text, retriever.retrieve(question.text, k)) for question in world.questions(count)]
    judged = sum(result.calls.judgements for result in dense.run_many(asked))
    return Compared(count, judged, count * k * (k + 1))


def tokens_table(found: Sequence[Contest]) -> Table:
    """Show what was read."""
    table = Table("work", "naive", "loop read", "floor", "Dense read", "to floor", "time to tokens")
    for one in found:
        read = one.read
        table.add_row(
            one.comparison.title,
            f"{read.naive:,}",
            f"{read.plain:,}",
            f"{read.floor:,}",
            f"{read.ours:,}",
            f"{read.ours / read.floor:.3f}",
            " / ".join(f"{value:.2f}" for value in one.time_to_tokens),
        )
    table.caption = (
        "naive: (k + 1) k L; floor: k L + L k (k + 1) / 2; instructions before and after the chunks come on "
        "top of both. Time to tokens: ratio of tokens over ratio of times, 1 where time follows tokens."
    )
    return table


def rounds_table(rounds: Sequence[Round]) -> Table:
    """Show a refinement."""
    table = Table("round", "chunks", "tokens asked about", "tokens read", "seconds")
    for number, one in enumerate(rounds, start=1):
        table.add_row(str(number), str(one.chunks), f"{one.asked:,}", f"{one.read:,}", f"{one.seconds:.2f}")
    return table


def contests(
    bench: Bench, *, length: int, questions: int, turns: int, clock: Callable[[], float]
) -> list[Contest]:
    """Run every contest."""
    one, many = draw(1, 5, length), draw(questions, 5, length)
    shared = {"turns": turns, "clock": clock}
    return [
        contest("k = 5, answers of 1 token", bench.reader, one, new_tokens=1, **shared),
        contest("k = 10, answers of 1 token", bench.reader, draw(1, 10, length), new_tokens=1, **shared),
        contest("k = 5, answers of 8 tokens", bench.reader, one, new_tokens=8, **shared),
        contest(f"{questions} questions, k = 5, 1 token", bench.reader, many, new_tokens=1, **shared),
        contest(f"{questions} questions, k = 5, 8 tokens", bench.reader, many, new_tokens=8, **shared),
    ]


def main() -> None:
    """Measure, and print tables."""
    parser = arguments(__doc__ or "", turns=3)
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--length", type=int, default=100, help="tokens of a chunk")
    parser.add_argument("--seed", type=int, default=1, help="of the world")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    shape, length = (TINY, 40) if given.tiny else (SMALL, given.length)
    questions = min(given.questions, 3) if given.tiny else given.questions
    bench, console = build(shape), Console()
    found = contests(bench, length=length, questions=questions, turns=given.turns, clock=given.clock)
    caption = f"{shape.layers} layers, {shape.width} wide, {given.threads} threads, chunks of {length} tokens"
    show([one.comparison for one in found], caption=caption)
    console.print(tokens_table(found))
    rounds = refinement(bench.reader, draw(1, 5, length, pool=15), 5, new_tokens=8)
    console.print("One context of 5 chunks, refined (15 candidates, answers of 8 tokens)")
    console.print(rounds_table(rounds))
    world = World(seed=given.seed, size=60) if given.tiny else World(seed=given.seed)
    pairs = compared(world, questions, 5)
    console.print(
        f"Embedded reader, {pairs.questions} questions, k = 5: {pairs.judged} of {pairs.naive} ordered pairs "
        "of answers need a judge; equal answers do not"
    )


if __name__ == "__main__":
    main()
