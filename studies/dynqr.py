"""DynQR's tables: active rewriting (2), θ (3), metrics (5), and an added gold passage (Figure 3).

The study uses the paper's prompt, in the closed world. With ``--data FOLDER --rows FILE`` it asks the
questions of Disfl-QA, which contain slips of the tongue. It answers each question once in each way, stores
the answers as rows, and compares thresholds and options on the rows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.common import (
    Case,
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
    separation,
    share,
    show,
    world_cases,
    write_tables,
)
from studies.lazy_rag import ARTICLES
from studies.real.data import Item, load_disfl
from surerag import DynQRResult, Passage, SamplingParams, Services, UncertaintyRewriter
from surerag.drivers import run_many
from surerag.effects import Generate, Program, Retrieve, perform
from surerag.measures import contains, perplexity
from surerag.measures.statistics import Estimate
from surerag.messages import Generation
from surerag.methods.dynqr.algorithm import REWRITE_TOKENS
from surerag.methods.dynqr.metrics import MetricName, uncertainty_of
from surerag.methods.dynqr.rewrites import read_rewrite
from surerag.prompts import DYNQR_ANSWER, REWRITE, format_passages
from surerag.readers.protocol import BaseReader
from surerag.retrieval import PassageIndex

TOP_N = 5
TOP_N_SAID, MAX_TOKENS = 3, 32
THRESHOLDS = (1.0, 1.05, 1.1, 1.2, 1.4, 1.8)
METRICS: dict[MetricName, tuple[float, ...]] = {
    "perplexity": (-np.inf, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 2.0),
    "lowest_probability": (-np.inf, 0.25, 0.5, 1.0, 1.5),
    "token_entropy": (-np.inf, 0.2, 0.4, 0.6, 0.8, 1.0),
}
SAMPLES = (3, 5, 10)
OF_SAMPLES = (-np.inf, 0.3, 0.65, 1.0, 1.3)


def main() -> None:
    """Print the study."""
    parser = make_parser(__doc__ or "")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FOLDER",
        help="folder with disfl_qa.json and the SQuAD files that it names",
    )
    parser.add_argument("--articles", choices=ARTICLES, default="all", help="articles of SQuAD 2.0")
    parser.add_argument(
        "--rows", type=Path, metavar="FILE", help="compare options on the rows of this JSONL file"
    )
    parser.add_argument("--samples", action="store_true", help="also sample answers, for semantic entropy")
    arguments = parser.parse_args()
    reader = load_reader(arguments.reader, arguments.dtype)
    if arguments.data:
        titles = ARTICLES[arguments.articles] or ()
        data = load_disfl(arguments.data, arguments.n, arguments.seed, titles)
        index = PassageIndex.from_passages(data.corpus, load_encoder())
        services = Services(reader=reader, retriever=index)
        print_options(collect_rows(data.items, services, arguments.rows, samples=arguments.samples))
        write_tables(arguments)
        return
    cases, passages, _ = world_cases(arguments.seed, arguments.n)
    index = PassageIndex.from_passages(passages, load_encoder())
    console.print(
        f"DynQR on the closed world, reader {reader.name}, n = {len(cases)}, seed {arguments.seed}\n"
    )
    rewriter = UncertaintyRewriter(
        reader, index, top_n=TOP_N, threshold=-np.inf, max_tokens=16, prompts={"answer": DYNQR_ANSWER}
    )
    results = rewriter.run_many([case.question for case in cases])
    unverified = rewriter.with_options(verify=False).run_many([case.question for case in cases])
    never = [case.judge(result.original.answer) for case, result in zip(cases, results, strict=True)]
    always = [case.judge(result.answer) for case, result in zip(cases, unverified, strict=True)]
    verified = [case.judge(result.answer) for case, result in zip(cases, results, strict=True)]
    active = at_threshold(results, never, verified, 1.2)
    acted = [result.original.uncertainty > 1.2 for result in results]
    print_modes(never, always, verified, active, acted)
    print_kinds(cases, never, active)
    print_thresholds(results, never, verified)
    print_metrics(results, never)
    lowered = print_gold(reader, cases, results)
    gap = difference(active, always)
    surer = sum(result.uncertainty <= result.original.uncertainty for result in results)
    print_claims(
        [
            Claim(
                "Rewriting only uncertain questions gives at most 2 points fewer right answers than "
                "rewriting every question",
                f"{show(gap, sign=True)} points, {100 * np.mean(acted):.0f} % of the questions rewritten",
                gap.interval is not None and gap.interval.lower > -0.02 and not all(acted),
            ),
            Claim(
                "DynQR never returns the more uncertain answer",
                f"{surer} of {len(results)} questions",
                surer == len(results),
            ),
            Claim(
                "A gold passage in place of another passage lowers the perplexity (Figure 3)",
                f"in {show(lowered)} % of the questions",
                lowered.value > 0.5,
            ),
        ]
    )
    write_tables(arguments)


def at_threshold(
    results: Sequence[DynQRResult], never: Sequence[bool], verified: Sequence[bool], threshold: float
) -> list[bool]:
    """Return which answers are right if only questions above the threshold are rewritten."""
    return [
        after if result.original.uncertainty > threshold else before
        for result, before, after in zip(results, never, verified, strict=True)
    ]


def print_modes(
    never: Sequence[bool],
    always: Sequence[bool],
    verified: Sequence[bool],
    active: Sequence[bool],
    acted: Sequence[bool],
) -> None:
    """Print right answers and rewrites of each mode (cf. Table 2)."""
    rows = [
        ("no question rewritten", show(share(never)), "", "0"),
        (
            "every question rewritten, answer after the rewriting returned",
            show(share(always)),
            show(difference(always, never), sign=True),
            "100",
        ),
        (
            "every question rewritten, more certain answer returned",
            show(share(verified)),
            show(difference(verified, never), sign=True),
            "100",
        ),
        (
            "DynQR: uncertain questions rewritten, more certain answer returned",
            show(share(active)),
            show(difference(active, never), sign=True),
            f"{100 * np.mean(acted):.0f}",
        ),
    ]
    columns = (
        "Rewriting",
        "right, %",
        "right answers minus right answers without rewriting, points",
        "questions rewritten, %",
    )
    print_table("Modes (cf. Table 2), θ = 1.2", columns, rows)


def print_kinds(cases: Sequence[Case], never: Sequence[bool], active: Sequence[bool]) -> None:
    """Print right answers by kind of question."""
    rows = []
    for kind in dict.fromkeys(case.group for case in cases):
        places = [at for at, case in enumerate(cases) if case.group == kind]
        before, after = [never[at] for at in places], [active[at] for at in places]
        rows.append((kind, len(places), *before_and_after(before, after)))
    columns = (
        "Questions",
        "questions",
        "right without rewriting, %",
        "right with DynQR, %",
        "difference, points",
    )
    print_table("By kind of question", columns, rows)


def print_thresholds(results: Sequence[DynQRResult], never: Sequence[bool], verified: Sequence[bool]) -> None:
    """Print Table 3: right answers and rewrites by θ."""
    rows = []
    for threshold in THRESHOLDS:
        rate = np.mean([result.original.uncertainty > threshold for result in results])
        right = share(at_threshold(results, never, verified, threshold))
        rows.append((f"{threshold:g}", f"{100 * rate:.0f}", show(right)))
    print_table("θ (cf. Table 3)", ("θ, perplexity", "Rewritten, %", "Right, %"), rows)


def print_metrics(results: Sequence[DynQRResult], never: Sequence[bool]) -> None:
    """Print Table 5: the AUROC of each metric for wrong first answers."""
    metrics: dict[str, Callable[[Any], float]] = {
        "perplexity": lambda answer: perplexity(answer.trace.logprobs),
        "mean token entropy": lambda answer: float(np.mean(answer.trace.entropy.middle)),
        "lowest probability": lambda answer: -min(answer.trace.logprobs),
    }
    answers = [result.original.generation for result in results]
    usable = [(answer, right) for answer, right in zip(answers, never, strict=True) if readable(answer)]
    rows = []
    for name, metric in metrics.items():
        wrong = [metric(answer) for answer, right in usable if not right]
        good = [metric(answer) for answer, right in usable if right]
        area = separation(wrong, good)
        rows.append((name, show(area, scale=1, digits=2) if area else "n/a"))
    print_table("Metrics (cf. Table 5)", ("Metric", "AUROC of wrong answers"), rows)


def readable(answer: Generation) -> bool:
    """Return whether an answer has entropies of at least one token."""
    return answer.trace is not None and answer.trace.entropy is not None and len(answer.trace) > 0


def print_gold(reader: BaseReader, cases: Sequence[Case], results: Sequence[DynQRResult]) -> Estimate:
    """Print Figure 3: replace a random retrieved passage with a gold passage, and compare perplexities."""
    before, after = [], []
    for case, result in zip(cases, results, strict=True):
        passages = list(result.original.passages)
        gold = [passage for passage in case.gold if passage.id not in {item.id for item in passages}]
        if not gold or not passages:
            continue
        place = random.Random(case.question).randrange(len(passages))
        changed = [*passages[:place], gold[0], *passages[place + 1 :]]
        before.append(prompt_of(case, passages))
        after.append(prompt_of(case, changed))
    pairs = zip(
        answers_to(reader, before, 16, "logprobs"), answers_to(reader, after, 16, "logprobs"), strict=True
    )
    lower = [
        perplexity(second.trace.logprobs) < perplexity(first.trace.logprobs)
        for first, second in pairs
        if first.trace and second.trace and len(first.trace) and len(second.trace)
    ]
    found = share(lower)
    print_table(
        "A gold passage put in (cf. Figure 3)",
        ("", "n", "Lower uncertainty, %"),
        [("perplexity", len(lower), show(found))],
    )
    return found


def prompt_of(case: Case, passages: Sequence[Passage]) -> str:
    """Return DynQR's prompt for an answer."""
    shown = format_passages(passage.text for passage in passages)
    return str(DYNQR_ANSWER.render(passages=shown, question=case.question))


