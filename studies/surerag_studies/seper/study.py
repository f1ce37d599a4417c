"""The SePer study, from a seed to its findings and claims."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from surerag import drivers
from surerag.drivers.progress import Progress, Stages
from surerag.errors import CapabilityError
from surerag.evaluation.formatting import percent
from surerag.evaluation.rivals import TokenEncoder
from surerag.methods.seper.algorithm import context_prompt
from surerag.readers.protocol import Reader
from surerag.services import Encoder, Services, as_reader
from surerag.types import Passage
from surerag.world.questions import Question
from surerag.world.regimes import TODAY, Regime
from surerag.world.spec import QuestionKind
from surerag.world.world import World
from surerag_studies.claims import Claim
from surerag_studies.formatting import interval
from surerag_studies.judging import Chosen, Entailment, choose
from surerag_studies.seper.analysis import (
    CONFIDENCE,
    SIZES,
    TWO_HOP,
    Record,
    Scored,
    ladder,
    method_rows,
    ranked,
    rivals,
    role_rows,
    sample_rows,
    scored,
    table_contexts,
)
from surerag_studies.seper.asking import (
    BASELINES,
    HARD_DEFAULT,
    OURS,
    SAMPLES,
    SOFT,
    SOFT_DEFAULT,
    Measure,
    Probe,
    bert_measure,
    probe,
)
from surerag_studies.seper.contexts import Role, known_contexts, look_up
from surerag_studies.seper.rating import rated
from surerag_studies.seper.results import Cost, Followed, Retrievers, RoleRow, Rung, SampleRow, SePerStudy
from surerag_studies.worlds import world_of

AT_ONCE = 32
"""Questions whose prompts are read as one batch: some 300 prompts of 20 samples."""

NEAR_ZERO = 0.1
"""Property 2: the whole interval of the mean ΔSePer lies within this of 0."""

NOT_WORSE = 0.01
"""Correlation by which the soft kernel may fall behind the hard one."""

ENOUGH = 0.99
"""Section 4.2: ten samples within 1 % of twenty."""


def seper_study(
    reader: Reader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    entailment: Entailment | None = None,
    regime: Regime = TODAY,
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
        regime: What misleads in the world; by default nothing does.
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
    world = world_of(regime, n, seed)
    questions = world.questions(n, [QuestionKind.SINGLE, QuestionKind.TWO_HOP])
    chosen = choose(reader, questions, entailment)
    services = Services(reader=as_reader(reader), entailer=chosen.entailer)
    with _one_warning_not_many():
        records, known_cost = _known(world, questions, services, stages("Passages of known utility"))
        records, followed = rated(records, reader)
        retrievers, cost = _retrieved(world, records, encoder, services, stages("Retrievers"))
    return _study(seed, regime, reader, encoder, chosen, records, followed, retrievers, (known_cost, cost))


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
    probes = drivers.run_many(programs, services, window=AT_ONCE, progress=progress)
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
    regime: Regime,
    reader: Reader,
    encoder: Encoder,
    chosen: Chosen,
    records: Sequence[Record],
    followed: Followed,
    retrievers: Retrievers,
    costs: tuple[Cost, ...],
) -> SePerStudy:
    two_hop = [record.question.hops == 2 for record in records]
    one_hop = [record for record in records if record.question.hops == 1]
    measures = _measures(encoder, records)
    single = scored(one_hop, measures)
    chains = scored([record for record in records if record.question.hops == 2], measures)
    unknown = scored([record for record in one_hop if not record.question.taught], measures)
    roles, rungs, sampling = role_rows(records), ladder(records), sample_rows(records, two_hop)
    return SePerStudy(
        seed=seed,
        regime=regime.name,
        n=len(records),
        taught=sum(record.question.taught for record in records),
        contexts=len(table_contexts(records)),
        model=reader.name,
        encoder=encoder.name,
        entailment=chosen.kind,
        judge=chosen.accuracy,
        followed=followed,
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


def _measures(encoder: Encoder, records: Sequence[Record]) -> tuple[Measure, ...]:
    """Return what Table 2 compares; BERTScore where the encoder gives vectors of tokens."""
    if not isinstance(encoder, TokenEncoder):
        return (*BASELINES, *OURS)
    golds = [record.question.answers[0] for record in records]
    samples = (one for record in records for one in (record.before, *record.after))
    answers = (text for one in samples for text in one.texts[:SAMPLES])
    return (*BASELINES, bert_measure(encoder, [*golds, *answers]), *OURS)


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


def claims(
    single: Scored,
    two_hop: Scored,
    roles: Sequence[RoleRow],
    ladder: Sequence[Rung],
    sampling: Sequence[SampleRow],
    retrievers: Retrievers,
) -> tuple[Claim, ...]:
    """Judge every claim that there are data for."""
    both = [
        (name, some) for name, some in (("single-hop", single), (TWO_HOP, two_hop)) if len(some.utilities) > 1
    ]
    return (
        *(_best(name, some) for name, some in both),
        *(_soft(name, some) for name, some in both),
        *_near_zero(roles),
        *_rises(ladder),
        *_partial(roles),
        *_enough(sampling),
        Claim(
            f"Mean ΔSePer ranks {len(retrievers.rows)} retrievers as their recall at {retrievers.k} does",
            f"Spearman {interval(retrievers.rank, 2)}",
            retrievers.rank.low > 0,
        ),
    )


def _best(name: str, some: Scored) -> Claim:
    known = {label: value for label in rivals(some) if math.isfinite(value := some.estimate(label).value)}
    statement = f"ΔSePer correlates better than all that it is compared with, {name}"
    if not known:
        return Claim(statement, "nothing to compare with: every other measure is constant", holds=False)
    other = max(known, key=known.__getitem__)
    gap = some.gap(SOFT_DEFAULT, other)
    return Claim(statement, f"{interval(gap, sign='+')} to {other}", gap.low > 0)


def _soft(name: str, some: Scored) -> Claim:
    gap = some.gap(SOFT_DEFAULT, HARD_DEFAULT)
    return Claim(
        f"The soft kernel is at least as good as the hard one, {name}",
        f"{interval(gap, sign='+')}",
        gap.low > -NOT_WORSE,
    )


def _near_zero(roles: Sequence[RoleRow]) -> list[Claim]:
    wanted = {Role.IRRELEVANT.value: "Irrelevant passages", Role.KNOWN.value: "Passages known by heart"}
    return [
        Claim(
            f"{wanted[row.role]} are worth about 0, {row.questions} questions (Property 2)",
            interval(row.delta, sign="+"),
            max(abs(row.delta.low), abs(row.delta.high)) <= NEAR_ZERO,
        )
        for row in roles
        if row.role in wanted
    ]


def _rises(ladder: Sequence[Rung]) -> list[Claim]:
    found = []
    for group in dict.fromkeys(rung.questions for rung in ladder):
        rungs = [rung for rung in ladder if rung.questions == group]
        steps = [(b, b.rise) for a, b in pairwise(rungs) if b.utility > a.utility and b.rise is not None]
        found.append(
            Claim(
                f"Every step that adds relevance raises ΔSePer, {group} (Property 3)",
                "; ".join(f"{b.added.removeprefix('+ ')} {interval(rise, 2, '+')}" for b, rise in steps),
                all(rise.low > 0 for _, rise in steps),
            )
        )
    return found


def _partial(roles: Sequence[RoleRow]) -> list[Claim]:
    of = {row.role: row.delta for row in roles if row.questions == TWO_HOP}
    whole = of.get(Role.BOTH_HALVES.value)
    return [
        Claim(
            f"The {role.value} of a chain is worth something, and less than the whole (Table 7)",
            f"{interval(of[role.value], 2, '+')}, whole {interval(whole, 2, '+')}",
            of[role.value].low > 0 and of[role.value].high < whole.low,
        )
        for role in (Role.FIRST_HALF, Role.SECOND_HALF)
        if whole is not None and role.value in of
    ]


def _enough(sampling: Sequence[SampleRow]) -> list[Claim]:
    at = {row.n: row for row in sampling if row.kernel == "soft"}
    if not {10, 20} <= at.keys():
        return []
    shares = [
        getattr(at[10], side).mean / whole
        for side in ("single", "two_hop")
        if (whole := getattr(at[20], side).mean) > 0
    ]
    return [
        Claim(
            f"Ten samples correlate at least {percent(ENOUGH, 0)} as well as twenty (Figure 3)",
            ", ".join(percent(share) for share in shares) or "n/a",
            bool(shares) and min(shares) >= ENOUGH,
        )
    ]
