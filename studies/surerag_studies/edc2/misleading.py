"""EDC²-RAG's three pipelines in the paper's regime: noise that misleads, and more than the reader reads well.

The study of :mod:`surerag_studies.edc2.study` asks from contexts whose noise does not mislead, and a reader
that reads such contexts at 96 to 100 % leaves nothing to gain. Here what surrounds the answer contradicts it:
an outdated statement, copies with one detail changed, the article of a namesake. Contexts are as long as the
embedded readers read well (20 passages) and longer (60, twice what they were trained on), and the smaller
reader is asked too.

The pipelines are plain RAG, section 4.3 (compress, then answer; alone and with ``bridging=1``), appendix C.2
(each cluster answers, then consensus), and appendix C.1 (judge: compress, then choose between a true and a
false answer, as on HaluEval). The embedded readers were never taught the prompts of C.1 and C.2, and cannot
follow them: for C.2 they answer in a word by the prompt that they know, at the paper's temperature, and the
consensus is the majority of equal words; for C.1 they choose the answer that is likelier to them. How a
reader does that weighs evidence as the paper's prompts ask cannot be seen here.

Why compression gains or loses is seen in what it kept of the answer and of a false one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from surerag import ClusterCompressor, drivers
from surerag.drivers.progress import Stages, counted_not_logged
from surerag.effects import Program, generate, score
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.formatting import percent_with_interval, plain_table
from surerag.evaluation.statistics import Proportion, share
from surerag.journal import Memory
from surerag.prompts import FROM_CONTEXT, format_passages
from surerag.readers.protocol import BaseReader, Capabilities
from surerag.recording import RecordedReader
from surerag.services import Encoder
from surerag.tokens import estimated_tokens
from surerag.types import Passage, Prompt, Sampling, TokenTrace
from surerag.world.lexicon import words
from surerag.world.questions import Question, is_correct, normalise
from surerag.world.regimes import TODAY, regime
from surerag.world.spec import Hazard
from surerag.world.world import World
from surerag_studies.asking import RememberingEncoder
from surerag_studies.edc2.contexts import ranked
from surerag_studies.formatting import points
from surerag_studies.transfer import carrying
from surerag_studies.worlds import world_of

Kind = Literal["clean", "stale", "altered", "namesake"]
Pipeline = Literal["plain", "extract", "bridged", "consensus", "choice", "judged"]
Kept = Literal["the answer alone", "both", "the false one alone", "neither"]

KINDS: tuple[Kind, ...] = ("clean", "stale", "altered", "namesake")
PIPELINES: tuple[Pipeline, ...] = ("plain", "extract", "bridged", "consensus", "choice", "judged")
REFERENCES: Mapping[Pipeline, Pipeline] = MappingProxyType(
    {"extract": "plain", "bridged": "plain", "consensus": "plain", "judged": "choice"}
)
"""What each pipeline is compared with: the same question put in the same way, from all passages."""
TOP_K = (20, 60)
WINDOW = 1_800
"""Tokens of context that plain RAG may read: the embedded reader's window, less room for the rest."""

