"""L-RAG's tables: modes (I), thresholds (II), latency (III), and entropies of right and wrong answers.

The study runs in the closed world. With ``--squad FILE`` it uses SQuAD 2.0 as in the paper, where the
paragraph of a question is its document. The tables also show the paper's results (Phi-2, n = 500). With
``--rows FILE`` the study answers every question once in each way, stores the answers, and compares gates
and thresholds on them.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from studies.common import (
    Case,
    Claim,
    LookupRetriever,
    answers_to,
    console,
    difference,
    load_encoder,
    load_reader,
    make_parser,
    print_claims,
    print_table,
    samples_of,
    separation,
    share,
    show,
    world_cases,
    write_tables,
)
from surerag import (
    AbstentionGate,
    DisagreementGate,
    EntropyGate,
    FirstPass,
    Gate,
    LazyRAG,
    MarginGate,
    Passage,
)
from surerag.measures import break_even_latency, contains, latency_saving
from surerag.messages import EntropyTrace, Generation, Prompt, SamplingParams, TokenTrace
from surerag.methods.lazy_rag.gates import N_TOKENS
from surerag.methods.shared import meaning_clusters, typical_sample
from surerag.prompts import (
    CLOSED_BOOK,
    FROM_CONTEXT,
    FROM_CONTEXT_AND_DETAILS,
    PromptTemplate,
    format_passages,
    with_abstention,
)
from surerag.readers.protocol import BaseReader
from surerag.retrieval import PassageIndex, chunk_text, lead_summary
from surerag.services import Encoder
from surerag.text import ABSTENTION, is_abstention

PAPER_TABLE_1 = {
    "no retrieval": (53.8, 138, 0),
    "standard": (77.8, 169, 100),
    "strong": (79.8, 235, 100),
    "lazy, τ = 0.5": (78.2, 227, 92),
    "lazy, τ = 1": (76.0, 209, 74),
    "lazy, τ = 1.5": (71.6, 190, 54),
    "oracle": (80.2, 235, 100),
}
"""Accuracy in %, mean input tokens, retrieval rate in %; SQuAD 2.0, Phi-2, n = 500."""

LABELS = {
    "no retrieval": "no passages (no retrieval)",
    "standard": "always search (standard)",
    "strong": "always search, with summaries (strong)",
    "oracle": "gold passages alone (oracle)",
}
"""What the modes of Table I do, with the paper's names in brackets."""

CHOSEN_ON = ("Huguenot", "Steam_engine", "Warsaw", "Immune_system", "Yuan_dynasty", "Islamism")
"""Articles on which the defaults were chosen."""

UNSEEN = (
    "Martin_Luther",
    "Newcastle_upon_Tyne",
    "Pharmacy",
    "United_Methodist_Church",
    "University_of_Chicago",
    "Victoria_(Australia)",
)
"""Articles of XQuAD on which the defaults were chosen with the demo's reader; it was not trained on them."""

HELD_OUT = ("Force", "French_and_Indian_War", "Harvard_University", "Normans")
"""Articles on which no default was chosen, and on which the demo's reader was not trained."""

ARTICLES = {"all": None, "chosen-on": CHOSEN_ON, "unseen": UNSEEN, "held-out": HELD_OUT}
THRESHOLDS = (0.5, 1.0, 1.5)
GATE_MS = 50
TOP_N, MAX_TOKENS = 3, 32


class Setting(NamedTuple):
    """Questions with their summaries and passages."""

    name: str
    cases: list[Case]
    summaries: dict[str, list[Passage]]
    passages: dict[str, list[Passage]]


class Mode(NamedTuple):
    """One mode of Table I on all questions."""

    name: str
    correct: list[bool]
    tokens: list[int]
    retrieved: list[bool]


def main() -> None:
    """Print the study."""
    parser = make_parser(__doc__ or "")
    parser.add_argument("--squad", type=Path, metavar="FILE", help="SQuAD 2.0 in its JSON format")
    parser.add_argument("--articles", choices=ARTICLES, default="all", help="of SQuAD 2.0, or XQuAD")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="compare gates on rows in this JSONL file")
    arguments = parser.parse_args()
    reader, encoder = load_reader(arguments.reader, arguments.dtype), load_encoder()
    if arguments.squad:
        titles = ARTICLES[arguments.articles]
        setting = squad_setting(arguments.squad, titles, arguments.n, arguments.seed, encoder)
    else:
        setting = world_setting(arguments.seed, arguments.n, encoder)
    console.print(
        f"L-RAG on {setting.name}, reader {reader.name}, n = {len(setting.cases)}, seed {arguments.seed}\n"
    )
    if arguments.rows:
        print_gates(collect_rows(setting, reader, arguments.rows))
    else:
        print_study(setting, reader)
    write_tables(arguments)


