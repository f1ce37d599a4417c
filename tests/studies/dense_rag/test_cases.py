"""What is known about questions and contexts: facts that are needed, and what the corpus holds."""

from __future__ import annotations

import random

from surerag import Candidates, DenseCache
from surerag.encoders import HashingEncoder
from surerag.services import Services
from surerag.tokens import estimated_tokens
from surerag.types import Passage
from surerag.world import World
from surerag_studies.dense_rag.asking import cuts, recut, refiner, semantic_chunker
from surerag_studies.dense_rag.cases import (
    POOL,
    STALE_EVERY,
    draw_cases,
    library,
    needed_facts,
    tells,
    tells_all,
    tells_any,
)
from surerag_studies.judging import AliasEntailer
from tests.studies.dense_rag.truthful import truthful

WORLD = World(seed=5, size=60)
QUESTIONS = WORLD.questions(60)
CORPUS = library(WORLD, QUESTIONS)


def test_a_question_needs_what_its_gold_passages_tell() -> None:
    for question in QUESTIONS:
        facts = needed_facts(WORLD, question)
        assert len(facts) == question.hops == len(question.gold_passages)
        assert facts[0].entity == question.entity
        assert facts[-1].value == question.answers[0]
        if question.hops == 2:
            assert facts[0].value == facts[1].entity
        gold = [WORLD.passage[place] for place in question.gold_passages]
        again = [WORLD.contexts.paraphrase(passage) for passage in gold]
        assert tells_all(gold, facts)
        assert tells_all(again, facts)
        assert not tells_any(WORLD.contexts.outdated(question, random.Random(0)), facts[-1:])
        assert not tells_all(gold[1:], facts)


def test_what_is_outdated_or_cut_in_two_tells_nothing() -> None:
    fact = needed_facts(WORLD, next(q for q in QUESTIONS if q.hops == 1))[0]
    assert tells(f"Old songs exist. For {fact.entity} it is {fact.value}.", fact)
    assert tells(f"for {fact.entity.lower()} it is {fact.value.lower()}", fact)
    assert not tells(f"Formerly it was held that {fact.entity} has {fact.value}.", fact)
    assert not tells(f"{fact.entity} is old. {fact.value} is new.", fact)
    assert not tells(f"{fact.entity}ish has {fact.value}.", fact)


def test_the_corpus_repeats_and_contradicts_and_documents_hold_all_of_it() -> None:
    texts = {passage.text for passage in CORPUS.passages}
    assert all(passage in CORPUS.passages for passage in WORLD.passages)
    stale = [passage for passage in CORPUS.passages if "outdated" in passage.metadata]
    assert len(stale) == len({question.gold_passages[-1] for question in QUESTIONS[::STALE_EVERY]})
    repeated = [passage for passage in CORPUS.passages if "paraphrase" in passage.metadata]
    assert len(repeated) == round(len(WORLD.passages) / 3)
    assert {passage.text for some in CORPUS.parts.values() for passage in some} == texts
    for document in WORLD.documents:
        text = CORPUS.documents[document.id].text
        assert text.startswith(document.text.replace("\n", " "))
        assert all(passage.text in text for passage in CORPUS.parts[document.id])


def test_retrievers_take_turns_and_the_documents_behind_are_there() -> None:
    cases = draw_cases(WORLD, QUESTIONS, CORPUS, HashingEncoder())
    assert [case.question for case in cases] == list(QUESTIONS)
    assert len({case.retriever for case in cases}) == len({case.retriever for case in cases[:4]}) == 4
    assert [case.retriever for case in cases[:4]] == [case.retriever for case in cases[4:8]]
    for case in cases:
        assert len(case.pool) == POOL
        behind = "\n".join(document.text for document in case.documents)
        assert all(passage.text in behind for passage in case.pool)
        assert len({document.id for document in case.documents}) == len(case.documents)


def test_cuts_are_verbatim_whole_and_within_their_length() -> None:
    chunker = semantic_chunker(CORPUS, HashingEncoder())
    longest = max(estimated_tokens(passage.text) for passage in CORPUS.passages)
    assert chunker.chunk_size == longest
    found = cuts(CORPUS, chunker)
    assert list(found) == ["ranked anew", "fixed, half", "sentences", "semantic"]
    for name, document in CORPUS.documents.items():
        for pieces in found.values():
            assert all(piece.text in document.text for piece in pieces[name])
        words = document.text.split()
        for cut in ("ranked anew", "sentences", "semantic"):
            assert " ".join(piece.text for piece in found[cut][name]).split() == words
        assert len(found["sentences"][name]) >= len(found["semantic"][name])
    assert all(
        estimated_tokens(piece.text) <= longest for pieces in found["semantic"].values() for piece in pieces
    )


def test_a_text_is_told_by_passages_together() -> None:
    question = next(q for q in QUESTIONS if q.hops == 2)
    facts = needed_facts(WORLD, question)
    halves = [Passage(f"{fact.entity} goes with {fact.value}.") for fact in facts]
    assert tells_all(halves, facts)
    assert not any(tells_all([half], facts) for half in halves)


def test_the_refiners_first_cut_is_the_one_that_is_measured_by_itself() -> None:
    encoder = HashingEncoder()
    cases = draw_cases(WORLD, QUESTIONS, CORPUS, encoder)[:12]
    chunker = semantic_chunker(CORPUS, encoder)
    reader = truthful(WORLD, 60)
    results = refiner(reader, AliasEntailer(QUESTIONS), chunker, DenseCache(), 5).run_many(
        Candidates(case.question.text, case.pool, case.documents) for case in cases
    )
    services = Services(reader=reader, encoder=encoder)
    recuts = recut(cases, cuts(CORPUS, chunker)["semantic"], 5, services, progress=False)
    doubtful = [(a, b) for a, b in zip(results, recuts, strict=True) if a.rounds[0].rechunked]
    assert len(doubtful) > 1
    for result, found in doubtful:
        shown = result.rounds[1].measured.passages
        assert [passage.text for passage in shown] == [passage.text for passage in found.passages]
