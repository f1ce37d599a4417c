"""Articles: a lead that holds some facts of an entity, and passages that hold others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from studies.world import language as say
from studies.world.language import Fact
from surerag.messages import Passage


@dataclass(frozen=True, slots=True)
class Document:
    """An article about one entity.

    Attributes:
        id: Identifier; passages are called ``<id>#<number>``.
        title: The entity's name.
        lead: The first passage's text.
        passages: All passages, the lead first; each says in its metadata whether it is lead or deep.
    """

    id: str
    title: str
    lead: str
    passages: tuple[Passage, ...]

    @property
    def text(self) -> str:
        """The whole article, a passage a line."""
        return "\n".join(passage.text for passage in self.passages)


def write_article(entity: str, facts: Sequence[Fact], rng: random.Random) -> tuple[Document, dict[Fact, str]]:
    """Write an article.

    Args:
        entity: Its subject.
        facts: What it tells.
        rng: Source of chance.

    Returns:
        The article, and for each fact the id of the passage that tells it.
    """
    lead = [fact for fact in facts if fact.relation.in_lead]
    deep = [fact for fact in facts if not fact.relation.in_lead]
    rng.shuffle(deep)
    groups = [lead, *(deep[at : at + 2] for at in range(0, len(deep), 2))]
    passages: list[Passage] = []
    places: dict[Fact, str] = {}
    for number, group in enumerate(groups):
        name = f"{entity.lower()}#{number}"
        metadata = {"title": entity, "document": entity.lower(), "part": "deep" if number else "lead"}
        passages.append(Passage(write_passage(entity, group, rng), id=name, metadata=metadata))
        places.update(dict.fromkeys(group, name))
    return Document(entity.lower(), entity, passages[0].text, tuple(passages)), places


def write_passage(entity: str, facts: Sequence[Fact], rng: random.Random) -> str:
    """Tell facts of one entity in 15 to 30 words, in phrasings drawn anew at every call."""
    sentences = [say.state(f, say.statements(f.relation).choose(rng, held_out=None)) for f in facts]
    return say.compose_passage(sentences, entity, tuple(f.value for f in facts), rng)
