"""Asks the systems of a table their questions: ``python -m studies.real.run TABLE --data FOLDER``.

A run is a file from which a killed run continues. The file is not part of the project;
``studies/real/results`` has its summary.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from studies.common import LookupRetriever, console, load_encoder, load_reader
from studies.real import systems as parts
from studies.real.certainty import certainty, noted, smallest_auroc
from studies.real.data import Data, load_2wiki, load_disfl, load_hotpot, load_squad
from studies.real.judging import Choose, judging_systems, ways_to_choose
from studies.real.reading import KeepingReader
from studies.real.systems import MAX_TOKENS, Meter, Setting, answer_from, choosing, searching, share_of_gold
from surerag import (
    ClusterCompressor,
    DenseEvaluator,
    DenseRefiner,
    DenseRefinerResult,
    EDC2Options,
    LazyRAG,
    Passage,
    SePer,
    UncertaintyRewriter,
)
from surerag.entailment import ExactEntailer, JudgeEntailer
from surerag.errors import InputError, SureragError
from surerag.evaluation import EvaluationAnswer, EvaluationRun, Question, evaluate
from surerag.evaluation.findings import problems
from surerag.evaluation.pipelines import PipelineSetup, build_system
from surerag.evaluation.systems import System, as_system
from surerag.measures import contains, token_f1
from surerag.messages import Usage
from surerag.methods.dense.result import best_round
from surerag.prompts import (
    CLOSED_BOOK,
    DENSE_ANSWER,
    DYNQR_ANSWER,
    FROM_CONTEXT,
    FROM_CONTEXT_AND_DETAILS,
    SEPER_FROM_PASSAGES,
    PromptTemplate,
    format_passages,
    with_abstention,
)
from surerag.retrieval import PassageIndex, chunk_text, lead_summary
from surerag.services import Entailer

PROCESS = f"{os.getpid()}@{time.time():.0f}"
"""Name of this process, because several processes may work on a run."""

ABSTENTION = "I do not know."
CHANGED = 0.2
"""Assumed share of questions that one of two systems answers right and the other answers wrong."""
TOP_N = 3

WHETHER_TO_SEARCH = PromptTemplate(
    "ask_whether",
    "Context: {context}\nQuestion: {question}\n"
    "Is the context enough to answer the question? Reply only with yes or no.",
)
WHETHER_SURE = PromptTemplate(
    "ask_whether_sure",
    "Context:\n{context}\nQuestion: {question}\nAnswer: {answer}\n"
    "Is this answer right? Reply only with yes or no.",
)
WHETHER_USEFUL = PromptTemplate(
    "ask_whether_useful",
    "Context:\n{context}\nQuestion: {question}\nReference answer: {answer}\n"
    "How useful is the context to answer the question? Reply only with a number from 0 (useless) to 10 "
    "(it holds the whole answer).",
)


Build = Callable[[Setting], Mapping[str, System]]


def gates(setting: Setting) -> dict[str, System]:
    """L-RAG's Table I: the paragraph of a question is its document, its first two sentences the summary."""
    reader, encoder, data, *_ = setting
    keeping = KeepingReader(reader, setting.decodes)
    summaries: dict[str, list[Passage]] = {}
    passages: dict[str, list[Passage]] = {}
    for item in data.items:
        [paragraph] = item.gold
        summaries[item.text] = [Passage(lead_summary(paragraph.text))]
        chunks = [Passage(chunk.text) for chunk in chunk_text(paragraph.text, 100, 20)]
        passages[item.text] = PassageIndex.from_passages(chunks, encoder).retrieve(item.text, TOP_N)

    def prompt(question: str, mode: str) -> Any:
        summary = "\n".join(one.text for one in summaries[question])
        details = format_passages(one.text for one in passages[question])
        if mode == "never":
            return CLOSED_BOOK.render(question=question)
        if mode == "plain":
            return FROM_CONTEXT.render(context=details, question=question)
        if mode == "always":
            return FROM_CONTEXT_AND_DETAILS.render(context=summary, details=details, question=question)
        first = FROM_CONTEXT.render(context=summary, question=question)
        return first if mode == "summary" else with_abstention(first, ABSTENTION)

    def fixed(mode: str) -> System:
        def answer(question: Question) -> EvaluationAnswer:
            meter = Meter(keeping)
            first = mode.startswith("summary")
            asked = prompt(question.text, mode)
            found, scores = meter.generate_beside(asked, question.references, "entropy" if first else "none")
            scores |= {"searches": float(mode in ("plain", "always"))}
            scores |= noted(found.trace) if first else {}
            return EvaluationAnswer(found.text, (), meter.usage, found.finish, scores=scores)

        return System(mode, answer, {"system": mode, "reader": reader.name})

    def search_if_told(question: Question) -> EvaluationAnswer:
        meter = Meter(reader)
        summary = "\n".join(one.text for one in summaries[question.text])
        reply = meter.generate(WHETHER_TO_SEARCH.render(context=summary, question=question.text), 4)
        enough = reply.text.strip().lower().startswith("yes")
        found = meter.generate(prompt(question.text, "summary" if enough else "always"))
        return EvaluationAnswer(
            found.text, (), meter.usage, found.finish, None, not enough, {"searches": float(not enough)}
        )

    lazy = LazyRAG(
        reader,
        LookupRetriever(passages),
        LookupRetriever(summaries),
        top_n=TOP_N,
        n_summaries=1,
        max_tokens=MAX_TOKENS,
    )
    sampled = lazy.with_options(gate="semantic_entropy", threshold=float("inf"))
    modes = ("never", "plain", "always", "summary", "summary or abstain")
    return {
        **{mode: fixed(mode) for mode in modes},
        "asks whether to search": System("asks whether to search", search_if_told, {"reader": reader.name}),
        "semantic entropy": as_system("semantic entropy", sampled),
        "lazy": as_system("lazy", lazy),
    }


