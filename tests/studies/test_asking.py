"""Nothing is asked twice, and everything is counted."""

from __future__ import annotations

import numpy as np

from surerag import ScriptedReader
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.journal import Memory
from surerag.recording import RecordedReader
from surerag.types import Pair, Sampling
from surerag_studies.asking import CountedReader, RememberingEncoder
from surerag_studies.dense_rag.asking import NotingEntailer


def asked(reader: ScriptedReader) -> int:
    return sum(len(call.prompts) for call in reader.history)


def test_what_is_recorded_is_asked_for_and_counted_once() -> None:
    inner = ScriptedReader(lambda prompt: prompt.upper())
    counted = CountedReader(inner)
    reader = RecordedReader(counted, Memory())
    greedy = Sampling(max_tokens=4)
    rows = reader.generate(["a", "b", "a"], greedy)
    assert [row[0].text for row in rows] == ["A", "B", "A"]
    assert [row[0].text for row in reader.generate(["b"], greedy)] == ["B"]
    assert (counted.asked, asked(inner)) == (2, 2)
    reader.generate(["b"], Sampling(max_tokens=5))
    assert counted.asked == 3
    assert counted.prompt_tokens == sum(row[0].prompt_tokens for row in [*rows[:2], rows[1]])
    assert (counted.name, counted.capabilities) == (inner.name, inner.capabilities)


def test_vectors_are_those_of_the_encoder_by_kind() -> None:
    encoder = HashingEncoder()
    found = RememberingEncoder(encoder)
    for kind in ("query", "document"):
        for texts in (["a b", "c", "a b"], ["c", "d e"]):
            assert np.array_equal(found.encode(texts, kind), encoder.encode(texts, kind))


def test_verdicts_are_noted_as_they_were_given() -> None:
    entailer = NotingEntailer(ExactEntailer())
    pairs = [Pair("The Orun.", "orun", "q"), Pair("Velm", "Orun", "q")]
    assert np.array_equal(entailer.entail(pairs), ExactEntailer().entail(pairs))
    assert entailer.verdicts == {pairs[0]: True, pairs[1]: False}
    assert (entailer.name, entailer.local) == ("exact", True)
