"""Words have one type; phrasings are distinct; held-out ones are built of known parts."""

from __future__ import annotations

from collections import Counter

import pytest

from surerag.world import language as say
from surerag.world.core import core_facts
from surerag.world.lexicon import ENTITY_KINDS, Kind, core_entities, fresh_entities, nicknames, words
from surerag.world.relations import RELATIONS, Relation, two_hop_pairs


def test_every_word_has_one_kind_and_no_nickname_is_a_word() -> None:
    everything = [word.lower() for kind in Kind for word in words(kind)]
    everything += [nickname.lower() for nickname in nicknames().values()]
    assert not [word for word, times in Counter(everything).items() if times > 1]


def test_core_and_fresh_entities_part_the_lexicon() -> None:
    for kind in ENTITY_KINDS:
        assert (*core_entities(kind), *fresh_entities(kind)) == words(kind)
        assert core_entities(kind)


def test_the_core_is_large_and_about_reserved_entities() -> None:
    assert len(core_facts()) >= 300
    reserved = {entity for kind in ENTITY_KINDS for entity in core_entities(kind)}
    for fact in core_facts().values():
        assert fact.entity in reserved
        assert fact.relation.value not in ENTITY_KINDS or fact.value in reserved


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: f"{r.subject} {r.name}")
def test_phrasings_of_a_relation(relation: Relation) -> None:
    for phrasings, slots in ((say.statements(relation), ("{e}", "{v}")), (say.questions(relation), ("{e}",))):
        everything = phrasings.trained + phrasings.held_out
        assert len(set(everything)) == len(everything) >= 6
        assert phrasings.held_out
        assert all(slot in template for template in everything for slot in slots)
    assert all("{n}" in template for template in relation.vague)
    assert relation.questions[0] == say.questions(relation).trained[0]


def test_held_out_questions_use_frames_that_other_relations_train() -> None:
    for relation in RELATIONS:
        for template in say.questions(relation).held_out:
            noun = max((noun for noun in relation.nouns if noun in template), key=len)
            frame = template.replace(noun, "{noun}")
            others = (
                t.replace(noun, "{noun}")
                for r in RELATIONS
                for noun in r.nouns
                for t in say.questions(r).trained
            )
            assert frame in others


def test_two_hop_pairs_fit_together() -> None:
    assert len(two_hop_pairs()) > 20
    assert all(inner.value is outer.subject for inner, outer in two_hop_pairs())