def passages_shown(setting: Setting) -> dict[str, Sequence[Passage]]:
    """Return the passages of each question: its own, or where it has none those that a search finds."""
    _, encoder, data, k, *_ = setting
    if not data.corpus:
        return {item.text: item.passages for item in data.items}
    index = PassageIndex.from_passages(data.corpus, encoder, progress=True)
    return {item.text: tuple(index.retrieve(item.text, k)) for item in data.items}


def judging(setting: Setting) -> dict[str, System]:
    """Choose passages as EDC² does, and in cheaper ways, without answering."""
    shown, few = passages_shown(setting), EDC2Options().n_kept(setting.k)
    ways = ways_to_choose(setting.encoder, shown, few)
    return judging_systems(KeepingReader(setting.reader), shown, ways)


def compression(setting: Setting) -> dict[str, System]:
    """Answer from all passages, from the gold passages, and from compressed contexts."""
    _, encoder, data, k, *_ = setting
    reader, shown = KeepingReader(setting.reader, setting.decodes), passages_shown(setting)
    gold = {item.text: item.gold for item in data.items}
    few = EDC2Options().n_kept(k)

    def compressed(**options: Any) -> System:
        compressor = ClusterCompressor(reader, encoder, **options)

        def answer(question: Question) -> EvaluationAnswer:
            result = compressor.run(question.text, list(shown[question.text]))
            meter = Meter(reader)
            meter.usage += result.usage
            scores = {
                "context_share": result.tokens_after / result.tokens_before,
                "fell_back": float(result.fell_back),
            }
            if not EDC2Options(**options).compresses:
                scores["gold_shown"] = share_of_gold(result.passages, question)
            return answer_from(meter, question.text, result.passages, question.references, **scores)

        return System("", answer, {"system": "compressed", **compressor.to_dict()})

    own = {
        "EDC² extract": compressed(variant="copy"),
        "EDC² extract as in the paper": compressed(variant="paper"),
        f"EDC² top {few} whole": compressed(top_n=few),
        "EDC² answer": build_system(
            "answered", PipelineSetup(reader, LookupRetriever(shown), encoder=encoder, max_tokens=MAX_TOKENS)
        ),
    }
    cheaper: dict[str, parts.Choose] = {
        f"EDC² {name}": partial(_chosen, choose)
        for name, choose in ways_to_choose(encoder, shown, few).items()
    }
    peers = choosing(
        reader,
        shown,
        **cheaper,
        plain=lambda meter, question, passages: passages,
        gold_alone=lambda meter, question, passages: gold[question.text],
        EmbeddingsFilter=parts.with_embeddings_filter(encoder, few),
        SentenceEmbeddingOptimizer=parts.with_sentence_optimizer(encoder, 0.5),
        LLMRerank=parts.with_llm_rerank(few),
        LLMChainExtractor=parts.with_chain_extractor,
    )
    return {**peers, **own}


