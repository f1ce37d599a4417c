"""``surerag doctor``: what a model can do, and what each method will therefore do with it, and at which cost.

Whether a method can run is found out by building it over the model; what it costs follows from the defaults
of its options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from surerag.cli.display import console, errors, staged
from surerag.cli.readers import ReaderChoice
from surerag.clustering import dynamic_cluster_sizes
from surerag.encoders import HashingEncoder
from surerag.entailment import JudgeEntailer
from surerag.errors import CapabilityError, SureragError
from surerag.methods.dense_rag.component import Dense
from surerag.methods.dense_rag.options import RefinerOptions
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.edc2.component import ClusterCompressor
from surerag.methods.lazy_rag.component import FixedSummary, LazyRAG
from surerag.methods.seper.component import SePer
from surerag.readers.openai import Probe
from surerag.readers.protocol import BaseReader

WELL, LACKING, UNKNOWN = 0, 1, 2
"""Exit codes: every method can run; some cannot; the model could not be examined."""

_PASSAGES = RefinerOptions.top_n
"""Passages of a question in the examples of cost."""

_TEXT = FixedSummary("A passage.")


@dataclass(frozen=True, slots=True)
class Examined:
    """A model, and what was found out about it.

    Attributes:
        reader: The model.
        probe: What its server answered; None for a model in this process.
    """

    reader: BaseReader
    probe: Probe | None = None

    def requests(self, answers: int, contexts: int) -> str:
        """Say in how many requests answers to some contexts are asked for."""
        if self.probe is None:
            return "in one batch"
        found = contexts if self.probe.samples else answers
        return f"in {found} request{'s' if found > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a method will do with a model.

    Attributes:
        method: Its name.
        does: What it will do; empty if it cannot run.
        cost: Roughly, for one question.
        change: The setting to change where something is missing.
    """

    method: str
    does: str = ""
    cost: str = ""
    change: str = ""


