"""The SePer study, from a seed to its findings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from surerag import drivers
from surerag.drivers.progress import Progress
from surerag.errors import CapabilityError
from surerag.evaluation.seper.analysis import (
    CONFIDENCE,
    Record,
    ladder,
    method_rows,
    role_rows,
    scored,
    table_contexts,
)
from surerag.evaluation.seper.asking import SAMPLES, SOFT, Probe, probe
from surerag.evaluation.seper.claims import claims
from surerag.evaluation.seper.contexts import known_contexts
from surerag.evaluation.seper.entailment import Chosen, Entailment, choose
from surerag.evaluation.seper.results import Cost, Retrievers, SePerStudy
from surerag.evaluation.seper.retrievers import look_up, ranked
from surerag.evaluation.seper.sampling import SIZES, sample_rows
from surerag.methods.seper import context_prompt
from surerag.readers.protocol import Reader
from surerag.services import Encoder, Services, as_reader
from surerag.types import Passage
from surerag.world.questions import Question
from surerag.world.spec import QuestionKind
from surerag.world.world import World

Stages = Callable[[str], Progress]
"""From the name of a stage to what shall be told of its progress."""

AT_ONCE = 32
"""Questions whose prompts are read as one batch: some 300 prompts of 20 samples."""


def seper_study(
    reader: Reader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    entailment: Entailment | None = None,
    stages: Stages = lambda _: False,
) -> SePerStudy:
    """Measure ΔSePer of contexts whose worth is known, beside other measures on the same samples.

    Args:
        reader: Whose belief is measured; gives log-probabilities.
        encoder: Behind two of the retrievers.
        seed: Seed of the world, one that the reader was not trained on.
        n: Questions, single-hop and two-hop in the world's proportions.
        entailment: Who judges answers: ``"judge"``, the reader itself; ``"exact"``, the world's accepted
            forms; None, the reader if it gets at least 95 % of the pairs right that it is tried on.
        stages: Told how far each stage is.

    Raises:
        CapabilityError: If the reader has no log-probabilities: two weightings and two of the measures need
            them.
    """
    if not reader.capabilities.logprobs:
        raise CapabilityError(
            f"{reader.name} returns no log-probabilities, which this study compares measures of",
            hint="use a local model, or a server that returns them; SePer itself works without",
        )
    world = World(seed=seed)
    questions = world.questions(n, [QuestionKind.SINGLE, QuestionKind.TWO_HOP])
    chosen = choose(reader, questions, entailment)
    services = Services(reader=as_reader(reader), entailer=chosen.entailer)
    with _one_warning_not_many():
        records, known_cost = _known(world, questions, services, stages("Passages of known utility"))
        retrievers, cost = _retrieved(world, records, encoder, services, stages("Retrievers"))
    return _study(seed, reader, encoder, chosen, records, retrievers, (known_cost, cost))


def _known(
    world: World, questions: Sequence[Question], services: Services, progress: Progress
) -> tuple[list[Record], Cost]:
    contexts = [known_contexts(world, question) for question in questions]
    shown = [[(), *(context.passages for context in row)] for row in contexts]
    probes, cost = _probed("known utility", questions, shown, max(SIZES), services, progress)
    records = [
        Record(question, found.samples[0], tuple(row), found.samples[1:])
        for question, row, found in zip(questions, contexts, probes, strict=True)
    ]
    return records, cost


def _retrieved(
    world: World, records: Sequence[Record], encoder: Encoder, services: Services, progress: Progress
) -> tuple[Retrievers, Cost]:
    """Ask from what each retriever finds; what the reader says without is known already."""
    questions = [record.question for record in records]
    found = look_up(world, questions, encoder)
    shown = [list(row) for row in zip(*(one.passages for one in found), strict=True)]
    probes, cost = _probed("retrievers", questions, shown, SAMPLES, services, progress, clustered=0)
    before = [record.before for record in records]
    return ranked(found, before, [one.samples for one in probes]), cost


def _probed(
    stage: str,
    questions: Sequence[Question],
    shown: Sequence[Sequence[Sequence[Passage]]],
    n: int,
    services: Services,
    progress: Progress,
    *,
    clustered: int = SAMPLES,
) -> tuple[list[Probe], Cost]:
    start = time.perf_counter()
    programs = [
        probe(
            question.text,
            question.answers[0],
            [context_prompt(question.text, passages, SOFT) for passages in row],
            n,
            clustered=clustered,
        )
        for question, row in zip(questions, shown, strict=True)
    ]
    probes = drivers.run_many(programs, services, at_once=AT_ONCE, progress=progress)
    cost = Cost(
        stage=stage,
        prompts=sum(one.prompts for one in probes),
        samples=n * sum(one.prompts for one in probes),
        prompt_tokens=sum(one.prompt_tokens for one in probes),
        completion_tokens=sum(one.completion_tokens for one in probes),
        judged=sum(one.judged for one in probes),
        seconds=time.perf_counter() - start,
    )
    return probes, cost


def _study(
    seed: int,
    reader: Reader,
    encoder: Encoder,
    chosen: Chosen,
    records: Sequence[Record],
    retrievers: Retrievers,
    costs: tuple[Cost, ...],
) -> SePerStudy:
    two_hop = [record.question.hops == 2 for record in records]
    one_hop = [record for record in records if record.question.hops == 1]
    single = scored(one_hop)
    chains = scored([record for record in records if record.question.hops == 2])
    unknown = scored([record for record in one_hop if not record.question.taught])
    roles, rungs, sampling = role_rows(records), ladder(records), sample_rows(records, two_hop)
    return SePerStudy(
        seed=seed,
        n=len(records),
        taught=sum(record.question.taught for record in records),
        contexts=len(table_contexts(records)),
        model=reader.name,
        encoder=encoder.name,
        entailment=chosen.kind,
        judge=chosen.accuracy,
        confidence=CONFIDENCE,
        samples=SAMPLES,
        most_samples=max(SIZES),
        methods=method_rows(single, chains, unknown),
        roles=roles,
        ladder=rungs,
        sampling=sampling,
        retrievers=retrievers,
        costs=costs,
        claims=claims(single, chains, roles, rungs, sampling, retrievers),
    )


class _Once(logging.Filter):
    """Lets the first record of each message through."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        known = record.msg in self._seen
        self._seen.add(record.msg)
        return not known


@contextmanager
def _one_warning_not_many() -> Iterator[None]:
    """Say once, not for each of thousands of pairs, that a judge's reply was unclear."""
    logger, once = logging.getLogger("surerag"), _Once()
    logger.addFilter(once)
    try:
        yield
    finally:
        logger.removeFilter(once)