def _chosen(
    choose: Choose, meter: Meter, question: Question, passages: Sequence[Passage]
) -> Sequence[Passage]:
    return [passages[at] for at in sorted(choose(meter, question.text))]


def rewriting(setting: Setting) -> dict[str, System]:
    """Answer questions with slips of the tongue from the paragraphs of their articles."""
    reader, encoder, data, k, *_ = setting
    index = PassageIndex.from_passages(data.corpus, encoder, progress=True)
    clean = {item.text: item.clean for item in data.items}
    options: dict[str, Any] = {"top_n": k, "max_tokens": MAX_TOKENS}
    components = {
        "DynQR": UncertaintyRewriter(reader, index, **options),
        "DynQR answering the rewrite": UncertaintyRewriter(reader, index, answer="rewrite", **options),
        "rewritten always": UncertaintyRewriter(
            reader, index, threshold=float("-inf"), verify=False, **options
        ),
    }

    def system(name: str, component: UncertaintyRewriter) -> System:
        def answer(question: Question) -> EvaluationAnswer:
            result = component.run(question.text)
            shown = [passage.text for passage in result.chosen.passages]
            scores = {"hit": float(any(text in question.contexts for text in shown))}
            scores |= {
                "searches": 1.0 + len(result.candidates),
                "rewrite kept": float(result.chosen is not result.original),
            }
            scores["perplexity"] = min(result.original.uncertainty, 1e6)
            return EvaluationAnswer(
                result.answer, tuple(shown), result.usage, result.chosen.generation.finish,
                scores["perplexity"], result.acted, scores,
            )  # fmt: skip

        return System(name, answer, {"system": name, **component.to_dict()})

    return {
        **searching(
            reader,
            clean,
            plain=lambda meter, question: index.retrieve(question, k),
            clean_question=lambda meter, question: index.retrieve(clean[question], k),
            RePhraseQuery=parts.with_rephrase_query(index, k),
            MultiQuery=parts.with_multi_query(index, k),
            HyDE=parts.with_hyde(index, encoder, k),
        ),
        **{name: system(name, component) for name, component in components.items()},
    }


def prompts(setting: Setting) -> dict[str, System]:
    """Answer from the same passages with the prompts of the papers."""
    reader, encoder, data, k, *_ = setting
    index = PassageIndex.from_passages(data.corpus, encoder, progress=True)

    def system(name: str, template: PromptTemplate) -> System:
        def answer(question: Question) -> EvaluationAnswer:
            meter = Meter(reader)
            shown = format_passages(one.text for one in index.retrieve(question.text, k))
            slot = "context" if "{context}" in template.text else "passages"
            found = meter.generate(template.render(question=question.text, **{slot: shown}))
            words = float(len(found.text.split()))
            return EvaluationAnswer(found.text, (), meter.usage, found.finish, scores={"words": words})

        return System(name, answer, {"system": name, "reader": reader.name, "prompt": template.text})

    named = {
        "plain": FROM_CONTEXT,
        "DynQR's prompt": DYNQR_ANSWER,
        "DENSE's prompt": DENSE_ANSWER,
        "SePer's prompt": SEPER_FROM_PASSAGES,
    }
    return {name: system(name, template) for name, template in named.items()}


