"""Contexts of known composition: what is gold, what distracts, what repeats, what is out of date."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from studies.world import language as say
from studies.world.articles import write_passage
from studies.world.language import Fact
from studies.world.lexicon import fresh_entities, words
from studies.world.questions import Question
from surerag.errors import ConfigurationError
from surerag.messages import Passage


class Contexts:
    """Draws contexts for a world's questions.

    Args:
        seed: The world's seed.
        passages: Its passages by id.
        places: The id of the passage that tells each fact.
    """

    def __init__(
        self,
        seed: int,
        passages: Mapping[str, Passage],
        places: Mapping[Fact, str],
    ) -> None:
        self._seed, self._passages = seed, passages
        self._told: dict[str, list[Fact]] = defaultdict(list)
        self._by_relation: dict[str, list[str]] = defaultdict(list)
        for fact, place in places.items():
            self._told[place].append(fact)
            self._by_relation[fact.relation.name].append(place)

    def draw(
        self,
        question: Question,
        k: int = 5,
        *,
        noise: float = 0.5,
        redundancy: float = 0.0,
        stale: bool = False,
    ) -> tuple[Passage, ...]:
        """Draw a context of k passages that holds the gold passages.

        Args:
            question: A question of this world.
            k: Number of passages.
            noise: Share of the passages beside gold and duplicates that have nothing to do with the
                question; the others are hard distractors: other facts of the same entity, or the same
                relation of other entities.
            redundancy: Share of the k passages that say in other words what another one says.
            stale: Whether one passage contradicts the gold one, marked as outdated.

        Returns:
            The passages in random order, the same for the same arguments. Duplicates have ids that end
            in ``~<number>``, the outdated one in ``!stale``.

        Raises:
            ConfigurationError: If k is too small for the gold passages, or a share is not in [0, 1].
        """
        gold = [self._passages[name] for name in question.gold_passages]
        if k < len(gold) + stale or not (0 <= noise <= 1 and 0 <= redundancy <= 1):
            raise ConfigurationError(
                f"cannot draw {k} passages with noise {noise} and redundancy {redundancy}",
                hint=f"this question needs at least {len(gold) + stale} passages, and shares lie in [0, 1]",
            )
        rng = random.Random(
            f"surerag.world context {self._seed} {question.id} {k} {noise} {redundancy} {stale}"
        )
        chosen = list(gold)
        if stale and gold:
            chosen.append(self.outdated(question, rng))
        doubles = min(round(redundancy * k), k - len(chosen))
        free = k - len(chosen) - doubles
        chosen += self._distractors(question, free - round(noise * free), rng)
        chosen += self._unrelated(question, k - doubles - len(chosen), chosen, rng)
        sources = list(gold or chosen)
        chosen += [self.paraphrase(sources[i % len(sources)], i // len(sources) + 1) for i in range(doubles)]
        rng.shuffle(chosen)
        return tuple(chosen)

    def lacking(self, question: Question, k: int = 5, *, noise: float = 0.5) -> tuple[Passage, ...]:
        """Draw a context of k passages that does not answer a question.

        Args:
            question: A question of this world.
            k: Number of passages.
            noise: Share of passages that have nothing to do with the question; the others are hard
                distractors, as in `draw`.

        Returns:
            The passages in random order, the same for the same arguments.
        """
        rng = random.Random(f"surerag.world lacking {self._seed} {question.id} {k} {noise}")
        chosen = self._distractors(question, k - round(noise * k), rng)
        chosen += self._unrelated(question, k - len(chosen), chosen, rng)
        rng.shuffle(chosen)
        return tuple(chosen)

    def paraphrase(self, passage: Passage, number: int = 1) -> Passage:
        """Say what a passage says in other words.

        Args:
            passage: A passage of this world.
            number: Which paraphrase; each number gives another one.

        Returns:
            A passage with the same facts, called ``<id>~<number>``.
        """
        rng = random.Random(f"surerag.world paraphrase {self._seed} {passage.id} {number}")
        title = str(passage.metadata["title"])
        facts = list(self._told[passage.id])
        rng.shuffle(facts)
        text = write_passage(title, facts, rng)
        return Passage(text, id=f"{passage.id}~{number}", metadata={**passage.metadata, "paraphrase": number})

    def outdated(self, question: Question, rng: random.Random) -> Passage:
        """Contradict the passage that holds a question's answer, saying that this is out of date."""
        place = question.gold_passages[-1]
        answer = question.answers[0]
        fact = next(
            f for f in self._told[place] if f.value == answer and f.relation.value is question.value_kind
        )
        pool = fresh_entities(fact.relation.value) or words(fact.relation.value)
        other = rng.choice([value for value in pool if value not in (fact.value, fact.entity)])
        template = say.statements(fact.relation).choose(rng, held_out=None)
        text = say.stale(Fact(fact.entity, fact.relation, other), template, rng)
        metadata = {**self._passages[place].metadata, "outdated": True}
        return Passage(text, id=f"{place}!stale", metadata=metadata)

    def _distractors(self, question: Question, count: int, rng: random.Random) -> list[Passage]:
        gold = set(question.gold_passages)
        needed = [fact for name in question.gold_passages for fact in self._told[name]]
        entities = {question.entity} | {fact.entity for fact in needed}
        same_entity = [name for name in self._passages if self._passages[name].metadata["title"] in entities]
        same_relation = [name for fact in needed for name in self._by_relation[fact.relation.name]]
        pools = [[n for n in dict.fromkeys(pool) if n not in gold] for pool in (same_entity, same_relation)]
        for pool in pools:
            rng.shuffle(pool)
        mixed: list[str] = []
        while len(mixed) < count and any(pools):
            mixed.extend(pool.pop() for pool in pools if pool)
        return [self._passages[name] for name in dict.fromkeys(mixed)][:count]

    def _unrelated(
        self, question: Question, count: int, chosen: Sequence[Passage], rng: random.Random
    ) -> list[Passage]:
        """Draw passages, not chosen yet, about entities that the question does not need."""
        taken = {passage.id for passage in chosen}
        names = [name for name in self._passages if name not in taken]
        found: dict[str, Passage] = {}
        while len(found) < count:
            name = rng.choice(names)
            if not self._touches(name, question):
                found[name] = self._passages[name]
        return list(found.values())

    def _touches(self, name: str, question: Question) -> bool:
        """Tell whether a passage is about an entity that the question needs."""
        titles = {self._passages[gold].metadata["title"] for gold in question.gold_passages} | {
            question.entity
        }
        return self._passages[name].metadata["title"] in titles

    def corpus(self, *, redundancy: float = 0.0, stale: Sequence[Question] = ()) -> tuple[Passage, ...]:
        """Return all passages of the world, a share of which repeats others, with outdated ones besides.

        Args:
            redundancy: Share of the result that is paraphrases, in [0, 1).
            stale: Questions for which the corpus also holds an outdated answer.

        Returns:
            The passages in a fixed random order.
        """
        if not 0 <= redundancy < 1:
            raise ConfigurationError(
                f"redundancy lies in [0, 1), not {redundancy}", hint="0.5 doubles the corpus"
            )
        rng = random.Random(f"surerag.world corpus {self._seed} {redundancy}")
        originals = list(self._passages.values())
        extra = round(len(originals) * redundancy / (1 - redundancy))
        everything = list(originals)
        for number in range(extra):
            source = originals[number % len(originals)]
            everything.append(self.paraphrase(source, number // len(originals) + 1))
        everything += [self.outdated(question, rng) for question in stale]
        rng.shuffle(everything)
        return tuple(everything)
