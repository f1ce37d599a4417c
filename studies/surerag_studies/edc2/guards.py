"""How EDC²-RAG's guards judge what a compression says: true things in other words, and things no source says.

A guard that removes a true sentence costs an answer, one that keeps a false one lets a wrong answer through.
Both are measured on the world's own paraphrases, where it is known which is which: a fact of a passage is
said again in the passage's words, in other words, and with the entity called by its kind ("The city"); and
it is said with another value, of another entity, and denied; and another fact of the same entity is told, of
which the passage says nothing: what a reader tends to do that is asked about somebody who is only mentioned.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from surerag.entailment import JudgeEntailer
from surerag.entailment.labels import ENTAILMENT
from surerag.evaluation.formatting import percent_with_interval, plain_table
from surerag.evaluation.statistics import Proportion, share
from surerag.methods.edc2.guards import is_instruction, names_in, overlap_support
from surerag.readers.protocol import Reader
from surerag.types import Pair
from surerag.world import language as say
from surerag.world.hazards import another
from surerag.world.language import Fact
from surerag.world.lexicon import kind_of
from surerag.world.world import World
from surerag_studies.transfer import carrying

Said = Literal[
    "in its words",
    "in other words",
    "called by kind",
    "another value",
    "another entity",
    "another fact",
    "denied",
]

TRUE: tuple[Said, ...] = ("in its words", "in other words", "called by kind")
FALSE: tuple[Said, ...] = ("another value", "another entity", "another fact", "denied")
SHARES = (0.05, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8)
"""Shares of content words from which overlap supports a sentence."""


@dataclass(frozen=True, slots=True)
class Case:
    """A sentence and a passage.

    Attributes:
        said: What was done to the fact.
        sentence: The claim.
        source: The passage that tells the fact.
        asked: The question that the sentence answers; it is asked of passages that tell of others, too.
    """

    said: Said
    sentence: str
    source: str
    asked: str


@dataclass(frozen=True, slots=True)
class GuardFigures:
    """One guard.

    Attributes:
        guard: Its name, with its threshold.
        kept: Share of sentences kept, by what was done to the fact.
        true_kept: Of all that the source says.
        false_kept: Of all that it does not say.
    """

    guard: str
    kept: dict[str, Proportion]
    true_kept: Proportion
    false_kept: Proportion

    @property
    def balanced(self) -> float:
        """Mean of true sentences kept and false ones removed."""
        return (self.true_kept.value + 1 - self.false_kept.value) / 2


@dataclass(frozen=True, slots=True)
class GuardStudy:
    """Every figure of the study."""

    seed: int
    n: int
    judge: str
    guards: tuple[GuardFigures, ...]


def guard_study(reader: Reader, *, seed: int, n: int) -> GuardStudy:
    """Let every guard judge sentences of known truth.

    Args:
        reader: Judges entailment in words, for the guard that asks an entailer. The embedded reader was
            taught to judge short answers, not passages.
        seed: Of the world.
        n: Facts, each said in seven ways.
    """
    cases = draw_cases(seed, n)
    judged = JudgeEntailer(reader).entail([Pair(case.source, case.sentence) for case in cases])
    kept = {
        "off": [True] * len(cases),
        **{f"overlap {bar:g}": _overlap(cases, bar) for bar in SHARES},
        "entailment 0.6": [bool(row[ENTAILMENT] >= 0.6) for row in judged],
    }
    return GuardStudy(seed, n, reader.name, tuple(_figures(name, cases, row) for name, row in kept.items()))


def draw_cases(seed: int, n: int) -> list[Case]:
    """Say facts of a world's passages truly and falsely."""
    world, rng = World(seed=seed), random.Random(f"surerag guards {seed}")
    passages = [passage for passage in world.passages if world.contexts.facts_of(passage)]
    cases: list[Case] = []
    for passage in rng.sample(passages, min(n, len(passages))):
        fact = rng.choice(world.contexts.facts_of(passage))
        found = say.statements(fact.relation)
        forms = [*found.trained, *found.held_out]
        own = next((form for form in forms if _stands(fact, form, passage.text)), forms[0])
        other = rng.choice([form for form in forms if form != own] or forms)
        stranger = rng.choice([one for one in world.facts if one.entity != fact.entity]).entity
        told = {(known.entity, known.relation) for known in world.contexts.facts_of(passage)}
        untold = [
            known
            for known in world.facts
            if known.entity == fact.entity and (known.entity, known.relation) not in told
        ]
        sentence = say.state(fact, other)
        claims: tuple[tuple[Said, str, str], ...] = (
            ("in its words", say.state(fact, own), fact.entity),
            ("in other words", sentence, fact.entity),
            ("called by kind", _by_kind(sentence, fact), fact.entity),
            ("another value", say.state(another(fact, rng), other), fact.entity),
            ("another entity", say.state(replace(fact, entity=stranger), other), stranger),
            ("another fact", _said(rng.choice(untold), rng), fact.entity),
            ("denied", f"It is not so that {say.lower_first(say.state(fact, own))}", fact.entity),
        )
        cases += [Case(said, claim, passage.text, f"What of {asked}?") for said, claim, asked in claims]
    return cases


def _stands(fact: Fact, form: str, text: str) -> bool:
    stated = say.state(fact, form)
    return stated in text or say.lower_first(stated) in text


def _said(fact: Fact, rng: random.Random) -> str:
    found = say.statements(fact.relation)
    return say.state(fact, rng.choice([*found.trained, *found.held_out]))


def _by_kind(sentence: str, fact: Fact) -> str:
    """Call an entity by its kind, as a compression does that has named it before."""
    named = str(kind_of().get(fact.entity.lower(), "one"))
    called = sentence.replace(fact.entity, f"the {named.split('.')[-1].lower()}")
    return called[:1].upper() + called[1:]


def _overlap(cases: Sequence[Case], bar: float) -> list[bool]:
    return [
        overlap_support(case.sentence, case.source, names_in(case.asked)) >= bar
        and not is_instruction(case.sentence, "")
        for case in cases
    ]


def _figures(name: str, cases: Sequence[Case], kept: Sequence[bool]) -> GuardFigures:
    def of(*wanted: Said) -> Proportion:
        return share([row for case, row in zip(cases, kept, strict=True) if case.said in wanted])

    return GuardFigures(name, {said: of(said) for said in (*TRUE, *FALSE)}, of(*TRUE), of(*FALSE))


def study_tables(study: GuardStudy) -> RenderableType:
    """Return the study's table."""
    heading = Text.assemble(
        ("EDC²-RAG's guards on the closed world", "bold"),
        f", seed {study.seed}, n = {study.n:,} facts; judge {study.judge}\n",
        "Share of sentences kept, %. The first three are so, the others are not.",
    )
    table = plain_table("What guards keep", padding=(0, 1, 0, 0))
    table.add_column("Guard", no_wrap=True)
    for said in (*TRUE, *FALSE):
        table.add_column(said, justify="right")
    table.add_column("So", justify="right")
    table.add_column("Not so", justify="right")
    for row in study.guards:
        table.add_row(
            row.guard,
            *(f"{100 * row.kept[said].value:.0f}" for said in (*TRUE, *FALSE)),
            percent_with_interval(row.true_kept),
            percent_with_interval(row.false_kept),
        )
    return Group(heading, carrying(table, "the order of the guards by overlap"))