def understanding(setting: Setting) -> dict[str, System]:
    """Scores that should be higher for wrong answers; the system ``plain`` scores plain RAG's answers."""
    reader, encoder, data, k, judges, _ = setting
    index = PassageIndex.from_passages(data.corpus, encoder, progress=True) if data.corpus else None
    own = {item.text: item.passages for item in data.items}

    def passages_of(question: str) -> list[Passage]:
        return list(own[question]) if index is None else index.retrieve(question, k)

    def plain(question: Question) -> EvaluationAnswer:
        meter = Meter(reader)
        passages = passages_of(question.text)
        prompt = FROM_CONTEXT.render(
            context=format_passages(p.text for p in passages), question=question.text
        )
        found = meter.generate(prompt, trace="entropy")
        scores = {}
        if found.trace and len(found.trace):
            trace = found.trace
            scores["log-perplexity"] = -sum(trace.logprobs) / len(trace)
            if trace.entropy:
                scores["entropy"] = sum(trace.entropy.middle) / len(trace)
        return EvaluationAnswer(found.text, (), meter.usage, found.finish, scores=scores)

    def sure(question: Question) -> EvaluationAnswer:
        meter = Meter(reader)
        passages = passages_of(question.text)
        context = format_passages(passage.text for passage in passages)
        answer = answer_from(meter, question.text, passages).text
        meter.usage = Usage()
        prompt = WHETHER_SURE.render(context=context, question=question.text, answer=answer)
        reply = meter.generate(prompt, 2, "logprobs")
        yes = reply.text.strip().lower().startswith("yes")
        first = 2.718281828 ** reply.trace.logprobs[0] if reply.trace and len(reply.trace) else 0.5
        doubt = 1 - first if yes else first
        return EvaluationAnswer(answer, (), meter.usage, reply.finish, scores={"doubt": doubt})

    lazy = LazyRAG(
        reader,
        LookupRetriever({item.text: passages_of(item.text) for item in data.items}),
        LookupRetriever({item.text: passages_of(item.text) for item in data.items}),
        gate="semantic_entropy",
        threshold=float("inf"),
        n_summaries=k,
        max_tokens=MAX_TOKENS,
        abstention=False,
    )

    def sampled(question: Question) -> EvaluationAnswer:
        result = lazy.run(question.text)
        score = result.decision.score or 0.0
        return EvaluationAnswer(result.answer, (), result.usage, scores={"semantic entropy": score})

    once = parts.FirstSamples(reader, 1)  # the answers are greedy, and the same whoever judges them

    def understood(score: str, entailer: Entailer) -> Callable[[Question], EvaluationAnswer]:
        dense = DenseEvaluator(once, entailer, max_tokens=MAX_TOKENS)

        def answer(question: Question) -> EvaluationAnswer:
            result = dense.run(question.text, passages_of(question.text))
            scores = {score: result.score or 0.0}
            return EvaluationAnswer(result.answer or "", (), result.usage, scores=scores)

        return answer

    named = {
        "plain": plain,
        "are you sure?": sure,
        "semantic entropy": sampled,
        "DENSE": understood("DSE", ExactEntailer()),
    }
    if judges:
        named["DENSE judged"] = understood("DSE, the reader judges", JudgeEntailer(reader))
    return {name: System(name, f, {"system": name, "reader": reader.name}) for name, f in named.items()}


