"""The closed world: articles, questions and ground truth, all derived from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Literal, NamedTuple

from studies.world import language as say
from studies.world.articles import Document, write_article
from studies.world.contexts import Contexts
from studies.world.core import core_facts
from studies.world.language import Fact
from studies.world.lexicon import ENTITY_KINDS, Kind, core_entities, fresh_entities, nicknames, words
from studies.world.questions import Question
from studies.world.relations import RELATIONS, relations_of, two_hop_pairs
from studies.world.spec import DEFAULT_SIZE, SPEC, Cell, QuestionKind, Source, WorldSpec
from surerag.errors import ConfigurationError
from surerag.messages import Passage

Phrasing = Literal["all", "trained", "held-out"]


class _Chain(NamedTuple):
    first: Fact
    second: Fact


class World:
    """A generated corpus with exact ground truth.

    Two worlds of one seed, size and spec are equal to the byte, in any process. The taught core is the
    same in every world; everything else is drawn anew for each seed.

    Args:
        seed: Seed of everything that is not core.
        size: Number of articles besides those of the core; 440 give at least 4,000 questions.
        spec: Proportions.

    Raises:
        ConfigurationError: If the size is too small for questions of every kind, or too large for the
            lexicon.

    Example:
        >>> world = World(seed=7, size=60)
        >>> question = world.questions(20)[0]
        >>> world.is_told(question)
        True
    """

    def __init__(self, seed: int = 0, size: int = DEFAULT_SIZE, spec: WorldSpec = SPEC) -> None:
        most = min(int(len(fresh_entities(kind)) / share) for kind, share in spec.kinds.items())
        if not 40 <= size <= most:
            raise ConfigurationError(
                f"a world has 40 to {most} fresh articles, not {size}",
                hint=f"choose a size between 40 and {most}; {DEFAULT_SIZE} is the default",
            )
        self.seed, self.size, self.spec = seed, size, spec
        rng = random.Random(f"surerag.world {seed} {size}")
        self._entities = {kind: _choose(kind, round(size * spec.kinds[kind]), rng) for kind in ENTITY_KINDS}
        self._facts = self._draw_facts(rng)
        self._untold = frozenset(
            key
            for key, fact in self._facts.items()
            if not fact.relation.in_lead and rng.random() < spec.untold
        )
        documents: list[Document] = []
        self._places: dict[Fact, str] = {}
        for kind in ENTITY_KINDS:
            for entity in (*core_entities(kind), *self._entities[kind]):
                document, places = write_article(entity, self._told(entity, kind), rng)
                documents.append(document)
                self._places.update(places)
        rng.shuffle(documents)
        self._documents = tuple(documents)

    def __repr__(self) -> str:
        return f"World(seed={self.seed}, size={self.size})"

    @property
    def documents(self) -> tuple[Document, ...]:
        """All articles, those of the core among them, in a fixed random order."""
        return self._documents

    @cached_property
    def passages(self) -> tuple[Passage, ...]:
        """All passages of all articles, leads included."""
        return tuple(passage for document in self._documents for passage in document.passages)

    @cached_property
    def passage(self) -> Mapping[str, Passage]:
        """Passages by id."""
        return MappingProxyType({passage.id: passage for passage in self.passages})

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """Every fact that an article tells."""
        return tuple(self._places)

    @cached_property
    def contexts(self) -> Contexts:
        """Contexts of known composition for the questions of this world."""
        return Contexts(self.seed, self.passage, self._places)

    def context(
        self,
        question: Question,
        k: int = 5,
        *,
        noise: float = 0.5,
        redundancy: float = 0.0,
        stale: bool = False,
    ) -> tuple[Passage, ...]:
        """Return k passages that hold the answer, in random order; see `Contexts.draw`."""
        return self.contexts.draw(question, k, noise=noise, redundancy=redundancy, stale=stale)

    def is_told(self, question: Question) -> bool:
        """Tell whether some article answers a question."""
        return bool(question.gold_passages)

    def questions(
        self,
        n: int,
        kinds: Iterable[QuestionKind | str] | None = None,
        *,
        sources: Iterable[Source | str] | None = None,
        phrasing: Phrasing = "all",
    ) -> tuple[Question, ...]:
        """Return distinct questions in the proportions of the spec.

        Args:
            n: How many.
            kinds: Only these kinds, in their proportions; unanswerable ones come only if asked for.
            sources: Only from these sources, in their proportions.
            phrasing: Which question templates to use: all, or only those that the embedded reader was
                (not) trained on. Colloquial wordings have no held-out part.

        Returns:
            The questions; the same for the same arguments.

        Raises:
            ConfigurationError: If this world has fewer questions of some kind.
        """
        wanted = (
            set(QuestionKind) - {QuestionKind.UNANSWERABLE}
            if kinds is None
            else set(map(QuestionKind, kinds))
        )
        places = set(Source) if sources is None else set(map(Source, sources))
        mix = {c: share for c, share in self.spec.mix.items() if c.kind in wanted and c.source in places}
        if QuestionKind.UNANSWERABLE in wanted:
            mix[Cell(QuestionKind.UNANSWERABLE, Source.NOWHERE)] = (
                0.25  # beside the rest, if that is asked for
            )
        if n < 0 or not mix:
            raise ConfigurationError(
                f"cannot draw {n} questions of kinds {sorted(wanted)}", hint="name a kind"
            )
        found: list[Question] = []
        seen: set[str] = set()
        for cell, count in _quotas(mix, n).items():
            rng = random.Random(
                f"surerag.world questions {self.seed} {self.size} {cell.kind} {cell.source} {phrasing}"
            )
            found.extend(self._take(cell, count, phrasing, rng, seen))
        random.Random(f"surerag.world order {self.seed} {n}").shuffle(found)
        return tuple(found)

    def _take(
        self, cell: Cell, count: int, phrasing: Phrasing, rng: random.Random, seen: set[str]
    ) -> list[Question]:
        taken: list[Question] = []
        for question in self._questions_of(cell, phrasing, rng):
            if len(taken) == count:
                break
            if question.text not in seen:
                seen.add(question.text)
                taken.append(question)
        if len(taken) < count:
            raise ConfigurationError(
                f"{self!r} has {len(taken)} {cell.kind} questions of source {cell.source}, not {count}",
                hint="ask for fewer questions, or build a larger world",
            )
        return taken

    def _questions_of(self, cell: Cell, phrasing: Phrasing, rng: random.Random) -> Iterator[Question]:
        """Yield a cell's questions: every fact once, then every fact in another phrasing, and so on."""
        if cell.kind is QuestionKind.TWO_HOP:
            chains = self._chains()
            rng.shuffle(chains)
            for turn in range(4):
                for chain in chains:
                    yield self._two_hop(chain, turn, phrasing, rng)
            return
        facts = self._facts_of(cell)
        rng.shuffle(facts)
        named = nicknames()
        forms: list[tuple[Fact, list[str]]] = []
        for fact in facts:
            vague = cell.kind is QuestionKind.UNDER_SPECIFIED
            templates = list(fact.relation.vague) if vague else list(_templates(fact, phrasing))
            rng.shuffle(templates)
            forms.append((fact, templates))
        for turn in range(max((len(templates) for _, templates in forms), default=0)):
            for fact, templates in forms:
                if turn < len(templates):
                    text = (
                        templates[turn].replace("{n}", named.get(fact.entity, "")).replace("{e}", fact.entity)
                    )
                    yield self._single(cell, fact, text, turn)

    def _facts_of(self, cell: Cell) -> list[Fact]:
        if cell.source is Source.NOWHERE:
            return [self._facts[key] for key in self._facts if key in self._untold]
        facts = [fact for fact in self._places if self._source(fact) is cell.source]
        if cell.kind is QuestionKind.UNDER_SPECIFIED:
            facts = [fact for fact in facts if fact.entity in nicknames()]
        return facts

    def _source(self, fact: Fact) -> Source:
        """Return the nearest place of a fact that an article tells, for a reader that knows the core."""
        if (fact.entity, fact.relation.name) in core_facts():
            return Source.CORE
        return Source.LEAD if fact.relation.in_lead else Source.DEEP

    def _single(self, cell: Cell, fact: Fact, text: str, turn: int) -> Question:
        place = self._places.get(fact)
        taught = cell.source is Source.CORE
        vague = cell.kind is QuestionKind.UNDER_SPECIFIED
        telling = (place,) if place else ()
        return Question(
            id=f"{cell.kind}/{fact.entity.lower()}/{fact.relation.name}/{turn}".replace(" ", "-"),
            text=text,
            answers=say.aliases(fact) if place else (),
            kind=cell.kind,
            source=cell.source,
            gold_passages=(place,) if place else (),
            utilities=MappingProxyType(dict.fromkeys(telling, 0.0 if taught else 1.0)),
            taught=taught,
            rewrite=say.canonical_question(fact.relation, fact.entity) if vague else None,
            hops=1,
            entity=fact.entity,
            value_kind=fact.relation.value,
        )

    def _chains(self) -> list[_Chain]:
        """Return pairs of fresh facts of which at least one is told in a deeper passage only."""
        chains = []
        for inner, outer in two_hop_pairs():
            if inner.in_lead and outer.in_lead:
                continue
            for entity in self._entities[inner.subject]:
                first = self._facts[entity, inner.name]
                second = self._facts.get((first.value, outer.name))
                told = first in self._places and second in self._places
                if second is None or not told:
                    continue
                if second.value != entity:
                    chains.append(_Chain(first, second))
        return chains

    def _two_hop(self, chain: _Chain, turn: int, phrasing: Phrasing, rng: random.Random) -> Question:
        first, second = chain
        template = rng.choice(_templates(second, phrasing))
        places = (self._places[first], self._places[second])
        text = say.two_hop_question(second.relation, first.relation, first.entity, template, rng)
        route = f"{first.entity.lower()}/{first.relation.name}/{second.relation.name}"
        return Question(
            id=f"{QuestionKind.TWO_HOP}/{route}/{turn}".replace(" ", "-"),
            text=text,
            answers=say.aliases(second),
            kind=QuestionKind.TWO_HOP,
            source=Source.DEEP,
            gold_passages=places,
            utilities=MappingProxyType(dict.fromkeys(places, 0.5)),
            taught=False,
            rewrite=None,
            hops=2,
            entity=first.entity,
            value_kind=second.relation.value,
        )

    def _told(self, entity: str, kind: Kind) -> list[Fact]:
        keys = [(entity, relation.name) for relation in relations_of(kind)]
        return [
            core_facts().get(key) or self._facts[key]
            for key in keys
            if key in core_facts() or key not in self._untold
        ]

    def _draw_facts(self, rng: random.Random) -> dict[tuple[str, str], Fact]:
        facts: dict[tuple[str, str], Fact] = {}
        for relation in RELATIONS:
            pool = self._entities.get(relation.value) or words(relation.value)
            for entity in self._entities[relation.subject]:
                if (entity, relation.name) in facts:
                    continue
                free = [
                    v
                    for v in pool
                    if v != entity and not (relation.name == "spouse" and (v, "spouse") in facts)
                ]
                value = rng.choice(free or [v for v in pool if v != entity])
                facts[entity, relation.name] = Fact(entity, relation, value)
                if relation.name == "spouse" and (value, "spouse") not in facts:
                    facts[value, "spouse"] = Fact(value, relation, entity)
        return facts


def _choose(kind: Kind, count: int, rng: random.Random) -> tuple[str, ...]:
    """Choose a kind's entities; up to half of them are such as have a nickname."""
    named = [entity for entity in fresh_entities(kind) if entity in nicknames()]
    plain = [entity for entity in fresh_entities(kind) if entity not in nicknames()]
    known = rng.sample(named, min(len(named), (count + 1) // 2))
    rest = rng.sample(plain, min(len(plain), count - len(known)))
    return (*known, *rest)


def _templates(fact: Fact, phrasing: Phrasing) -> Sequence[str]:
    both = say.questions(fact.relation)
    return {"all": both.trained + both.held_out, "trained": both.trained, "held-out": both.held_out}[phrasing]


def _quotas(mix: Mapping[Cell, float], n: int) -> dict[Cell, int]:
    """Share n among cells by largest remainder."""
    total = sum(mix.values())
    exact = {cell: n * share / total for cell, share in mix.items()}
    quotas = {cell: int(share) for cell, share in exact.items()}
    by_remainder = sorted(mix, key=lambda cell: quotas[cell] - exact[cell])
    for cell in by_remainder[: n - sum(quotas.values())]:
        quotas[cell] += 1
    return quotas
