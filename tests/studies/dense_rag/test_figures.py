"""Figures 5 and 6 and Table 7 on a reader whose understanding is known."""

from __future__ import annotations

import json

import pytest

from surerag.encoders import HashingEncoder
from surerag.evaluation.serialise import to_json
from surerag.readers.scripted import ScriptedReader
from surerag.types import Sampling
from surerag.world import World
from surerag_studies.dense_rag.figures import BINS, QUANTILES, SIZES, dense_figures, study_tables
from tests.studies.dense_rag.truthful import LOCAL, truthful
from tests.studies.showing import shown

WORLD, N = World(seed=5, size=60), 24


def test_tau_and_k_vary_and_summaries_of_what_is_understood_say_what_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surerag_studies.dense_rag.figures.world_of", lambda regime, n, seed: WORLD)
    reads = truthful(WORLD, N)

    def reply(prompt: str) -> str:
        if prompt.startswith("Extract"):
            shown = [line for line in prompt.splitlines() if line.startswith("[")]
            # What it says of even questions rests on the wording of its context, and tells nothing.
            unsure = sum(map(ord, prompt.split("Question: ")[1].split("\n")[0])) % 2 == 0
            return f"{len(prompt) % 9}" if unsure else " ".join(sorted(line[4:] for line in shown))
        return reads.generate([prompt], Sampling(max_tokens=24))[0][0].text

    study = dense_figures(ScriptedReader(reply, capabilities=LOCAL), HashingEncoder(), seed=5, n=N)
    assert [one.at for one in study.taus] == list(QUANTILES)
    taus = [one.tau for one in study.taus]
    assert taus == sorted(taus) and taus[0] < taus[-1]
    assert {one.at for one in study.sizes} <= set(SIZES) and study.sizes
    assert all(one.n > 0 for one in (*study.taus, *study.sizes))
    assert {row.low for row in study.summaries} <= set(BINS) and len(study.summaries) > 1
    assert study.trend.value < -0.3 and study.summaries[0].rouge.value > study.summaries[-1].rouge.value
    assert "cf. Figure 5" in shown(study_tables(study)) and json.loads(to_json(study))["n"] == N
