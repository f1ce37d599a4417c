"""Each question of a regime answered without and with retrieval: what decisions are calibrated on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from surerag.decisions.rows import DecisionRow
from surerag.drivers.progress import Stages, counted_not_logged
from surerag.encoders import packaged_minilm
from surerag.evaluation.gate import looked_up, world_questions
from surerag.evaluation.gate.asking import ask, first_pass, signal
from surerag.methods.dynqr.metrics import uncertainty_of
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.readers.protocol import Reader
from surerag.services import Encoder
from surerag.storage import write_whole
from surerag.world import embedded_reader
from surerag.world.regimes import Regime, regime
from surerag.world.tiers import index_world
from surerag_studies.lazy_rag.study import pipeline
from surerag_studies.worlds import world_of

SIGNALS = (
    "entropy",
    "perplexity",
    "lowest_probability",
    "token_entropy",
    "energy",
    "summary_distance",
    "length",
)
"""What is known before retrieving: five uncertainties of the first answer (``entropy`` is the gate's, of its
first eight tokens), how far the summary is from the question (1 − cosine), and the answer's length in tokens.
A reader that reports no log-sum-exp has no ``energy``."""


def regime_rows(
    which: Regime | str,
    n: int,
    seed: int,
    *,
    reader: Reader | None = None,
    encoder: Encoder | None = None,
    cache: Path | None = None,
    stages: Stages = lambda _: False,
) -> tuple[DecisionRow, ...]:
    """Ask questions of a regime from the nearest summary, and from it with retrieved passages.

    Args:
        which: A regime, or its name; ``"today"`` for the world without hazards.
        n: Questions.
        seed: Of the world.
        reader: Who answers; by default the embedded reader.
        encoder: Behind both tiers; by default the packaged MiniLM.
        cache: A folder in which rows are kept, and found again for the same arguments and models.
        stages: Told how far each pass is.

    Returns:
        A row a question, in the world's order: :data:`SIGNALS`, whether the first answer is right, and
        whether the answer after retrieving is. A row's id is the question's.

    Raises:
        ConfigurationError: If there is no such regime, or the world has fewer questions.
        StorageError: If the cache cannot be written.
    """
    chosen = regime(which) if isinstance(which, str) else which
    reader, encoder = reader or embedded_reader(), encoder or packaged_minilm()
    file = None if cache is None else cache / _file_name(chosen, n, seed, reader.name, encoder.name)
    if file is not None and file.is_file():
        return tuple(DecisionRow(**row) for row in json.loads(file.read_text(encoding="utf-8")))
    world = world_of(chosen, n, seed)
    questions = world_questions(world, world.questions(n))
    rag = looked_up(pipeline(reader, index_world(world, encoder)), questions)
    with counted_not_logged():
        first = first_pass(rag, questions, stages(f"{chosen.name}, without retrieval"))
        second = ask(rag.with_options(mode="strong"), questions, stages(f"{chosen.name}, with retrieval"))
    energy = reader.capabilities.energy
    rows = tuple(
        DecisionRow(
            _signals(without, energy=energy),
            correct_without=question.is_correct(without.answer),
            correct_with=question.is_correct(with_.answer),
            id=question.id,
        )
        for question, without, with_ in zip(questions, first, second, strict=True)
    )
    if file is not None:
        write_whole(file, json.dumps([asdict(row) for row in rows]) + "\n")
    return rows


def _signals(result: LazyRAGResult, *, energy: bool) -> dict[str, float]:
    answer = result.generation
    nearest = result.summaries[0].score if result.summaries else None
    return {
        "entropy": signal(result),
        "perplexity": uncertainty_of("perplexity", answer),
        "lowest_probability": uncertainty_of("lowest_probability", answer),
        "token_entropy": uncertainty_of("token_entropy", answer),
        **({"energy": uncertainty_of("energy", answer)} if energy else {}),
        "summary_distance": 1.0 if nearest is None else 1.0 - nearest,
        "length": float(answer.completion_tokens),
    }


def _file_name(which: Regime, n: int, seed: int, reader: str, encoder: str) -> str:
    """Name a file by all that its rows depend on."""
    known = repr((sorted(which.spec.mix.items(), key=repr), dict(which.spec.kinds), which.spec.untold))
    digest = hashlib.sha256(f"{known} {reader} {encoder} {SIGNALS}".encode()).hexdigest()[:12]
    return f"{which.name}-{n}-{seed}-{digest}.json"
