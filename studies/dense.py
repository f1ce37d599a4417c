"""DENSE-RAG's tables: accuracy by score (Figures 2 and 3, Table 6), and refinement (Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from studies.common import (
    Claim,
    console,
    difference,
    load_encoder,
    load_reader,
    make_parser,
    print_claims,
    print_table,
    separation,
    share,
    show,
)
from studies.world import World, is_correct
from studies.world.questions import Question
from surerag import DenseEvaluator, DenseRefiner, DenseResult, Passage, SemanticChunker
from surerag.entailment import JudgeEntailer
from surerag.retrieval import PassageIndex

TOP_N, CANDIDATES = 5, 20


def main() -> None:
    """Print the study."""
    arguments = make_parser(__doc__ or "", n=100).parse_args()
    reader, encoder = load_reader(arguments.reader, arguments.dtype), load_encoder()
    world = World(arguments.seed)
    questions = world.questions(arguments.n)
    console.print(f"DENSE-RAG on {world}, reader {reader.name}, {TOP_N} passages, n = {len(questions)}\n")
    index = PassageIndex.from_passages(world.passages, encoder)
    retrieved = index.retrieve_many([question.text for question in questions], CANDIDATES)
    evaluator = DenseEvaluator(reader, JudgeEntailer(reader), max_tokens=16)
    results = evaluator.run_many(
        [(question.text, passages[:TOP_N]) for question, passages in zip(questions, retrieved, strict=True)],
        window=32,
    )
    correct = [
        is_correct(question, result.answer) for question, result in zip(questions, results, strict=True)
    ]
    falls = print_scores(results, correct)
    gap = print_gap(results, correct)
    articles = {item.id: Passage(item.text, id=item.id) for item in world.documents}
    documents = [
        [
            articles[name]
            for name in dict.fromkeys(str(item.metadata["document"]) for item in passages[:TOP_N])
        ]
        for passages in retrieved
    ]
    chunker = SemanticChunker(encoder).with_quantile([item.text for item in world.documents[:100]])
    judge = JudgeEntailer(reader)
    refiner = DenseRefiner(reader, judge, retriever=index, chunker=chunker, top_n=TOP_N, max_tokens=16)
    change = print_refinement(refiner, questions, retrieved, documents, results, correct)
    print_claims(
        [
            Claim("Accuracy falls as the score grows (Figure 2)", *falls),
            Claim("Certain contexts are answered better than uncertain ones (Table 6)", *gap),
            Claim("Refinement helps uncertain questions (Table 1)", *change),
        ]
    )


def print_scores(results: Sequence[DenseResult], correct: Sequence[bool]) -> tuple[str, bool]:
    """Print accuracy by thirds of the score, and how well the score separates wrong answers."""
    scores = np.array([result.score for result in results])
    edges = [0.0, 0.2, 0.6, np.inf]
    rows = []
    for low, high in pairwise(edges):
        inside = [
            right
            for score, right in zip(scores, correct, strict=True)
            if low <= score < high or score == low == 0
        ]
        if inside:
            rows.append((f"{low:g} to {high:g}", len(inside), show(share(inside))))
    print_table("Accuracy by DSE (cf. Figure 2)", ("DSE, nats", "n", "Right, %"), rows)
    wrong = [float(score) for score, right in zip(scores, correct, strict=True) if not right]
    good = [float(score) for score, right in zip(scores, correct, strict=True) if right]
    area = separation(wrong, good)
    if area is None:
        return "n/a", False
    return f"AUROC {show(area, scale=1, digits=2)}", area.interval is not None and area.interval.lower > 0.5


def print_gap(results: Sequence[DenseResult], correct: Sequence[bool]) -> tuple[str, bool]:
    """Print accuracy in certain and in uncertain contexts."""
    groups = {
        name: [right for result, right in zip(results, correct, strict=True) if result.certain is certain]
        for name, certain in (("certain", True), ("uncertain", False))
    }
    rows = [(name, len(group), show(share(group))) for name, group in groups.items() if group]
    print_table(
        "Certain (DSE ≤ 0.2) and uncertain (cf. Figure 3 and Table 6)", ("Contexts", "n", "Right, %"), rows
    )
    if not all(groups.values()):
        return "n/a", False
    certain, uncertain = share(groups["certain"]), share(groups["uncertain"])
    apart = certain.interval is not None and uncertain.interval is not None
    holds = apart and certain.interval.lower > uncertain.interval.upper  # type: ignore[union-attr]  # both are intervals
    return f"{show(certain)} against {show(uncertain)} %", holds


def print_refinement(
    refiner: DenseRefiner,
    questions: Sequence[Question],
    retrieved: Sequence[Sequence[Passage]],
    documents: Sequence[Sequence[Passage]],
    results: Sequence[DenseResult],
    correct: Sequence[bool],
) -> tuple[str, bool]:
    """Cut the documents of uncertain questions anew, refine the contexts, and print what that changed."""
    places = [at for at, result in enumerate(results) if not result.certain]
    if not places:
        return "no context is uncertain", False
    cases = [(questions[at].text, retrieved[at], documents[at]) for at in places]
    refined = refiner.run_many(cases, window=32)
    after = [
        is_correct(questions[at], result.answer or "") for at, result in zip(places, refined, strict=True)
    ]
    before = [correct[at] for at in places]
    change = difference(after, before)
    stopped = ", ".join(
        f"{name} {sum(result.stopped == name for result in refined)}"
        for name in dict.fromkeys(result.stopped for result in refined)
    )
    rows = [("before", show(share(before)), ""), ("refined", show(share(after)), show(change, sign=True))]
    print_table(
        f"Refinement of {len(places)} uncertain contexts (cf. Table 1)",
        ("Context", "Right, %", "Change, points"),
        rows,
        f"Why it ended: {stopped}. Calls a question: {np.mean([result.calls for result in refined]):.0f}.",
    )
    return f"{show(change, sign=True)} points", change.interval is not None and change.interval.lower > 0


if __name__ == "__main__":
    main()
