"""What each stage of training adds on a world that nothing was tuned on, by default and as in the paper.

``python -m surerag_studies.dynqr.rewriter_trial --seed S --folder DIR [--sorted]``
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from surerag.encoders import packaged_minilm
from surerag.evaluation.differences import paired_difference
from surerag.readers.transformers import TransformersReader
from surerag.retrieval import PassageIndex
from surerag.training.rewriter import (
    PAPER_ALIGN,
    PAPER_DISTIL,
    AlignOptions,
    DistilOptions,
    FineTuning,
    Query,
    SampleOptions,
    Shares,
    align,
    distil,
    draw,
    sample,
)
from surerag.world import World, embedded_reader, embedded_reader_path
from surerag.world.questions import Question
from surerag.world.spec import QuestionKind
from surerag_studies.dynqr.asking import METHOD
from surerag_studies.dynqr.training import Held, examine

LEARNT, HELD_OUT, REWRITES = 360, 220, 6


def trial(seed: int, folder: Path, *, by_kind: bool) -> dict[str, Any]:
    """Train on one world, measure on another, and return what was found as plain values.

    Args:
        seed: Of the world of the held-out questions; what is learnt from comes from the second after it.
        folder: For data and models.
        by_kind: Whether the queries to learn from come sorted by their kind, vague ones last.
    """
    held_out, other = World(seed=seed), World(seed=seed + 2)
    kept = held_out.questions(HELD_OUT)
    asked = {(question.entity, question.rewrite or question.text) for question in kept}
    learnt = [
        question
        for question in other.questions(2 * LEARNT)
        if (question.entity, question.rewrite or question.text) not in asked
    ][:LEARNT]
    if by_kind:
        learnt.sort(key=lambda question: question.kind.value)
    drawn = draw((_query(question) for question in learnt), Shares(held_out=0))
    reader, encoder = embedded_reader(), packaged_minilm()
    base = embedded_reader_path("small")
    index = PassageIndex.from_passages(held_out.passages, encoder)
    found: dict[str, Sequence[Held]] = {}
    told: dict[str, str] = {"draw": str(drawn), "vague to distil": _vague(drawn.distil)}
    told["vague to sample"] = _vague(drawn.sample)

    def examined(name: str, rewriter: Any) -> None:
        if isinstance(rewriter, str | Path):
            rewriter = TransformersReader.from_pretrained(str(rewriter), device="cpu", dtype="float32")
        found[name] = examine(kept, reader, rewriter, index, False)
        (folder / "so-far.json").write_text(json.dumps(_table(found, told), indent=2) + "\n")

    folder.mkdir(parents=True, exist_ok=True)
    examined("original query", None)
    examined("base", base)
    usual = FineTuning(device="cpu", dtype="float32")
    for name, tuning in (("distilled, paper", PAPER_DISTIL), ("distilled", usual)):
        tuning = replace(tuning, device="cpu", dtype="float32")
        distilled = distil(drawn.distil, reader, base, folder / name, DistilOptions(fine_tuning=tuning))
        told[name] = str(distilled.learnt)
        examined(name, distilled.model)
    sampled = sample(
        drawn.sample,
        distilled.model,
        reader,
        PassageIndex.from_passages(other.passages, encoder),
        folder / "sampled",
        SampleOptions(rewrites=REWRITES, top_n=METHOD.top_n, max_tokens=METHOD.max_tokens),
    )
    for name, options in (
        ("aligned, paper", AlignOptions(least_difference=0.0, fine_tuning=PAPER_ALIGN)),
        ("aligned", AlignOptions(fine_tuning=replace(usual, validation=0.2))),
    ):
        tuning = replace(options.fine_tuning, device="cpu", dtype="float32")
        made = align(sampled.samples, distilled.model, folder / name, replace(options, fine_tuning=tuning))
        told[name] = f"{made.triplets} pairs of {made.queries} queries; {made.learnt}"
        examined(name, made.model)
    return _table(found, told)


def _query(question: Question) -> Query:
    return Query(question.text, question.answers, question.id, question.kind.value)


def _vague(queries: Sequence[Query]) -> str:
    vague = sum(query.kind == QuestionKind.UNDER_SPECIFIED for query in queries)
    return f"{vague} of {len(queries)}"


def _table(found: Mapping[str, Sequence[Held]], told: Mapping[str, str]) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    for name, held in found.items():
        finite = [math.log(one.uncertainty) for one in held if math.isfinite(one.uncertainty)]
        row: dict[str, Any] = {
            "n": len(held),
            "usable": sum(one.usable for one in held),
            "correct": sum(one.correct for one in held),
            "perplexity": math.exp(sum(finite) / len(finite)),
        }
        before = (
            "base" if name.startswith("distilled") else "distilled" if name.startswith("aligned") else None
        )
        if before is not None:
            row |= _change(held, found[before])
        rows[name] = row
    return {"rows": rows, "told": dict(told)}


def _change(now: Sequence[Held], then: Sequence[Held]) -> dict[str, list[float]]:
    pairs = [
        (math.log(one.uncertainty), math.log(other.uncertainty))
        for one, other in zip(now, then, strict=True)
        if math.isfinite(one.uncertainty) and math.isfinite(other.uncertainty)
    ]
    changes = {
        "accuracy": paired_difference([one.correct for one in now], [one.correct for one in then]),
        "log perplexity": paired_difference([one for one, _ in pairs], [other for _, other in pairs]),
    }
    return {name: [gap.value, gap.low, gap.high] for name, gap in changes.items()}


def main() -> None:
    """Run a trial, and print what was found."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--folder", type=Path, required=True)
    arguments.add_argument("--sorted", action="store_true", help="queries come sorted by their kind")
    given = arguments.parse_args()
    print(json.dumps(trial(given.seed, given.folder, by_kind=given.sorted), indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