def refining(setting: Setting) -> dict[str, System]:
    """Answer from the nearest passages, and from refined contexts; other passages are candidates."""
    reader, encoder, data, *_ = setting
    nearest = {
        item.text: PassageIndex.from_passages(list(item.passages), encoder).retrieve(
            item.text, len(item.passages)
        )
        for item in data.items
    }
    gold = {item.text: item.gold for item in data.items}
    refiner = DenseRefiner(reader, ExactEntailer(), encoder, top_n=TOP_N, max_tokens=MAX_TOKENS)

    def refined(question: Question) -> EvaluationAnswer:
        result = refiner.run(question.text, nearest[question.text])
        meter = Meter(reader)
        meter.usage += result.usage
        answer = answer_from(
            meter,
            question.text,
            result.passages,
            DSE=result.rounds[0].measured.score if result.rounds else 0.0,
            rounds=float(len(result.rounds)),
            gold_shown=share_of_gold(result.passages, question),
            **of_fewer_rounds(question, result),
        )
        return replace(answer, acted=result.stopped != "certain")

    def of_fewer_rounds(question: Question, result: DenseRefinerResult) -> dict[str, float]:
        right: dict[str, float] = {}
        for most in range(1, len(result.rounds)):
            best = best_round(result.rounds[:most])
            assert best is not None
            found = answer_from(Meter(reader), question.text, best.measured.passages)
            right[f"right after {most} rounds"] = float(contains(found.text, question.references))
        return right

    def first(n: int) -> parts.Choose:
        return lambda meter, question, passages: nearest[question.text][:n]

    ways: dict[str, parts.Choose] = {"plain": first(TOP_N), f"plain_{2 * TOP_N}": first(2 * TOP_N)}
    peers = choosing(reader, nearest, **ways, gold_alone=lambda meter, question, _: gold[question.text])
    return {**peers, "DENSE refined": System("DENSE refined", refined, {"system": "r", **refiner.to_dict()})}


def worth(setting: Setting) -> dict[str, System]:
    """Measure the worth of all gold passages, of one gold passage, and of distractors."""
    reader, _, data, _, judges, _ = setting
    items = data.by_text
    samples = parts.FirstSamples(reader, 20)
    seper = SePer(samples, ExactEntailer(), max_tokens=16)
    variants = {
        "ΔSePer": seper,
        **{f"ΔSePer, {n} samples": seper.with_options(n_samples=n) for n in (2, 5, 20)},
        "ΔSePer, hard kernel": seper.with_options(kernel="hard"),
        "ΔSePer, paper's variant": seper.with_options(variant="paper"),
        "ΔSePer, official variant": seper.with_options(variant="official"),
    }
    if judges:
        variants["ΔSePer, the reader judges"] = SePer(samples, JudgeEntailer(reader), max_tokens=16)

    def contexts_of(question: str, kind: str) -> list[Passage]:
        item = items[question]
        others = [passage for passage in item.passages if passage not in item.gold]
        gold = list(item.gold)
        return {"gold": gold, "half": gold[:1], "distractors": others[: len(gold)]}[kind]

    def system(kind: str) -> System:
        def answer(question: Question) -> EvaluationAnswer:
            passages = contexts_of(question.text, kind)
            case = (question.text, list(question.references), passages)
            results = {name: variant.run(*case) for name, variant in variants.items()}
            meter = Meter(reader)
            without = meter.generate(CLOSED_BOOK.render(question=question.text)).text
            found = answer_from(meter, question.text, passages)
            context = format_passages(passage.text for passage in passages)
            prompt = WHETHER_USEFUL.render(
                context=context, question=question.text, answer=question.references[0]
            )
            digits = "".join(c for c in meter.generate(prompt, 4).text if c.isdigit())
            scores = {
                **{name: result.delta for name, result in results.items()},
                "difference of token F1": token_f1(found.text, question.references)
                - token_f1(without, question.references),
                "difference of right answers": float(contains(found.text, question.references))
                - float(contains(without, question.references)),
                "hit": float(any(contains(passage.text, question.references) for passage in passages)),
                "LLM judge": min(10.0, float(digits or 0)) / 10,
            }
            return EvaluationAnswer(found.text, (), results["ΔSePer"].usage, scores=scores)

        return System(kind, answer, {"system": kind, "reader": reader.name, **seper.to_dict()})

    return {kind: system(kind) for kind in ("gold", "half", "distractors")}


TABLES: dict[str, Build] = {
    "gates": gates,
    "compression": compression,
    "judging": judging,
    "rewriting": rewriting,
    "prompts": prompts,
    "understanding": understanding,
    "refining": refining,
    "worth": worth,
    "certainty": certainty,
}


