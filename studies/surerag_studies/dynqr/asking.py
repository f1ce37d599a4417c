"""Ask a world's questions, each context of each question once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from surerag import Attempt, DynQROptions, drivers
from surerag.drivers.progress import Progress
from surerag.effects import Program
from surerag.errors import CapabilityError
from surerag.methods.dynqr.algorithm import Asking
from surerag.methods.dynqr.metrics import METRICS, MetricName, uncertainty_of
from surerag.methods.dynqr.rewrites import alternated, read_rewrite
from surerag.readers.protocol import Reader
from surerag.services import Retriever, Services, as_reader
from surerag.types import Passage
from surerag.world.questions import Question, is_correct
from surerag.world.world import World
from surerag_studies.dynqr.records import Attempted, Cost, Record, Rewriting

WINDOW = 128
K = 5
SAMPLES = 10
MAX_TOKENS = 32
METHOD = DynQROptions(top_n=K, n_samples=SAMPLES, max_tokens=MAX_TOKENS)
"""What the component itself is asked with, too; thresholds are applied afterwards."""

COMPARED: tuple[MetricName, ...] = tuple(metric for metric in METRICS if metric != "disagreement")
"""The paper's metrics: disagreement is none of them, and would cost samples of its own."""


def metrics_of(reader: Reader) -> tuple[MetricName, ...]:
    """Return the metrics that a reader can give, perplexity first.

    Raises:
        CapabilityError: If it gives no log-probabilities.
    """
    can = reader.capabilities
    if not can.logprobs:
        raise CapabilityError(
            f"{reader.name} returns no log-probabilities, which this study compares measures of",
            hint="use a local model (TransformersReader), or a server that returns them",
        )
    lacking: set[str] = {"token_entropy"} if can.entropy is None else set()
    lacking |= set() if can.energy else {"energy"}
    return tuple(metric for metric in COMPARED if metric not in lacking)


class Bench:
    """A world, its index, and who answers.

    Args:
        world: Whose questions are asked.
        reader: Answers and rewrites.
        index: Finds passages of the world.
    """

    def __init__(self, world: World, reader: Reader, index: Retriever) -> None:
        self.world = world
        self.index = index
        self.metrics = metrics_of(reader)
        self._services = Services(reader=as_reader(reader), retriever=index)

    def ask(self, questions: Sequence[Question], progress: Progress) -> list[Record]:
        """Record every answer to each question, in merged batches."""
        programs = [self._recorded(question) for question in questions]
        return drivers.run_many(programs, self._services, window=WINDOW, progress=progress)

    def _recorded(self, question: Question) -> Program[Record]:
        # Its own account of costs is not read: here, each answer is counted where it is used.
        asking = Asking(question.text, METHOD)
        found = yield from asking.retrieve(question.text)
        [reply] = yield from asking.rewrite()
        rewrite = read_rewrite(reply, question.text, METHOD.rewrite_words)
        contexts: dict[str, Sequence[Passage]] = {"original": found}
        rewriting: Rewriting = "unusable"
        if rewrite.trouble is None:
            rewriting = "same passages"
            again = yield from asking.retrieve(rewrite.text)
            both = alternated(found, again, K)
            for name, passages in (("substitute", again), ("expand", both)):
                if passages and asking.prompt(passages) != asking.prompt(found):
                    contexts[name] = passages
                    rewriting = "rewritten"
        attempts = yield from self._answered(question, contexts, sampled=True)
        others: dict[str, Sequence[Passage]] = {"direct": ()}
        golden = with_gold(
            found, [self.world.passage[place] for place in question.gold_passages], question.id
        )
        if golden is not None:
            others["golden"] = golden
        attempts |= yield from self._answered(question, others, sampled=False)
        return Record(
            id=question.id,
            kind=str(question.kind),
            question=question.text,
            rewrite=rewrite.text if rewrite.trouble is None else "",
            rewriting=rewriting,
            writing=Cost(0, 1, reply.prompt_tokens, reply.completion_tokens),
            direct=attempts["direct"],
            original=attempts["original"],
            substitute=attempts.get("substitute"),
            expand=attempts.get("expand"),
            golden=attempts.get("golden"),
        )

    def _answered(
        self, question: Question, contexts: Mapping[str, Sequence[Passage]], *, sampled: bool
    ) -> Program[dict[str, Attempted]]:
        """Answer from each context; where samples are drawn, they are for length-normalised entropy."""
        metric: MetricName = "ln_entropy" if sampled else "perplexity"
        asking = Asking(question.text, METHOD.with_options(metric=metric))
        attempts = yield from asking.answer(contexts)
        return {
            name: self._judged(question, attempt, metric)
            for name, attempt in zip(contexts, attempts, strict=True)
        }

    def _judged(self, question: Question, attempt: Attempt, known: MetricName) -> Attempted:
        said = attempt.generation
        shown = {passage.id for passage in attempt.passages}
        return Attempted(
            answer=said.text,
            correct=is_correct(question, said.text),
            gold=sum(place in shown for place in question.gold_passages) / len(question.gold_passages),
            uncertainty={
                metric: attempt.uncertainty if metric == known else uncertainty_of(metric, said)
                for metric in self.metrics
                if metric == known or metric != "ln_entropy"
            },
            cost=Cost(0, 1, said.prompt_tokens, said.completion_tokens),
        )


def with_gold(found: Sequence[Passage], gold: Sequence[Passage], name: str) -> list[Passage] | None:
    """Replace one passage, drawn at random, by a gold one that is missing (the paper's Figure 3).

    Args:
        found: What was retrieved.
        gold: The gold passages.
        name: Seeds the draw.

    Returns:
        The passages, or None if no gold passage is missing, or there is none to replace.

    Example:
        >>> a, b, g = (Passage(text, id=text) for text in "abg")
        >>> sorted(passage.id for passage in with_gold([a, b], [g], "q") or ())[-1]
        'g'
        >>> with_gold([a, g], [g], "q") is None
        True
    """
    shown = {passage.id for passage in found}
    missing = [passage for passage in gold if passage.id not in shown]
    if not missing or not found:
        return None
    rng = random.Random(f"surerag dynqr gold {name}")
    changed = list(found)
    changed[rng.randrange(len(changed))] = rng.choice(missing)
    return changed