# Questions of Disfl-QA


def collect_rows(
    said: Sequence[Item], services: Services, file: Path, *, samples: bool = False
) -> list[dict[str, Any]]:
    """Answer each question in each way, and append a row to a file, from which a later run continues."""
    done = len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
    for start in range(done, len(said), 10):
        rows = run_many([row_of(one, samples) for one in said[start : start + 10]], services)
        with file.open("a", encoding="utf-8") as written:
            written.writelines(json.dumps(row) + "\n" for row in rows)
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def row_of(said: Item, samples: bool) -> Program[dict[str, Any]]:
    """Return the answers to one question with slips, rewritten or clean, from the passages of each search.

    With ``samples``, the two answers that DynQR compares by default also have a semantic entropy.
    """
    prompt = REWRITE.render(query=said.text)
    [[reply]] = yield from perform(
        Generate([prompt], SamplingParams(max_tokens=REWRITE_TOKENS, trace="none"))
    )
    rewrite = read_rewrite(reply, said.text, REWRITE_TOKENS)
    texts = {"said": said.text, "clean": said.clean}
    if rewrite.problem is None:
        texts["rewrite"] = rewrite.text
    found = {}
    for name, text in texts.items():
        found[name] = yield from perform(Retrieve(text, TOP_N_SAID))
    ways = {"said": ("said", "said"), "clean": ("clean", "clean")}
    if "rewrite" in texts:
        ways["said, new"], ways["rewrite, new"] = ("said", "rewrite"), ("rewrite", "rewrite")
        ways["rewrite, old"] = ("rewrite", "said")
    prompts = {
        way: DYNQR_ANSWER.render(
            passages=format_passages(p.text for p in found[shown]), question=texts[asked]
        )
        for way, (asked, shown) in ways.items()
    }
    answers = yield from perform(Generate(list(prompts.values()), SamplingParams(max_tokens=MAX_TOKENS)))
    sampled: dict[str, list[Generation]] = {}
    if samples:
        compared = [way for way in ("said", "said, new") if way in prompts]
        sampling = SamplingParams(max_tokens=MAX_TOKENS, n=max(SAMPLES), temperature=1.0, trace="none")
        found_samples = yield from perform(Generate([prompts[way] for way in compared], sampling))
        sampled = dict(zip(compared, found_samples, strict=True))
    row: dict[str, Any] = {**texts, "references": said.references, "problem": rewrite.problem}
    row["new"] = "rewrite" in texts and [p.id for p in found["rewrite"]] != [p.id for p in found["said"]]
    for way, [answer] in zip(prompts, answers, strict=True):
        assert answer.trace is not None
        row[f"answer: {way}"] = {
            "text": answer.text,
            "right": bool(contains(answer.text, said.references)),
            **{name: uncertainty_of(name, answer) for name in METRICS},
            **{
                entropy_of(n): uncertainty_of("semantic_entropy", answer, sampled[way][:n])
                for n in SAMPLES
                if way in sampled
            },
        }
    return row