def load_data(arguments: argparse.Namespace) -> Data:
    """Return the data of a table, as the command line describes them.

    Raises:
        InputError: If the data cannot be read, or have no question at this place.
    """
    folder, n, seed, articles = arguments.data, arguments.n, arguments.seed, arguments.articles
    try:
        if arguments.set in HOTPOT:
            places = slice(arguments.skip, arguments.skip + n)
            data = load_hotpot(folder / HOTPOT[arguments.set], places, arguments.k, arguments.repeats)
        elif arguments.set == "2wiki":
            data = load_2wiki(folder, n, seed, arguments.k)
        else:
            data = (load_disfl if arguments.set == "disfl" else load_squad)(folder, n, seed, articles)
    except InputError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"the set {arguments.set} cannot be read from {folder}: {type(error).__name__}: {error}",
            hint="name the folder with the files that studies/real/data.py lists, as published",
        ) from error
    if not data.items:
        raise InputError(f"{data.name} has no question at this place", hint="lower --skip")
    return data


HOTPOT = {
    "hotpot": "hotpotqa_100.json",
    "hotpot-dev": "hotpot_dev_distractor_v1.json",
    "hotpot-hard": "hotpot_100.json",
}
WITH_PASSAGES = (*HOTPOT, "2wiki")
SETS: dict[str, tuple[str, ...]] = {
    "gates": ("squad", "disfl"),
    "compression": (*HOTPOT, "2wiki", "squad", "disfl"),
    "judging": (*HOTPOT, "2wiki", "squad", "disfl"),
    "rewriting": ("disfl",),
    "prompts": ("disfl", "squad"),
    "understanding": ("squad", "disfl", *WITH_PASSAGES),
    "refining": WITH_PASSAGES,
    "worth": WITH_PASSAGES,
    "certainty": ("squad", "disfl", *WITH_PASSAGES),
}
"""Data sets for each table; the first is the default."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--reader", required=True, help="hub id, folder, demo, or ADDRESS#MODEL of a server")
    parser.add_argument("--dtype", help="number type of a local reader, such as bfloat16")
    parser.add_argument("--set", choices=SETS["compression"], help="data set")
    parser.add_argument(
        "--articles",
        type=lambda text: re.split(",(?!_)", text),  # one is Fresno,_California
        default=[],
        help="titles of SQuAD's articles, separated by commas",
    )
    parser.add_argument("--n", type=int, default=200, help="number of questions; all, if the set has fewer")
    parser.add_argument("--skip", type=int, default=0, help="number of questions of HotpotQA to skip")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--k", type=int, default=0, help="number of passages to show or retrieve")
    parser.add_argument(
        "--repeats", type=int, default=0, help="how many of HotpotQA's k passages repeat others"
    )
    parser.add_argument(
        "--reader-judges", action="store_true", help="the reader also judges which answers mean the same"
    )
    parser.add_argument(
        "--references-alone",
        action="store_true",
        help="measure only how likely references are (compression and gates, with a local reader)",
    )
    parser.add_argument(
        "--systems",
        type=lambda text: text.split(","),
        default=[],
        help="names of systems, separated by commas; all by default",
    )
    parser.add_argument("--at-a-time", type=int, default=8, help="number of concurrent questions")
    parser.add_argument("--run", type=Path, required=True, help="file of the run")
    found = parser.parse_args(arguments)
    found.set = found.set or SETS[found.table][0]
    for option, sets in (
        ("set", SETS[found.table]),
        ("articles", ("squad", "disfl")),
        ("skip", tuple(HOTPOT)),
        ("repeats", tuple(HOTPOT)),
    ):
        if getattr(found, option) and found.set not in sets:
            what = found.table if option == "set" else f"--{option}"
            parser.error(f"{what} goes with --set {' or '.join(sets)}, and not with {found.set}")
    if found.reader_judges and found.table not in ("understanding", "worth"):
        parser.error("--reader-judges is for understanding and worth")
    if found.references_alone and found.table not in ("compression", "gates"):
        parser.error("--references-alone is for compression and gates")
    if min(found.n, found.at_a_time) < 1 or min(found.skip, found.k, found.repeats) < 0:
        parser.error("--n and --at-a-time are 1 or more, --skip, --k and --repeats 0 or more")
    if found.reader == "demo" and found.set in ("hotpot", "2wiki"):
        parser.error(
            "the demo's reader was trained on these questions; take --set hotpot-dev, squad or disfl"
        )
    found.k = found.k or (10 if found.set in WITH_PASSAGES else TOP_N)
    return found


def main() -> None:
    """Ask the missing questions; expected errors print one line."""
    logging.getLogger("surerag").setLevel(logging.ERROR)
    try:
        ask_missing(parse())
    except SureragError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit("Interrupted; every answer is stored. The same command continues the run.")


def ask_missing(arguments: argparse.Namespace) -> None:
    """Ask the systems of a table the questions whose answers are not in the run."""
    started = time.monotonic()
    data = load_data(arguments)
    EvaluationRun(arguments.run, create=True).close()  # refuses a file that cannot be one
    reader, encoder = load_reader(arguments.reader, arguments.dtype), load_encoder()
    setting = Setting(
        reader, encoder, data, arguments.k, arguments.reader_judges, not arguments.references_alone
    )
    chosen = TABLES[arguments.table](setting)
    if unknown := set(arguments.systems) - set(chosen):
        raise InputError(
            f"there is no system {', '.join(sorted(unknown))}", hint=f"choose from {', '.join(chosen)}"
        )
    chosen = {
        name: metered(one, cpu_file(arguments.run))
        for name, one in chosen.items()
        if not arguments.systems or name in arguments.systems
    }
    console.print(what_can_be_shown(len(data.items), arguments.table))
    label = f"{arguments.table}: {len(data.items)} questions of {data.name}, {len(chosen)} systems"
    run: EvaluationRun = evaluate(
        chosen,
        [item.question for item in data.items],
        arguments.run,
        metrics=("contains", "exact_match", "f1"),
        at_a_time=arguments.at_a_time,
        on_change="ask",
        progress=True,
    )
    for sentence in problems(run, {name: name for name in run.systems}):
        console.print(sentence)
    run.close()
    console.print(f"{label}: {time.monotonic() - started:.0f} s")


def what_can_be_shown(n: int, table: str) -> str:
    """Return a sentence with the difference that n questions show in four runs of five, at 5 %."""
    if table in ("certainty", "understanding"):
        return f"{n} questions show an AUROC of {smallest_auroc(n):.2f}, if 35 % of the answers are wrong."
    errors = (1.96 + 0.84) / math.sqrt(n)
    points = 100 * errors * math.sqrt(CHANGED)
    if table == "judging":
        return (
            f"{n} questions show a difference of {points:.0f} points, if the gold passages of as many change."
        )
    told = f"{n} questions show a difference of {points:.0f} points, if {CHANGED:.0%} of the answers change"
    if table not in ("compression", "gates"):
        return f"{told}."
    return f"{told}; of {errors:.2f} nats a token of the reference, if its differences spread by 1."


def cpu_file(run: Path) -> Path:
    """Return the file with the CPU seconds that each process has spent on a run."""
    return run.with_suffix(".cpu")


def metered(system: System, file: Path) -> System:
    """Return a system that stores the CPU seconds after each answer, so that a killed run keeps them."""

    def answer(question: Question) -> Any:
        try:
            return system.answer(question)
        finally:
            with file.open("a", encoding="utf-8") as notes:
                notes.write(f"{PROCESS} {time.process_time():.2f}\n")

    return replace(system, answer=answer)


def cpu_hours(run: Path) -> float:
    """Return the hours of CPU that all processes spent on a run."""
    spent = {}
    for at, line in enumerate(cpu_file(run).read_text(encoding="utf-8").splitlines()):
        process, _, seconds = line.rpartition(" ")
        spent[process or at] = float(seconds)
    return sum(spent.values()) / 3600


if __name__ == "__main__":
    main()