def run_doctor(choice: ReaderChoice) -> int:
    """Examine a model, print what was found, and return the exit code."""
    try:
        with staged() as stages, stages.working("Asking the model"):
            examined = _examined(choice)
    except SureragError as error:
        errors.print(f"[bold red]Error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        return UNKNOWN
    console.print(description(examined), markup=False, highlight=False, soft_wrap=True)
    verdicts = diagnose(examined)
    console.print(_table(verdicts))
    for verdict in verdicts:
        if verdict.change:
            console.print(
                f"{verdict.method}: {verdict.change}", markup=False, highlight=False, soft_wrap=True
            )
    for line in _advice(examined):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return WELL if all(verdict.does for verdict in verdicts) else LACKING


def description(examined: Examined) -> str:
    """Say what the model can do."""
    if examined.probe is not None:
        return str(examined.probe)
    can = examined.reader.capabilities
    thinking = {
        "none": "not known to",
        "off": "no, it was told not to",
        "apart": "yes; its thoughts are told from the answer",
    }
    rows = [
        ("log-probabilities", "yes" if can.logprobs else "no"),
        ("entropies", can.entropy or "no"),
        ("energies", "yes" if can.energy else "no"),
        ("scoring of given text", "yes" if can.score else "no"),
        ("stops after n tokens", "yes, and goes on from there" if can.begin == "native" else "no"),
        ("streaming", "yes" if can.stream else "no"),
        ("thinks before it answers", thinking[can.thinking]),
    ]
    return "\n".join([examined.reader.name, *(f"  {label:<30}{value}" for label, value in rows)])


def diagnose(examined: Examined) -> list[Verdict]:
    """Return what each of the five methods will do with a model."""
    methods: list[tuple[str, Callable[[Examined], Verdict]]] = [
        ("L-RAG", _lazy_rag),
        ("ΔSePer", _seper),
        ("EDC²-RAG", _edc2),
        ("DENSE-RAG", _dense),
        ("DynQR", _dynqr),
    ]
    return [_verdict(name, examine, examined) for name, examine in methods]


def _verdict(name: str, examine: Callable[[Examined], Verdict], examined: Examined) -> Verdict:
    """Build a method over a model; what it refuses is the verdict."""
    try:
        return examine(examined)
    except SureragError as error:
        return Verdict(name, change=str(error))


def _lazy_rag(examined: Examined) -> Verdict:
    try:
        rag = LazyRAG(examined.reader, retriever=_TEXT, summaries=_TEXT)
    except CapabilityError as error:
        rag = LazyRAG(examined.reader, retriever=_TEXT, summaries=_TEXT, gate="disagreement")
        return Verdict(
            "L-RAG",
            f'with gate="disagreement": gates on how far {rag.n_samples} sampled answers disagree, at '
            f"{rag.boundary():g} nats",
            f"{rag.n_samples} answers, {examined.requests(rag.n_samples, 1)}; and 1 where they disagree",
            str(error),
        )
    can, n = examined.reader.capabilities, rag.gate_tokens
    kind = "as intervals" if can.entropy == "bounded" else "exact"
    first = f"{n} tokens" if can.begin == "native" else "a whole answer"
    return Verdict(
        "L-RAG",
        f"gates on the {rag.aggregate} entropy of the answer's first {n} tokens ({kind}), "
        f"at {rag.boundary():g} nats",
        f"1 answer where the gate stays shut; {first} and 1 answer where it opens",
    )


def _seper(examined: Examined) -> Verdict:
    seper = SePer(examined.reader, JudgeEntailer(examined.reader))
    weighed = seper.rules.weights != "frequency" and examined.reader.capabilities.logprobs
    drawn = 2 * seper.n_samples
    return Verdict(
        "ΔSePer",
        "weighs each answer by its likelihood" if weighed else "weighs each answer by how often it comes",
        f"2 × {seper.n_samples} answers of at most {seper.max_tokens} tokens, {examined.requests(drawn, 2)}, "
        "and their entailments",
        "" if weighed else "weights by likelihood need a model that returns log-probabilities",
    )


def _edc2(examined: Examined) -> Verdict:
    compressor = ClusterCompressor(examined.reader, HashingEncoder())
    rules, found = compressor.rules, 4 * _PASSAGES
    first = 3 if rules.first_cluster_size == "auto" else rules.first_cluster_size
    sizes = dynamic_cluster_sizes(found, first, rules.max_cluster_size, rules.count_root)
    return Verdict(
        "EDC²-RAG",
        "compresses clusters of passages; needs text alone",
        f"{len(sizes)} answers for {found} passages, in {len(sizes)} clusters",
    )


def _dense(examined: Examined) -> Verdict:
    dense, k = Dense(examined.reader), _PASSAGES
    judged = "by the model itself" if dense.judges_in_words else "by a classifier"
    return Verdict(
        "DENSE-RAG",
        "compares answers from rephrased passages; needs text alone",
        f"1 + 2k = {1 + 2 * k} answers for k = {k} passages, and up to k (k + 1) = {k * (k + 1)} judgements "
        + judged,
    )


def _dynqr(examined: Examined) -> Verdict:
    try:
        rewriter = UncertaintyRewriter(examined.reader, _TEXT)
    except CapabilityError as error:
        rewriter = UncertaintyRewriter(examined.reader, _TEXT, metric="disagreement")
        drawn = rewriter.n_samples + 1
        return Verdict(
            "DynQR",
            f'with metric="disagreement": rewrites where {rewriter.n_samples} sampled answers disagree by '
            f"more than {rewriter.boundary():g} nats",
            f"{drawn} answers; where they disagree {rewriter.candidates} rewrite and as many again for each",
            str(error),
        )
    answers = 1 + rewriter.candidates
    return Verdict(
        "DynQR",
        f"rewrites where the {rewriter.metric} of the answer exceeds {rewriter.boundary():g}",
        f"1 answer; where it is uncertain {rewriter.candidates} rewrite and {answers} answers in all",
    )


def _advice(examined: Examined) -> list[str]:
    """Return what the model's own settings could make better."""
    lines = []
    can, probe = examined.reader.capabilities, examined.probe
    if can.thinking == "apart":
        off = probe is not None and probe.answers_at_once
        how = (
            "--no-thinking (thinking=False) has it answer at once"
            if off
            else "nothing that was tried stops it"
        )
        lines.append(f"It thinks before each of these answers, which costs more tokens: {how}.")
        if not can.logprobs:
            lines.append(
                "Without thinking it may return log-probabilities: try doctor --no-thinking."
                if off
                else "Some models return log-probabilities once they do not think, as OpenAI's from gpt-5.1 "
                'on with reasoning_effort="none".'
            )
    if probe is not None and probe.raw_logprobs is False:
        lines.append(
            "Its log-probabilities are those after temperature, and not used: have the server return the "
            "model's own (vLLM: --logprobs-mode raw_logprobs)."
        )
    if probe is not None and probe.logprobs and not probe.top_logprobs:
        lines.append(
            "It lists no alternatives to a token, so there are no entropies: allow top_logprobs there."
        )
    return lines


def _table(verdicts: list[Verdict]) -> Table:
    table = Table("Method", "Runs", "What it will do", "Cost of a question, roughly")
    for verdict in verdicts:
        table.add_row(
            verdict.method, "yes" if verdict.does else "no", verdict.does or "–", verdict.cost or "–"
        )
    return table


def _examined(choice: ReaderChoice) -> Examined:
    if choice.base_url is None:
        return Examined(choice.build())
    reader = choice.connected(choice.base_url)
    probe = reader.probe()
    return Examined(reader, probe)