def world_setting(seed: int, n: int, encoder: Encoder) -> Setting:
    """Return a closed world; the summary of a question is the first passage of the nearest article."""
    cases, passages, leads = world_cases(seed, n)
    questions = [case.question for case in cases]
    found = PassageIndex.from_passages(passages, encoder).retrieve_many(questions, TOP_N)
    summaries = PassageIndex.from_passages(leads, encoder).retrieve_many(questions, 1)
    return Setting(
        "the closed world",
        cases,
        dict(zip(questions, summaries, strict=True)),
        dict(zip(questions, found, strict=True)),
    )


def squad_setting(file: Path, titles: Sequence[str] | None, n: int, seed: int, encoder: Encoder) -> Setting:
    """Return answerable questions of SQuAD 2.0 (IV-A): a paragraph is a document, chunks have 100 tokens."""
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    items = [
        (paragraph["context"], item["question"], tuple(dict.fromkeys(a["text"] for a in item["answers"])))
        for article in articles
        if titles is None or article["title"] in titles
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
        if not item.get("is_impossible")
    ]
    sample = random.Random(seed).sample(items, min(n, len(items)))
    cases = [Case(question, answers, (Passage(context),)) for context, question, answers in sample]
    summaries = {case.question: [Passage(lead_summary(case.gold[0].text))] for case in cases}
    passages = {}
    for case in cases:
        chunks = [Passage(chunk.text) for chunk in chunk_text(case.gold[0].text, 100, 20)]
        index = PassageIndex.from_passages(chunks, encoder)
        passages[case.question] = index.retrieve(case.question, TOP_N)
    return Setting("SQuAD 2.0", cases, summaries, passages)


def print_study(setting: Setting, reader: BaseReader) -> None:
    """Answer every question in every mode, and print the tables."""
    cases = setting.cases
    prompts: dict[str, list[str]] = {
        "no retrieval": [],
        "first pass": [],
        "standard": [],
        "strong": [],
        "oracle": [],
    }
    for case in cases:
        summary = "\n".join(passage.text for passage in setting.summaries[case.question])
        chunks = format_passages(passage.text for passage in setting.passages[case.question])
        gold = "\n".join(passage.text for passage in case.gold)
        question = case.question
        prompts["no retrieval"].append(CLOSED_BOOK.render(question=question))
        prompts["first pass"].append(FROM_CONTEXT.render(context=summary, question=question))
        prompts["standard"].append(FROM_CONTEXT.render(context=chunks, question=question))
        prompts["strong"].append(
            FROM_CONTEXT_AND_DETAILS.render(context=summary, details=chunks, question=question)
        )
        prompts["oracle"].append(FROM_CONTEXT.render(context=gold, question=question))
    answers = {
        name: answers_to(
            reader, texts, MAX_TOKENS, "entropy" if name == "first pass" else "none", name.capitalize()
        )
        for name, texts in prompts.items()
    }
    entropies = [EntropyGate().score(FirstPass(answer)) or np.inf for answer in answers["first pass"]]
    fixed = {name: fixed_mode(name, cases, answers[name]) for name in prompts if name != "first pass"}
    first = fixed_mode("first pass", cases, answers["first pass"])
    lazy = {tau: lazy_mode(tau, entropies, first, fixed["strong"]) for tau in THRESHOLDS}
    ordered = [
        *(fixed[name] for name in ("no retrieval", "standard", "strong")),
        *lazy.values(),
        fixed["oracle"],
    ]
    print_modes(ordered, fixed["standard"])
    right = first.correct
    area = print_entropies(entropies, right)
    rates = print_sweep(entropies, first, fixed["strong"])
    milliseconds = gate_milliseconds(reader, prompts["first pass"][:16])
    print_latency({mode.name: float(np.mean(mode.retrieved)) for mode in lazy.values()}, milliseconds)
    agreement = check_component(setting, reader, entropies, answers)
    conservative = difference(lazy[0.5].correct, fixed["standard"].correct)
    claims = [
        Claim(
            "Wrong first answers have a higher entropy than right first answers",
            area,
            "[0.5" not in area and area != "n/a",
        ),
        Claim(
            "L-RAG with τ = 0.5 gives at most two points fewer right answers than always searching",
            f"{show(conservative, sign=True)} points",
            conservative.interval is not None and conservative.interval.lower > -0.02,
        ),
        Claim(
            "L-RAG searches less often if τ is higher",
            f"from {100 * rates[0]:.0f} % to {100 * rates[-1]:.0f} %",
            rates == sorted(rates)[::-1],
        ),
        Claim(
            "LazyRAG returns the same answers as L-RAG's rule (Eq. 4) applied to stored answers",
            agreement,
            agreement.split(" of ")[0] == agreement.split(" of ")[1],
        ),
    ]
    print_claims(claims)


