"""The taught core: facts that are the same in every world and that the embedded reader knows by heart."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from studies.world.language import Fact
from studies.world.lexicon import ENTITY_KINDS, Kind, core_entities, words
from studies.world.relations import relations_of


@cache
def core_facts() -> Mapping[tuple[str, str], Fact]:
    """Return the taught facts by (entity, relation name).

    Example:
        >>> len(core_facts()) >= 300
        True
    """
    rng = random.Random("surerag.world taught core")
    facts: dict[tuple[str, str], Fact] = {}
    for kind in ENTITY_KINDS:
        for entity in core_entities(kind):
            for relation in relations_of(kind):
                key = (entity, relation.name)
                if key in facts:
                    continue
                value = rng.choice([v for v in core_values(relation.value) if v != entity])
                facts[key] = Fact(entity, relation, value)
                if relation.name == "spouse" and (value, "spouse") not in facts:
                    facts[(value, "spouse")] = Fact(value, relation, entity)
    return MappingProxyType(facts)


def core_values(kind: Kind) -> tuple[str, ...]:
    """Return what core facts of a kind may be about: reserved entities, or any word of a value kind."""
    return core_entities(kind) or words(kind)
