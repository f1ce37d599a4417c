"""DENSE-RAG's tables: accuracy by score (Figures 2 and 3, Table 6), and refinement (Table 1).

The study runs in the closed world. With ``--data FOLDER`` it compares thresholds of the chunker on SQuAD
2.0: in how many cases a prompt of ``BUDGET`` tokens contains the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

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
    write_tables,
)
from studies.lazy_rag import ARTICLES
from studies.real.data import Data, load_squad
from studies.world import World, is_correct
from studies.world.questions import Question
from surerag import DenseEvaluator, DenseRefiner, DenseResult, Passage, SemanticChunker
from surerag.entailment import JudgeEntailer
from surerag.measures import contains
from surerag.retrieval import PassageIndex, chunk_text
from surerag.services import Encoder
from surerag.text import estimated_tokens

TOP_N, CANDIDATES = 5, 20
BUDGET = 400
FIXED = ((100, 20), (200, 40))
THRESHOLDS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
QUANTILES = (0.25, 0.5, 0.75)


def main() -> None:
    """Print the study."""
    parser = make_parser(__doc__ or "", n=100)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with squad2_dev.json")
    parser.add_argument("--articles", choices=ARTICLES, default="all", help="articles of SQuAD 2.0")
    arguments = parser.parse_args()
    if arguments.data:
        titles = ARTICLES[arguments.articles] or ()
        print_chunkers(load_squad(arguments.data, arguments.n, arguments.seed, titles), load_encoder())
        write_tables(arguments)
        return
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
    chunker = SemanticChunker(encoder).with_quantile([item.text for item in world.documents[:100]], 0.5)
    judge = JudgeEntailer(reader)
    refiner = DenseRefiner(reader, judge, retriever=index, chunker=chunker, top_n=TOP_N, max_tokens=16)
    change = print_refinement(refiner, questions, retrieved, documents, results, correct)
    print_claims(
        [
            Claim("Answers are right less often if DSE is higher (Figure 2)", *falls),
            Claim(
                "Contexts with a DSE up to 0.2 give more right answers than other contexts (Table 6)", *gap
            ),
            Claim("The refiner adds right answers for uncertain questions (Table 1)", *change),
        ]
    )
    write_tables(arguments)


def print_chunkers(data: Data, encoder: Encoder) -> None:
    """Print for each chunker in how many cases the prompt contains the answer."""
    articles: dict[str, list[str]] = {}
    for paragraph in data.corpus:
        articles.setdefault(paragraph.metadata["title"], []).append(paragraph.text)
    documents = [Passage("\n\n".join(texts), id=title) for title, texts in articles.items()]
    cut = {f"{size} tokens, {overlap} shared": fixed(documents, size, overlap) for size, overlap in FIXED}
    chunker = SemanticChunker(encoder)
    for threshold in THRESHOLDS:
        cut[f"τ = {threshold:g}"] = chunker.with_options(similarity_threshold=threshold).passages(documents)
    for quantile in QUANTILES:
        found = chunker.with_quantile([one.text for one in documents], quantile)
        tau = found.options()["similarity_threshold"]
        cut[f"{quantile:.0%} quantile, τ = {tau:.2f}"] = found.passages(documents)
    rows, shown = [], {}
    for name, chunks in cut.items():
        index = PassageIndex.from_passages(chunks, encoder)
        sizes = [estimated_tokens(chunk.text) for chunk in chunks]
        hits = []
        nearest = index.retrieve_many([item.text for item in data.items], BUDGET // 5)
        for item, passages in zip(data.items, nearest, strict=True):
            texts: list[str] = []
            for passage in passages:
                if estimated_tokens("\n".join([*texts, passage.text])) > BUDGET:
                    break
                texts.append(passage.text)
            hits.append(bool(contains("\n".join(texts), item.references)))
        shown[name] = hits
        change = difference(hits, shown[next(iter(shown))])
        rows.append((name, len(chunks), f"{np.mean(sizes):.0f}", show(share(hits)), show(change, sign=True)))
    columns = ("Chunks", "Number", "Tokens", "answer in the prompt, %", "minus the first row, points")
    print_table(f"{data.name}, n = {len(data.items)}, prompts of {BUDGET} tokens", columns, rows)


def fixed(documents: Sequence[Passage], size: int, overlap: int) -> list[Passage]:
    """Cut documents into chunks of one size."""
    return [Passage(chunk.text) for one in documents for chunk in chunk_text(one.text, size, overlap)]


def print_scores(results: Sequence[DenseResult], correct: Sequence[bool]) -> tuple[str, bool]:
    """Print the right answers by range of DSE; return the AUROC, and whether it is above one half."""
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
            name = f"DSE {low:g} to {high:g}" if np.isfinite(high) else f"DSE above {low:g}"
            rows.append((name, len(inside), show(share(inside))))
    print_table("Accuracy by DSE (cf. Figure 2)", ("DSE, nats", "questions", "right, %"), rows)
    wrong = [float(score) for score, right in zip(scores, correct, strict=True) if not right]
    good = [float(score) for score, right in zip(scores, correct, strict=True) if right]
    area = separation(wrong, good)
    if area is None:
        return "n/a", False
    return f"AUROC {show(area, scale=1, digits=2)}", area.interval is not None and area.interval.lower > 0.5


def print_gap(results: Sequence[DenseResult], correct: Sequence[bool]) -> tuple[str, bool]:
    """Print right answers in certain and in uncertain contexts, and return whether they differ."""
    groups = {
        name: [right for result, right in zip(results, correct, strict=True) if result.certain is certain]
        for name, certain in (("certain", True), ("uncertain", False))
    }
    rows = [(name, len(group), show(share(group))) for name, group in groups.items() if group]
    print_table(
        "Certain (DSE ≤ 0.2) and uncertain (cf. Figure 3 and Table 6)",
        ("Contexts", "questions", "right, %"),
        rows,
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
    """Refine the contexts of uncertain questions, and print how the right answers change."""
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
        ("Context", "right, %", "change, points"),
        rows,
        f"Why it ended: {stopped}. Calls a question: {np.mean([result.calls for result in refined]):.0f}.",
    )
    return f"{show(change, sign=True)} points", change.interval is not None and change.interval.lower > 0


if __name__ == "__main__":
    main()