def fixed_mode(name: str, cases: Sequence[Case], answers: Sequence[Generation]) -> Mode:
    """Return a mode that always searches or never searches."""
    correct = [case.judge(answer.text) for case, answer in zip(cases, answers, strict=True)]
    retrieves = name in ("standard", "strong")
    return Mode(name, correct, [answer.prompt_tokens for answer in answers], [retrieves] * len(cases))


def lazy_mode(threshold: float, entropies: Sequence[float], first: Mode, strong: Mode) -> Mode:
    """Return the mode L-RAG at a threshold, computed from both stored answers (Eq. 4)."""
    opens = [entropy > threshold for entropy in entropies]
    return Mode(
        f"lazy, τ = {threshold:g}",
        [s if o else f for o, f, s in zip(opens, first.correct, strong.correct, strict=True)],
        [f + s * o for o, f, s in zip(opens, first.tokens, strong.tokens, strict=True)],
        opens,
    )


def print_modes(modes: Sequence[Mode], standard: Mode) -> None:
    """Print Table I."""
    rows = []
    for mode in modes:
        paper = PAPER_TABLE_1[mode.name]
        change = "" if mode is standard else show(difference(mode.correct, standard.correct), sign=True)
        rate = "" if mode.name == "oracle" else f"{100 * np.mean(mode.retrieved):.0f}"
        rows.append(
            (
                LABELS.get(mode.name, mode.name.replace("lazy", "L-RAG")),
                show(share(mode.correct)),
                change,
                f"{np.mean(mode.tokens):.0f}",
                rate,
                paper[0],
                paper[1],
                paper[2],
            )
        )
    columns = (
        "Mode",
        "right answers, %",
        "right answers minus right answers of always search (standard), points",
        "prompt tokens per question",
        "retriever called, % of the questions",
        "paper: right answers, %",
        "paper: prompt tokens per question",
        "paper: retriever called, % of the questions",
    )
    print_table("Table I", columns, rows, "Tokens of L-RAG count both prompts if the retriever is called.")


def print_entropies(entropies: Sequence[float], correct: Sequence[bool]) -> str:
    """Print the entropies of right and wrong answers (V-D), and return the AUROC."""
    finite = [
        (entropy, right) for entropy, right in zip(entropies, correct, strict=True) if np.isfinite(entropy)
    ]
    wrong = [entropy for entropy, right in finite if not right]
    good = [entropy for entropy, right in finite if right]
    found = separation(wrong, good)
    if found is None:
        return "n/a"
    area = show(found, scale=1, digits=2)
    rows = [
        ("wrong", len(wrong), f"{np.mean(wrong):.2f}", "2.20"),
        ("right", len(good), f"{np.mean(good):.2f}", "1.72"),
    ]
    print_table(
        "Entropy of the first pass, nats",
        ("Answers", "n", "Mean", "Paper"),
        rows,
        f"AUROC of wrong against right: {area}",
    )
    return f"AUROC {area}"


def print_sweep(entropies: Sequence[float], first: Mode, strong: Mode) -> list[float]:
    """Print Table II over a grid of thresholds, and return the retrieval rates."""
    grid = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)
    modes = [lazy_mode(threshold, entropies, first, strong) for threshold in grid]
    rows = [
        (f"{threshold:g}", show(share(mode.retrieved)), show(share(mode.correct)))
        for threshold, mode in zip(grid, modes, strict=True)
    ]
    print_table("Table II and Figure 4", ("τ, nats", "Retrieval, %", "Exact match, %"), rows)
    return [float(np.mean(mode.retrieved)) for mode in modes]


