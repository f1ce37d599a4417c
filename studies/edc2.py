"""EDC²-RAG's tables: right answers and tokens with noise and repeats, and a comparison of clusterings.

The paper's Tables 1 to 3 and 11 measure appendix C.2: each cluster gives an answer with its evidence, and the
reader selects one of the answers. This study measures C.2 and the compression of section 4.3, both as in the
paper and without a guard.

Table 4 compares the dynamic clusters with as many clusters of equal size, by rank of similarity to the
question ("average"), and with clusters of the same sizes but random passages ("random").

The study runs in the closed world. With ``--data FOLDER`` it compresses single chunks of SQuAD 2.0 that
contain the answer, and measures from which size on a call saves tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.common import (
    Claim,
    answers_to,
    before_and_after,
    console,
    difference,
    load_encoder,
    load_reader,
    make_parser,
    print_claims,
    print_table,
    share,
    show,
    write_tables,
)
from studies.lazy_rag import ARTICLES
from studies.real.data import Data, load_squad
from studies.world import World, is_correct
from studies.world.questions import Question
from surerag import ClusterCompressor, Passage
from surerag.measures import contains
from surerag.methods.edc2.clusters import dynamic_cluster_sizes
from surerag.methods.edc2.result import SENTENCES_KEY
from surerag.prompts import FROM_CONTEXT, SELECT_ANSWER, format_passages, selected_answer
from surerag.readers.protocol import BaseReader
from surerag.retrieval import chunk_text
from surerag.services import Encoder

TOP_N = 20
NOISES = (0.2, 0.5, 0.8)
REDUNDANCIES = (0.0, 0.4)
SIZES = (16, 32, 64, 128)
OF_SECTION_43: dict[str, Any] = {"variant": "paper", "guard": "off", "min_tokens": 0}
LONGEST = 128
"""Longest reply, in tokens, when the reader selects an answer and gives reasons."""
Contexts = list[tuple[Passage, ...]]


def main() -> None:
    """Print the study."""
    parser = make_parser(__doc__ or "", n=100)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with squad2_dev.json")
    parser.add_argument("--articles", choices=ARTICLES, default="all", help="articles of SQuAD 2.0")
    arguments = parser.parse_args()
    reader, encoder = load_reader(arguments.reader, arguments.dtype), load_encoder()
    if arguments.data:
        titles = ARTICLES[arguments.articles] or ()
        print_savings(load_squad(arguments.data, arguments.n, arguments.seed, titles), reader, encoder)
        write_tables(arguments)
        return
    world = World(arguments.seed)
    questions = world.questions(arguments.n)
    console.print(f"EDC²-RAG on {world}, reader {reader.name}, {TOP_N} passages, n = {len(questions)}\n")
    print_sizes()
    rows, gaps, tokens, of_answers = [], [], [], []
    for noise in NOISES:
        for redundancy in REDUNDANCIES:
            contexts = [world.context(q, TOP_N, noise=noise, redundancy=redundancy) for q in questions]
            plain = answer_all(reader, questions, contexts)
            shorter, before, after = compress_all(reader, encoder, questions, contexts)
            compressed = answer_all(reader, questions, shorter)
            gap = difference(compressed, plain)
            selected = select_all(reader, encoder, questions, contexts)
            gaps.append(gap)
            of_answers.append(difference(selected, plain))
            tokens.append(after / before)
            rows.append(
                (
                    f"noise {noise:.0%}, repeated {redundancy:.0%}",
                    show(share(plain)),
                    show(share(compressed)),
                    show(gap, sign=True),
                    show(share(selected)),
                    show(of_answers[-1], sign=True),
                    f"{before:.0f}",
                    f"{after:.0f}",
                )
            )
    columns = (
        "Context", "Plain RAG, %", "4.3, %", "4.3 minus plain RAG, points", "C.2, %",
        "C.2 minus plain RAG, points", "Tokens of plain RAG", "Tokens of 4.3",
    )  # fmt: skip
    print_table("Accuracy and tokens (C.2: cf. Tables 1 to 3)", columns, rows)
    by_hops(reader, encoder, world, questions)
    control = controls(reader, encoder, world, questions)
    wins, wins_of_answers = (
        sum(gap.interval is not None and gap.interval.lower > 0 for gap in some)
        for some in (gaps, of_answers)
    )
    print_claims(
        [
            Claim(
                "One of the clusters' answers (C.2) is better than plain RAG's",
                f"in {wins_of_answers} of {len(gaps)} cells",
                wins_of_answers == len(gaps),
            ),
            Claim(
                "Compressed contexts (4.3) answer better than plain RAG",
                f"in {wins} of {len(gaps)} cells",
                wins == len(gaps),
            ),
            Claim(
                "Contexts shrink",
                f"to {min(tokens):.0%} to {max(tokens):.0%} of the tokens",
                max(tokens) < 0.8,
            ),
            Claim("Dynamic clusters beat average and random ones", control, control.count("[+") == 2),
        ]
    )
    write_tables(arguments)


def print_savings(data: Data, reader: BaseReader, encoder: Encoder) -> None:
    """Print for each size of a cluster the tokens after compression, and the tokens of the call."""
    compressor = ClusterCompressor(reader, encoder, variant="copy", min_tokens=0, first_cluster_size=1)
    rows = []
    for size in SIZES:
        cases = []
        for item in data.items:
            chunks = chunk_text(item.gold[0].text, size, 0)
            holding = [chunk.text for chunk in chunks if contains(chunk.text, item.references)]
            cases += [(item, [Passage(holding[0])])] if holding else []
        results = compressor.run_many([(item.text, passages) for item, passages in cases])
        left = [
            bool(contains(" ".join(one.text for one in result.passages), item.references))
            for (item, _), result in zip(cases, results, strict=True)
        ]
        spent = [result.usage.prompt_tokens + result.usage.completion_tokens for result in results]
        before = np.mean([result.tokens_before for result in results])
        after = np.mean([result.tokens_after for result in results])
        rows.append(
            (size, len(cases), *(f"{one:.0f}" for one in (before, after, np.mean(spent))), show(share(left)))
        )
    columns = ("Size", "n", "Tokens", "Compressed", "Tokens of the call", "Answer still there, %")
    print_table(f"One chunk of {data.name}", columns, rows)


def print_sizes() -> None:
    """Print Table 6: the number of clusters by τ for 20 and 100 passages, for each rule of sizes."""
    taus = (*range(1, 11), 20)
    rules: list[tuple[str, bool, int | None]] = [
        ("τ with its root, cap 20", True, 20),
        ("τ with its root, no cap", True, None),
        ("τ besides its root, cap 20", False, 20),
        ("τ besides its root, no cap", False, None),
    ]
    paper = {20: "5 4 3 3 3 2 2 2 2 2 1", 100: "7 6 6 5 5 5 4 4 4 4 3"}
    rows = [("the paper", paper[20], paper[100], "")]
    for name, count_root, cap in rules:
        counts = {
            n: " ".join(str(len(dynamic_cluster_sizes(n, tau, cap, count_root))) for tau in taus)
            for n in paper
        }
        same = sum(a == b for n in paper for a, b in zip(counts[n].split(), paper[n].split(), strict=True))
        rows.append((name, counts[20], counts[100], f"{same} of 22"))
    print_table(
        "Table 6: clusters for τ = 1 to 10 and 20", ("Rule", "top-k 20", "top-k 100", "as printed"), rows
    )


def answer_all(
    reader: BaseReader, questions: Sequence[Question], contexts: Sequence[Sequence[Passage]]
) -> list[bool]:
    """Answer every question from its context, and judge the answers."""
    prompts = [
        FROM_CONTEXT.render(context=format_passages(p.text for p in passages), question=question.text)
        for question, passages in zip(questions, contexts, strict=True)
    ]
    answers = answers_to(reader, prompts)
    return [is_correct(question, answer.text) for question, answer in zip(questions, answers, strict=True)]


def compress_all(
    reader: BaseReader, encoder: Encoder, questions: Sequence[Question], contexts: Contexts
) -> tuple[Contexts, float, float]:
    """Compress every context; return contexts, and mean tokens before and after."""
    results = ClusterCompressor(reader, encoder, **OF_SECTION_43).run_many(
        [(question.text, passages) for question, passages in zip(questions, contexts, strict=True)]
    )
    before = float(np.mean([result.tokens_before for result in results]))
    return (
        [result.passages for result in results],
        before,
        float(np.mean([result.tokens_after for result in results])),
    )


def select_all(
    reader: BaseReader, encoder: Encoder, questions: Sequence[Question], contexts: Contexts
) -> list[bool]:
    """Answer from each cluster, select one of the answers (appendix C.2), and judge it."""
    compressor = ClusterCompressor(reader, encoder, task="answer", guard="off")
    results = compressor.run_many(
        [(question.text, passages) for question, passages in zip(questions, contexts, strict=True)]
    )
    prompts = []
    for question, result in zip(questions, results, strict=True):
        given = [passage.text for passage in result.passages if SENTENCES_KEY in passage.metadata]
        shown = format_passages(given or [passage.text for passage in result.passages])
        prompts.append(
            SELECT_ANSWER.render(answers=shown, question=question.text)
            if given
            else FROM_CONTEXT.render(context=shown, question=question.text)
        )
    replies = answers_to(reader, prompts, max_tokens=LONGEST)
    return [
        is_correct(question, selected_answer(reply.text))
        for question, reply in zip(questions, replies, strict=True)
    ]


def by_hops(reader: BaseReader, encoder: Encoder, world: World, questions: Sequence[Question]) -> None:
    """Print right answers for questions that need one fact and two facts, at the highest noise."""
    rows = []
    for hops, name in ((1, "one fact"), (2, "a chain of two facts")):
        some = [question for question in questions if question.hops == hops]
        contexts = [world.context(question, TOP_N, noise=NOISES[-1]) for question in some]
        plain = answer_all(reader, some, contexts)
        compressed = answer_all(reader, some, compress_all(reader, encoder, some, contexts)[0])
        rows.append((name, len(some), *before_and_after(plain, compressed)))
    columns = ("Questions", "n", "Plain RAG, %", "Compressed, %", "Difference, points")
    print_table(f"By what answers them, noise {NOISES[-1]:.0%}", columns, rows)


def controls(reader: BaseReader, encoder: Encoder, world: World, questions: Sequence[Question]) -> str:
    """Print Table 4: dynamic clusters compared with average and random ones; return the differences."""
    contexts = [world.context(question, TOP_N, noise=0.5, redundancy=0.4) for question in questions]
    dynamic = answer_all(reader, questions, compress_all(reader, encoder, questions, contexts)[0])
    sizes = dynamic_cluster_sizes(TOP_N)
    equal = [len(part) for part in np.array_split(range(TOP_N), len(sizes))]
    partitions: dict[str, Callable[[Sequence[Passage], Question], list[list[Passage]]]] = {
        "average": lambda passages, question: cut(by_similarity(encoder, question, passages), equal),
        "random": lambda passages, question: cut(
            random.Random(question.id).sample(list(passages), len(passages)), sizes
        ),
    }
    rows, gaps = [("dynamic", show(share(dynamic)), "")], []
    for name, partition in partitions.items():
        parts = [
            partition(passages, question) for passages, question in zip(contexts, questions, strict=True)
        ]
        judged = answer_all(reader, questions, compress_parts(reader, encoder, questions, parts))
        gap = show(difference(dynamic, judged), sign=True)
        gaps.append(f"{name} {gap}")
        rows.append((name, show(share(judged)), gap))
    print_table("Clusters (cf. Table 4)", ("Clusters", "Accuracy, %", "Dynamic less this, points"), rows)
    return "; ".join(gaps)


def by_similarity(encoder: Encoder, question: Question, passages: Sequence[Passage]) -> list[Passage]:
    """Return passages by their similarity to the question, the most similar first."""
    scores = (
        encoder.encode([passage.text for passage in passages], "document")
        @ (encoder.encode([question.text], "query")[0])
    )
    return [passages[at] for at in np.argsort(-scores, kind="stable")]


def cut(passages: Sequence[Passage], sizes: Sequence[int]) -> list[list[Passage]]:
    """Cut passages into parts of these sizes; the last parts may be shorter or absent."""
    ends = np.cumsum(sizes)
    parts = [list(passages[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    return [part for part in parts if part]


def compress_parts(
    reader: BaseReader,
    encoder: Encoder,
    questions: Sequence[Question],
    parts: Sequence[Sequence[Sequence[Passage]]],
) -> Contexts:
    """Compress each part of each context as one cluster, and join the compressions."""
    compressor = ClusterCompressor(reader, encoder, **OF_SECTION_43, first_cluster_size=TOP_N)
    cases = [(question.text, part) for question, rest in zip(questions, parts, strict=True) for part in rest]
    results = iter(compressor.run_many(cases))
    joined = []
    for rest in parts:
        own = [next(results) for _ in rest]
        kept = [passage for result in own if not result.fell_back for passage in result.passages]
        joined.append(tuple(kept or [passage for result in own for passage in result.passages]))
    return joined


if __name__ == "__main__":
    main()