_NOISE = 0.2
"""Share of the other passages that have nothing to do with the question; the rest are hard distractors."""
_ANSWER = Sampling(max_tokens=24)
_HAZARDS = {"altered": ("altered-copies", Hazard.ALTERED), "namesake": ("namesakes", Hazard.NAMESAKE)}
_ASK_CLUSTER = f"{{examples}}{FROM_CONTEXT.text.replace('{context}', '{passages}')}"
_TITLES = {
    "plain": "Plain RAG",
    "extract": "4.3: extract",
    "bridged": "4.3, bridging",
    "consensus": "C.2, majority",
    "choice": "Plain, choice",
    "judged": "C.1, choice",
}
_SAID = {
    "clean": "nothing contradicts",
    "stale": "outdated statement",
    "altered": "altered copies",
    "namesake": "a namesake",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One question answered by one pipeline."""

    correct: bool
    context_tokens: int
    calls: int
    fell_back: bool
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class KeptFigures:
    """Questions of which a compression (section 4.3) kept the same.

    Attributes:
        hops: Facts that the question needs.
        kept: The answer, a false one of the same kind (what misleads, or else what stands nearby), or both.
        n: Questions.
        plain: Of these, right from all passages.
        compressed: Of these, right from what was kept.
    """

    hops: int
    kept: Kept
    n: int
    plain: int
    compressed: int


@dataclass(frozen=True, slots=True)
class PipelineFigures:
    """One pipeline in one cell.

    Attributes:
        pipeline: Which.
        accuracy: Share of right answers.
        against_plain: Accuracy less that from all passages on the same questions; None for those.
        context_tokens: Mean tokens of what the last prompt showed.
        calls: Mean calls before it.
        fell_back: Share of questions for which every cluster yielded nothing.
    """

    pipeline: Pipeline
    accuracy: Proportion
    against_plain: PairedDifference | None
    context_tokens: float
    calls: float
    fell_back: float


@dataclass(frozen=True, slots=True)
class MisleadingCell:
    """One reader, one kind of noise, one length of context."""

    reader: str
    kind: Kind
    top_k: int
    n: int
    pipelines: tuple[PipelineFigures, ...]
    kept: tuple[KeptFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class MisleadingStudy:
    """Every figure of the study."""

    seed: int
    n: int
    encoder: str
    cells: tuple[MisleadingCell, ...]


def misleading_study(
    readers: Sequence[tuple[str, BaseReader]],
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    kinds: Sequence[Kind] = KINDS,
    top_k: Sequence[int] = TOP_K,
    stages: Stages = lambda _: False,
) -> MisleadingStudy:
    """Answer questions by the three pipelines from contexts that mislead.

    Args:
        readers: Compress and answer; each with the name that tables show.
        encoder: Ranks and clusters.
        seed: Of the worlds, one that nothing was tuned on.
        n: Questions a cell, at most: as many as the world has about which there is such a hazard.
        kinds: What misleads.
        top_k: Passages in a context.
        stages: Told how far each stage is.
    """
    vectors = RememberingEncoder(encoder)
    cells = []
    for kind in kinds:
        world, questions = _asked(kind, seed, n)
        for k in top_k:
            drawn = [draw(world, question, kind, k) for question in questions]
            contexts = ranked(drawn, [question.text for question in questions], vectors)
            for name, reader in readers:
                bench = _Bench(reader)
                asked = vectors.encode([question.text for question in questions], "query")
                found = {}
                for pipeline in PIPELINES:
                    programs = [
                        bench.program(pipeline, *case)
                        for case in zip(questions, contexts, asked, strict=True)
                    ]
                    stage = stages(f"{name}, {_SAID[kind]}, top-k {k}: {pipeline}")
                    with counted_not_logged():
                        found[pipeline] = drivers.run_many(
                            programs, bench.services, window=64, progress=stage
                        )
                cells.append(
                    MisleadingCell(name, kind, k, len(questions), _figures(found), _kept(questions, found))
                )
    return MisleadingStudy(seed, n, encoder.name, tuple(cells))


def _asked(kind: Kind, seed: int, n: int) -> tuple[World, list[Question]]:
    """Return a world and questions about which there is what misleads."""
    if kind not in _HAZARDS:
        world = world_of(TODAY, n, seed)
        return world, [question for question in world.questions(n) if question.gold_passages]
    name, hazard = _HAZARDS[kind]
    world = world_of(regime(name), 4 * n, seed)
    found = [
        question
        for question in world.questions(4 * n)
        if question.hazard is hazard and question.misleading and question.gold_passages
    ]
    return world, found[:n]


def draw(world: World, question: Question, kind: Kind, k: int) -> list[Passage]:
    """Draw a context that holds what answers a question, and what misleads about it."""
    wrong = [world.passage[name] for name in question.misleading] if kind in _HAZARDS else []
    drawn = world.context(question, k, noise=_NOISE, stale=kind == "stale")
    gold, misleading = set(question.gold_passages), {passage.id for passage in wrong}
    spare = [passage for passage in drawn if passage.id not in gold | misleading]
    needed = [passage for passage in drawn if passage.id in gold]
    return [*needed, *wrong, *spare][:k]


def false_answer(question: Question, passages: Sequence[Passage]) -> str:
    """Return a value of the right kind that is not the answer: what misleads, or else what stands nearby."""
    values = {word.lower(): word for word in words(question.value_kind)}
    right = {question.answers[0].lower(), question.entity.lower()}
    misleads = [one for one in passages if one.id in question.misleading or "outdated" in one.metadata]
    told = normalise(" ".join(passage.text for passage in (*misleads, *passages))).split()
    return next(values[word] for word in (*told, *values) if word in values and word not in right)


def kept_of(question: Question, passages: Sequence[Passage], shown: Sequence[Passage]) -> Kept:
    """Return which of the answer and a false one is left in what is shown of some passages."""
    told = f" {normalise(' '.join(passage.text for passage in shown))} "
    right = any(f" {normalise(answer)} " in told for answer in question.answers)
    if f" {normalise(false_answer(question, passages))} " in told:
        return "both" if right else "the false one alone"
    return "the answer alone" if right else "neither"


class _Once(RecordedReader):
    """Asks each question once; answers that are offered are scored each time."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, score=self._reader.capabilities.score)

    def score(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        return self._reader.score(prompts, continuations)


class _Bench:
    def __init__(self, reader: BaseReader) -> None:
        self._count: Callable[[str], int] = getattr(reader, "count_tokens", estimated_tokens)
        once = _Once(reader, Memory())
        self._compressor = ClusterCompressor(once, max_tokens=96, count_tokens=self._count)
        self._bridged = self._compressor.with_options(bridging=1)
        self._answering = self._compressor.with_options(
            consensus="majority", max_tokens=24, prompts={"answer_with_evidence": _ASK_CLUSTER}
        )
        self.services = self._compressor.services

    def program(
        self,
        pipeline: Pipeline,
        question: Question,
        passages: Sequence[Passage],
        vector: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    ) -> Program[Record]:
        if pipeline == "consensus":
            found = yield from self._answering.answer_program(question.text, passages, vector)
            return Record(
                is_correct(question, found.answer),
                sum(self._count(text) for text in found.candidates),
                found.calls,
                found.compression.fell_back,
            )
        shown: Sequence[Passage] = passages
        calls, fell_back, kept = 0, False, None
        if pipeline not in ("plain", "choice"):
            compressor = self._bridged if pipeline == "bridged" else self._compressor
            result = yield from compressor.program(question.text, passages, query_vector=vector)
            shown, calls, fell_back = result.passages, result.calls, result.fell_back
            kept = kept_of(question, passages, shown)
        context = format_passages(passage.text for passage in self._within_window(shown))
        prompt = FROM_CONTEXT.render(context=context, question=question.text)
        if pipeline in ("choice", "judged"):
            offered = [question.answers[0], false_answer(question, passages)]
            traces = yield from score([prompt] * 2, offered)
            right, wrong = (float(np.mean(trace.logprobs)) for trace in traces)
            return Record(right > wrong, self._count(context), calls, fell_back)
        [[answer]] = yield from generate([prompt], _ANSWER)
        return Record(is_correct(question, answer.text), self._count(context), calls, fell_back, kept)

    def _within_window(self, passages: Sequence[Passage]) -> Sequence[Passage]:
        sums = accumulate(self._count(passage.text) + 4 for passage in passages)
        return passages[: sum(1 for _ in takewhile(lambda total: total <= WINDOW, sums))]


def _figures(found: dict[Pipeline, list[Record]]) -> tuple[PipelineFigures, ...]:
    right = {pipeline: [record.correct for record in records] for pipeline, records in found.items()}
    return tuple(
        PipelineFigures(
            pipeline,
            share(right[pipeline]),
            paired_difference(right[pipeline], right[REFERENCES[pipeline]])
            if pipeline in REFERENCES
            else None,
            float(np.mean([record.context_tokens for record in records])),
            float(np.mean([record.calls for record in records])),
            float(np.mean([record.fell_back for record in records])),
        )
        for pipeline, records in found.items()
    )


def _kept(questions: Sequence[Question], found: dict[Pipeline, list[Record]]) -> tuple[KeptFigures, ...]:
    groups: dict[tuple[int, Kept], list[tuple[bool, bool]]] = {}
    for question, plain, one in zip(questions, found["plain"], found["extract"], strict=True):
        if one.kept is not None:
            groups.setdefault((question.hops, one.kept), []).append((plain.correct, one.correct))
    return tuple(
        KeptFigures(hops, kept, len(pairs), sum(before for before, _ in pairs), sum(now for _, now in pairs))
        for hops in sorted({hops for hops, _ in groups})
        for kept in get_args(Kept)
        if (pairs := groups.get((hops, kept)))
    )


def study_tables(study: MisleadingStudy) -> RenderableType:
    """Return the study's tables, and where compression wins and loses."""
    heading = Text.assemble(
        ("EDC²-RAG where noise misleads", "bold"),
        f", seed {study.seed}, n = {study.n:,} a cell at most; encoder {study.encoder}\n",
        "Differences are paired, in points, with 95 % intervals.\n",
        "C.2 by majority, C.1 by likelihood: the embedded readers cannot follow the paper's prompts.\n"
        "C.1 is compared with the same choice from all passages.",
    )
    parts: list[RenderableType] = [heading]
    for name in dict.fromkeys(cell.reader for cell in study.cells):
        table = plain_table(f"Reader {name}", padding=(0, 1, 0, 0))
        for column in ("Noise", "k", "n", "Pipeline", "Accuracy, %", "vs plain", "Tokens", "Calls"):
            table.add_column(column, justify="right" if column in ("k", "n", "Tokens", "Calls") else "left")
        for cell in study.cells:
            if cell.reader != name:
                continue
            for at, row in enumerate(cell.pipelines):
                first = (_SAID[cell.kind], str(cell.top_k), str(cell.n)) if at == 0 else ("", "", "")
                table.add_row(
                    *first,
                    _TITLES[row.pipeline],
                    percent_with_interval(row.accuracy),
                    "" if row.against_plain is None else points(row.against_plain),
                    f"{row.context_tokens:.0f}",
                    f"{row.calls:.1f}",
                    end_section=at == len(cell.pipelines) - 1,
                )
        parts.append(carrying(table, "numbers of calls"))
        parts.append(_kept_table(name, [cell for cell in study.cells if cell.reader == name]))
    parts.append(verdicts(study))
    return Group(*parts)


def _kept_table(reader: str, cells: Sequence[MisleadingCell]) -> RenderableType:
    title = f"What section 4.3 kept, reader {reader}, and who was right with it"
    table = plain_table(title, padding=(0, 1, 0, 0))
    for column in ("Noise", "k", "Facts", "Kept", "n", "Plain", "Compressed"):
        table.add_column(column, justify="left" if column in ("Noise", "Kept") else "right")
    for cell in cells:
        for at, row in enumerate(cell.kept):
            first = (_SAID[cell.kind], str(cell.top_k)) if at == 0 else ("", "")
            figures = (row.n, row.plain, row.compressed)
            table.add_row(
                *first, str(row.hops), row.kept, *map(str, figures), end_section=at == len(cell.kept) - 1
            )
    return table


def verdicts(study: MisleadingStudy) -> Text:
    """Say where each pipeline wins against plain RAG, and where it loses; an interval on 0 says neither."""
    lines = []
    for pipeline in REFERENCES:
        won: list[str] = []
        lost: list[str] = []
        open_ = 0
        for cell in study.cells:
            row = next(one for one in cell.pipelines if one.pipeline == pipeline)
            gap = row.against_plain
            named = f"{cell.reader}, {_SAID[cell.kind]}, k {cell.top_k}"
            if gap is None or gap.low <= 0 <= gap.high:
                open_ += 1
            else:
                (won if gap.low > 0 else lost).append(named)
        lines.append(
            f"{_TITLES[pipeline]}: wins in {len(won)} cells ({'; '.join(won) or '–'}), loses in {len(lost)} "
            f"({'; '.join(lost) or '–'}), undecided in {open_}."
        )
    return Text("\n".join(lines))