def gate_milliseconds(reader: BaseReader, prompts: Sequence[Prompt]) -> float:
    """Return the median time that the gate's tokens take this process, a question at a time."""
    sampling, times = SamplingParams(max_tokens=MAX_TOKENS, trace="entropy"), []
    for prompt in prompts:
        started = time.process_time()
        for begun in reader.begin([prompt], N_TOKENS, sampling):
            begun.close()
        times.append(1000 * (time.process_time() - started))
    return float(np.median(times))


def print_latency(rates: dict[str, float], milliseconds: float) -> None:
    """Print Table III: milliseconds that a question saves, by the latency of a retrieval (Eq. 8 and 9)."""
    latencies = (200, 500, 1000)
    rows = []
    for name, rate in {**{f"paper, R = {rate}": rate for rate in (0.92, 0.74, 0.54)}, **rates}.items():
        savings = [f"{latency_saving(rate, latency, GATE_MS):+.0f}" for latency in latencies]
        rows.append((name, f"{break_even_latency(rate, GATE_MS):.0f}", *savings))
    columns = ("", "Break-even, ms", *(f"{latency} ms" for latency in latencies))
    print_table(
        "Table III: milliseconds saved",
        columns,
        rows,
        f"The gate takes {GATE_MS} ms, as in the paper; here it took {milliseconds:.0f} ms of a processor.",
    )


def check_component(
    setting: Setting, reader: BaseReader, entropies: Sequence[float], answers: dict[str, list[Generation]]
) -> str:
    """Run the component on up to 50 questions, and count the answers that equal the computed ones.

    If a summary is also among the passages, the component shows it only once; such questions are left out.
    """
    rag = LazyRAG(
        reader,
        LookupRetriever(setting.passages),
        LookupRetriever(setting.summaries),
        threshold=THRESHOLDS[0],
        max_tokens=MAX_TOKENS,
        n_summaries=1,
        top_n=TOP_N,
        abstention=False,
    )
    texts = {
        question: [
            {passage.text for passage in found[question]} for found in (setting.summaries, setting.passages)
        ]
        for question in setting.summaries
    }
    places = [at for at, case in enumerate(setting.cases) if set.isdisjoint(*texts[case.question])][:50]
    results = rag.run_many([setting.cases[place].question for place in places])
    expected = [
        answers["strong" if entropies[place] > THRESHOLDS[0] else "first pass"][place].text
        for place in places
    ]
    equal = sum(result.answer == text for result, text in zip(results, expected, strict=True))
    return f"{equal} of {len(places)}"


# Defaults: every question answered once in each way; gates are compared on the rows.

FIRST_PASSES = ("abstention=False", "default", "asked behind")
"""Forms of the first prompt: without a request to abstain, with it before the context, and after it."""

SAMPLES = (3, 5, 10)
"""Numbers of samples to compare."""

ABSTENTION_BEHIND = PromptTemplate(
    "asked_behind",
    "Context: {context}\nAnswer the question from the context above. "
    "If the context does not tell, reply only: {abstention}\nQuestion: {question}\nAnswer:",
)


def collect_rows(setting: Setting, reader: BaseReader, file: Path) -> list[dict[str, Any]]:
    """Answer each question in each way, and append a row to a file, from which a later run continues."""
    done = len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
    for start in range(done, len(setting.cases), 10):
        cases = setting.cases[start : start + 10]
        prompts: dict[str, list[Prompt]] = {name: [] for name in (*FIRST_PASSES, "always")}
        for case in cases:
            summary = "\n".join(passage.text for passage in setting.summaries[case.question])
            chunks = format_passages(passage.text for passage in setting.passages[case.question])
            first = FROM_CONTEXT.render(context=summary, question=case.question)
            prompts["abstention=False"].append(first)
            prompts["default"].append(with_abstention(first, ABSTENTION))
            prompts["asked behind"].append(
                ABSTENTION_BEHIND.render(context=summary, abstention=ABSTENTION, question=case.question)
            )
            second = FROM_CONTEXT_AND_DETAILS.render(context=summary, details=chunks, question=case.question)
            prompts["always"].append(second)
        answers = {
            name: answers_to(reader, texts, MAX_TOKENS, "entropy", f"Answers, {name}")
            for name, texts in prompts.items()
        }
        sampling = SamplingParams(n=max(SAMPLES), temperature=1.0, max_tokens=MAX_TOKENS)
        samples = samples_of(reader, prompts["default"], sampling)
        with file.open("a", encoding="utf-8") as rows:
            for place, case in enumerate(cases):
                row: dict[str, Any] = {
                    name: row_of(answers[name][place], case.references) for name in answers
                }
                row["samples"] = [
                    (one.text, bool(contains(one.text, case.references))) for one in samples[place]
                ]
                rows.write(
                    json.dumps({"question": case.question, "references": case.references, **row}) + "\n"
                )
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def row_of(answer: Generation, references: Sequence[str]) -> dict[str, Any]:
    """Return an answer as JSON: its text, whether it contains a reference, and its entropies."""
    trace = answer.trace
    assert trace is not None
    assert trace.entropy is not None
    return {
        "text": answer.text,
        "right": bool(contains(answer.text, references)),
        "tokens": answer.prompt_tokens,
        "entropies": trace.entropy.middle,
        "logprobs": trace.logprobs,
    }