def entropy_of(n: int) -> str:
    """Return the name of the semantic entropy of n samples."""
    return f"semantic_entropy of {n}"


def print_options(rows: Sequence[dict[str, Any]]) -> None:
    """Print the right answers for each threshold and option, compared with never rewriting."""
    never = [row["answer: said"]["right"] for row in rows]
    clean = [row["answer: clean"]["right"] for row in rows]
    table = [("never", "", "", "0", "0", show(share(never)), "")]
    table.append(
        ("the clean question", "", "", "", "", show(share(clean)), show(difference(clean, never), sign=True))
    )
    sampled = {entropy_of(n): OF_SAMPLES for n in SAMPLES if entropy_of(n) in rows[0]["answer: said"]}
    grids: dict[str, tuple[float, ...]] = {**dict(METRICS.items()), **sampled}
    for metric, grid in grids.items():
        for answer, verify in (
            ("original", True),
            ("rewrite", True),
            ("original", False),
            ("rewrite", False),
        ):
            if answer == "rewrite" and metric not in METRICS:
                continue
            for threshold in grid if verify else (-np.inf,):
                chosen = [choose(row, metric, threshold, answer, verify) for row in rows]
                right = [row[f"answer: {way}"]["right"] for way, row in zip(chosen, rows, strict=True)]
                acted = np.mean([row["answer: said"][metric] > threshold for row in rows])
                kept = np.mean([way != "said" for way in chosen])
                name = f"{answer}{'' if verify else ', unverified'}"
                change = show(difference(right, never), sign=True)
                rates = (f"{100 * acted:.0f}", f"{100 * kept:.0f}")
                table.append((name, metric, f"{threshold:g}", *rates, show(share(right)), change))
    columns = (
        "Answer to",
        "Metric",
        "θ",
        "rewritten, %",
        "rewrites kept, %",
        "right, %",
        "right answers minus right answers without rewriting, points",
    )
    print_table(f"Disfl-QA, n = {len(rows)}", columns, table, "Right: the answer contains a reference.")


def choose(row: dict[str, Any], metric: str, threshold: float, answer: str, verify: bool) -> str:
    """Return the name of the answer that DynQR returns for a row."""
    before = row["answer: said"]
    way = "said, new" if answer == "original" else "rewrite, new"
    if (
        before[metric] <= threshold
        or f"answer: {way}" not in row
        or (answer == "original" and not row["new"])
    ):
        return "said"
    return way if not verify or row[f"answer: {way}"][metric] < before[metric] else "said"


if __name__ == "__main__":
    main()
