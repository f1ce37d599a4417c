"""What was asked once is not asked again, and chance is never remembered."""

from __future__ import annotations

import numpy as np

from surerag import ScriptedReader
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.evaluation.dense.memory import NotingEntailer, RememberingEncoder, RememberingReader
from surerag.types import Pair, Sampling


def asked(reader: ScriptedReader) -> int:
    return sum(len(call.prompts) for call in reader.history)


def test_a_greedy_answer_is_asked_for_once_and_a_sample_every_time() -> None:
    inner = ScriptedReader(lambda prompt: prompt.upper())
    reader = RememberingReader(inner)
    greedy = Sampling(max_tokens=4)
    rows = reader.generate(["a", "b", "a"], greedy)
    assert [row[0].text for row in rows] == ["A", "B", "A"]
    assert reader.generate(["b"], greedy) == rows[1:2]
    assert (reader.asked, asked(inner)) == (2, 2)
    reader.generate(["b"], Sampling(max_tokens=5))
    assert reader.asked == 3
    for _ in range(2):
        reader.generate(["b"], Sampling(temperature=1.0))
    assert (reader.asked, asked(inner)) == (3, 5)
    assert (reader.name, reader.capabilities) == (inner.name, inner.capabilities)


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