def print_gates(rows: Sequence[dict[str, Any]]) -> None:
    """Print for each gate how often it searches, and its loss of right answers to always searching."""
    always = [row["always"]["right"] for row in rows]
    table = [("always", "", "", "100", show(share(always)), "")]
    for asked in FIRST_PASSES:
        gates: list[Gate] = [EntropyGate(n_tokens=n) for n in (1, 4, N_TOKENS, 16, MAX_TOKENS)]
        gates += [EntropyGate(aggregate="max"), MarginGate()]
        grids: list[tuple[float, ...]] = [(0.3, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)] * 6 + [
            (0.1, 0.2, 0.3, 0.5, 0.7)
        ]
        if asked != "abstention=False":
            gates, grids = [AbstentionGate(), *gates], [(0.0,), *grids]
        for gate, grid in zip(gates, grids, strict=True):
            for threshold in grid:
                opens = [opens_gate(row[asked], gate, threshold, asked != "abstention=False") for row in rows]
                right = [row["always" if o else asked]["right"] for row, o in zip(rows, opens, strict=True)]
                name = f"{gate.name} {getattr(gate, 'aggregate', '')} n={gate.n_tokens}"
                loss = show(difference(right, always), sign=True)
                searched = f"{100 * np.mean(opens):.0f}"
                table.append((asked, name, f"{threshold:g}", searched, show(share(right)), loss))
    for gate in (DisagreementGate(n_samples=n) for n in SAMPLES):
        passes = [sampled_pass(row["samples"][: gate.n_samples]) for row in rows]
        scores = [math.inf if is_abstention(one.answer.text) else gate.score(one) or 0.0 for one, _ in passes]
        for threshold in (0.0, 0.3, 0.5, 0.65, 0.9, 1.1, 1.3):
            sides = zip(scores, passes, always, strict=True)
            right = [searched if score > threshold else first for score, (_, first), searched in sides]
            loss = show(difference(right, always), sign=True)
            rate = f"{100 * np.mean(np.array(scores) > threshold):.0f}"
            name = f"{gate.name} n={gate.n_samples}"
            table.append(("default", name, f"{threshold:g}", rate, show(share(right)), loss))
    columns = ("First pass", "Gate", "Threshold", "Searched, %", "Right, %", "to always, points")
    print_table(f"Gates, n = {len(rows)}", columns, table, "Right: the answer contains a reference.")


def sampled_pass(samples: Sequence[tuple[str, bool]]) -> tuple[FirstPass, bool]:
    """Return a first pass of sampled answers, and whether the most typical of them is right."""
    answers = [Generation(text) for text, _ in samples]
    clusters = meaning_clusters([answer.text for answer in answers])
    typical = typical_sample(answers, clusters)
    return FirstPass(typical, tuple(answers), tuple(clusters)), samples[answers.index(typical)][1]


def opens_gate(row: dict[str, Any], gate: Gate, threshold: float, asked: bool) -> bool:
    """Return whether L-RAG searches after a first answer; it also does so if the answer is cut or empty."""
    entropies, logprobs = tuple(row["entropies"]), tuple(row["logprobs"])
    trace = TokenTrace(("",) * len(logprobs), logprobs, EntropyTrace(entropies, entropies, exact=True))
    score = gate.score(FirstPass(Generation(row["text"], trace=trace)))
    unusable = len(logprobs) >= MAX_TOKENS or not row["text"].strip()
    return unusable or (asked and is_abstention(row["text"])) or score is None or score > threshold


if __name__ == "__main__":
    main()
