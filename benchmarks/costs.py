"""What each method costs a question: calls, tokens, searches, time; and where a gate breaks even.

Run ``python -m benchmarks.costs``. One question of the closed world after the other is asked of the embedded
reader, plainly and through each method with its defaults, over the same index. Calls, tokens and searches are
those that the results tell. Calls of the reader and questions to an entailer count alike: a judge asks a
reader, too.

Counts of calls carry over to a real reader as far as its answers are as certain; tokens as far as its
passages are as long; times do not. What a gate has to save is arithmetic on these, printed below the table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from surerag import (
    ClusterCompressor,
    DenseRefiner,
    DenseEvaluator,
    LazyRAG,
    Passage,
    SePer,
    SePerOptions,
    UncertaintyRewriter,
)
from surerag.encoders import packaged_minilm
from surerag.entailment import ExactEntailer
from surerag.measures import break_even_latency
from surerag.readers.protocol import Reader
from surerag.services import Encoder
from world import Question, World, embedded_reader
from world.tiers import Tiers, index_world

WIDTH = 100
"""Of what is printed, wherever that goes."""


@dataclass(frozen=True)
class Cost:
    """What one question cost, or the mean over many.

    Attributes:
        calls: Answers or judgements asked of a model.
        read: Tokens of their prompts.
        written: Tokens that came back.
        searches: How often the retriever was asked.
        seconds: From question to result, on this machine.
    """

    calls: float
    read: float
    written: float
    searches: float
    seconds: float


@dataclass(frozen=True)
class Row:
    """A method, and its cost, in words and figures.

    Attributes:
        method: Its name.
        counted: What the figures hold: a whole pipeline, or what is added to one.
        cost: For each question, on average.
    """

    method: str
    counted: str
    cost: Cost


class Trial:
    """All methods over one world.

    Args:
        reader: Who answers.
        encoder: Behind both indices, and the compressor's clusters.
        world: What is asked about.
        n: Questions.
        k: Passages for each.
        clock: Counts the seconds.
    """

    def __init__(
        self, reader: Reader, encoder: Encoder, world: World, n: int, k: int, clock: Callable[[], float]
    ) -> None:
        self.reader, self.encoder, self.k, self.clock = reader, encoder, k, clock
        self.questions: Sequence[Question] = world.questions(n)
        self.tiers: Tiers = index_world(world, encoder)
        self.rag = LazyRAG(reader, self.tiers.passages, self.tiers.summaries, top_n=k)

    def rows(self) -> list[Row]:
        """Ask everything, one after the other, and return the mean costs."""
        asked: list[tuple[str, str, Callable[[Question], Cost]]] = [
            ("plain RAG", "the whole pipeline", self.plain),
            ("L-RAG", "the whole pipeline", self.lazy),
            ("DynQR", "the whole pipeline", self.rewriting),
            ("EDC²-RAG", "besides the answer", self.compressing),
            ("DENSE, the measure", "besides the answer", self.dense),
            ("DENSE-RAG, refining", "besides the answer", self.refining),
            ("ΔSePer", "an evaluation", self.seper),
        ]
        for _, _, ask in asked:  # what is loaded or compiled at first use is not counted
            ask(self.questions[0])
        return [
            Row(name, counted, _mean([ask(one) for one in self.questions])) for name, counted, ask in asked
        ]

    def plain(self, question: Question) -> Cost:
        """Retrieve, and answer."""
        return self._gated(self.rag.with_options(mode="standard"), question)

    def lazy(self, question: Question) -> Cost:
        """Answer from summaries; retrieve if unsure."""
        return self._gated(self.rag, question)

    def rewriting(self, question: Question) -> Cost:
        """Retrieve and answer; ask in other words if unsure."""
        rewriter = UncertaintyRewriter(self.reader, self.tiers.passages, top_n=self.k)
        began = self.clock()
        costs = rewriter.run(question.text).costs
        spent = self.clock() - began
        return Cost(costs.calls, costs.prompt_tokens, costs.completion_tokens, costs.retrievals, spent)

    def compressing(self, question: Question) -> Cost:
        """Compress what was retrieved."""
        found = self._found(question)
        began = self.clock()
        result = ClusterCompressor(self.reader, self.encoder).run(question.text, found)
        spent = self.clock() - began
        return Cost(result.calls, result.prompt_tokens, result.completion_tokens, 0, spent)

    def dense(self, question: Question) -> Cost:
        """Measure whether the context was understood; its answer is one that a pipeline needs anyway."""
        found = self._found(question)
        began = self.clock()
        calls = DenseEvaluator(self.reader).run(question.text, found).calls
        spent = self.clock() - began
        return Cost(calls.total - 1, calls.prompt_tokens, calls.completion_tokens, 0, spent)

    def refining(self, question: Question) -> Cost:
        """Refine what was retrieved."""
        found = self._found(question)
        began = self.clock()
        calls = (
            DenseRefiner(self.reader, encoder=self.encoder, top_n=self.k).run(question.text, found).calls
        )
        spent = self.clock() - began
        return Cost(calls.total, calls.prompt_tokens, calls.completion_tokens, 0, spent)

    def seper(self, question: Question) -> Cost:
        """Measure what retrieval was worth, given the answer that is right; no judge is asked."""
        found = self._found(question)
        began = self.clock()
        result = SePer(self.reader, ExactEntailer()).run(question.text, question.answers, found)
        spent = self.clock() - began
        read = result.before.prompt_tokens + result.after.prompt_tokens
        return Cost(result.calls * SePerOptions().n_samples, read, result.tokens - read, 0, spent)

    def _gated(self, rag: LazyRAG, question: Question) -> Cost:
        began = self.clock()
        result = rag.run(question.text)
        spent = self.clock() - began
        return Cost(result.calls, result.prompt_tokens, result.completion_tokens, result.retrievals, spent)

    def search(self) -> float:
        """Return the seconds that one search takes, on average."""
        began = self.clock()
        for question in self.questions:
            self._found(question)
        return (self.clock() - began) / len(self.questions)

    def _found(self, question: Question) -> list[Passage]:
        return self.tiers.passages.retrieve(question.text, self.k)


def _mean(costs: Sequence[Cost]) -> Cost:
    names = asdict(costs[0])
    return Cost(**{name: fmean(getattr(cost, name) for cost in costs) for name in names})


def table(rows: Sequence[Row], title: str) -> Table:
    """Return the costs as a table."""
    shown = Table("Method", "counted", title=title, title_justify="left")
    for head in ("calls", "tokens read", "written", "searches", "ms"):
        shown.add_column(head, justify="right")
    for method, counted, cost in ((row.method, row.counted, row.cost) for row in rows):
        shown.add_row(
            method,
            counted,
            f"{cost.calls:.2f}",
            f"{cost.read:.0f}",
            f"{cost.written:.0f}",
            f"{cost.searches:.2f}",
            f"{1000 * cost.seconds:.0f}",
        )
    return shown


def break_even(rows: Sequence[Row], search: float) -> str:
    """Say what a search has to cost for a gate to pay, in time and in tokens.

    What the gated pipeline takes beyond the plain one, searches left out, is bought back by the searches that
    it saves.

    Args:
        rows: The costs of both.
        search: Seconds of one search, which are in them.
    """
    costs = {row.method: row.cost for row in rows}
    plain, lazy = costs["plain RAG"], costs["L-RAG"]
    rate = min(1.0, lazy.searches)
    gate = 1000 * ((lazy.seconds - lazy.searches * search) - (plain.seconds - plain.searches * search))
    ms = break_even_latency(rate, max(gate, 0.0))
    tokens = break_even_latency(rate, max(lazy.read - plain.read, 0.0))
    return (
        f"L-RAG retrieves for {100 * rate:.0f} % of the questions. Without the searches it takes "
        f"{gate:+.0f} ms and reads {lazy.read - plain.read:+.0f} tokens a question against plain RAG. "
        f"It saves time where a search takes more than {ms:.0f} ms (here: {1000 * search:.1f}), and "
        f"tokens where one costs more than {tokens:.0f} tokens."
    )


def main() -> None:
    """Ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=4003, help="of the world")
    parser.add_argument("--questions", "-n", type=int, default=200)
    parser.add_argument("--passages", "-k", type=int, default=5, help="that a question retrieves")
    parser.add_argument(
        "--cpu-time",
        dest="clock",
        action="store_const",
        const=time.process_time,
        default=time.perf_counter,
        help="count the processor's seconds, not the clock's: for busy machines, with one thread",
    )
    parser.add_argument("--json", type=Path, help="where every figure is written to")
    given = parser.parse_args()
    trial = Trial(
        embedded_reader(),
        packaged_minilm(),
        World(seed=given.seed),
        given.questions,
        given.passages,
        given.clock,
    )
    rows = trial.rows()
    title = f"A question's cost: seed {given.seed}, n = {given.questions}, k = {given.passages}"
    console = Console(width=WIDTH)
    console.print(table(rows, title))
    console.print(break_even(rows, trial.search()))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
