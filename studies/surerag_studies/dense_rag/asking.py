"""DENSE of every context, other cuts of the same documents, and the refiner with its ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from surerag import (
    AdaptiveChunker,
    Candidates,
    ContextRefiner,
    Dense,
    DenseCache,
    DenseOptions,
    DenseResult,
    RefinementResult,
    drivers,
)
from surerag.drivers.answering import is_local
from surerag.drivers.progress import Progress, Stages
from surerag.effects import Program, generate
from surerag.entailment.labels import ENTAILMENT
from surerag.methods.dense_rag.refinement import Pool
from surerag.methods.dense_rag.result import ChunkReading
from surerag.readers.protocol import Reader
from surerag.retrieval.chunking import chunk_text
from surerag.services import Encoder, Entailer, Services
from surerag.tokens import estimated_tokens
from surerag.types import Pair, Passage, Sampling
from surerag.world.questions import is_correct
from surerag_studies.dense_rag.cases import Case, Library
from surerag_studies.dense_rag.results import Sameness

ANSWER = Sampling(max_tokens=24)
REPHRASE_TOKENS = 64
AT_ONCE = 64
"""Questions whose prompts are read as one batch."""

OPTIONS = DenseOptions()
_MIXED = 7
"""Prompts of a batch that is not all of them; no multiple of anything."""

Cut = Literal["ranked anew", "fixed, half", "sentences", "semantic"]
TAU_QUANTILE = 0.5
"""Share of neighbouring sentences that τ lies above: the paper's 0.6 belongs to another encoder."""

_OVERLAP = 8
"""A piece of fixed length shares one token in so many with the one before, as 64 of 512 in the paper."""

FULL = "chunked, refined"
VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        FULL: {},
        "only removing": {"remove_only": True},
        "no self-evaluation": {"self_evaluation": False},
        "refill on certain": {"refill": "certain"},
        "the text's rules": {"variant": "paper"},
        "refinement alone": {"chunker": None},
    }
)
"""What is changed of the default. The first four are Table 4's; ``"the text's rules"`` are those of section
5.2 where Algorithm 3 says something else; the last one refines what was retrieved, without cutting anew."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One question's context of k passages, measured.

    Attributes:
        case: The question.
        result: What DENSE says.
        correct: Whether the answer from the context is right.
        edited: Whether each of the k answers is right that are given with one passage rephrased.
        rephrased: Whether the answer is right that is given with all of them rephrased.
    """

    case: Case
    result: DenseResult
    correct: bool
    edited: tuple[bool, ...]
    rephrased: bool

    @property
    def score(self) -> float:
        """DENSE, in nats."""
        return self.result.score

    @property
    def uncertain(self) -> bool:
        """Whether the question is uncertain at the method's threshold."""
        return not self.result.certain


def measured(dense: Dense, cases: Sequence[Case], k: int, progress: Progress) -> tuple[Record, ...]:
    """Measure the first k passages of every question."""
    asked = [(case.question.text, case.pool[:k]) for case in cases]
    results = dense.run_many(asked, window=AT_ONCE, progress=progress)
    programs = [_all_rephrased(result) for result in results]
    answers = drivers.run_many(programs, dense.services, window=AT_ONCE)
    return tuple(
        Record(
            case,
            result,
            is_correct(case.question, result.answer),
            tuple(is_correct(case.question, answer) for answer in result.answers[1:]),
            is_correct(case.question, answer),
        )
        for case, result, answer in zip(cases, results, answers, strict=True)
    )


def _all_rephrased(result: DenseResult) -> Program[str]:
    """Answer from a context that says everything in other words."""
    texts = [chunk.rephrased.text for chunk in result.chunks]
    [[answer]] = yield from generate([OPTIONS.answer_prompt(result.question, texts)], ANSWER)
    return answer.text


def same_answers(reader: Reader, records: Sequence[Record], most: int) -> Sameness:
    """Ask alone, in one batch, and in batches of seven in reverse order (the premise of appendix C).

    Args:
        reader: As it is: nothing may be remembered.
        records: Measured questions; contexts of the first ``most`` are asked about.
        most: Questions.
    """
    prompts = []
    for record in records[:most]:
        texts = [passage.text for passage in record.result.passages]
        edits = [[*texts[:at], chunk.rephrased.text, *texts[at + 1 :]] for at, chunk in _edit(record)]
        prompts += [OPTIONS.answer_prompt(record.case.question.text, shown) for shown in (texts, *edits)]
    alone = [reader.generate([prompt], ANSWER)[0][0].text for prompt in prompts]
    together = [row[0].text for row in reader.generate(prompts, ANSWER)]
    back = prompts[::-1]
    mixed = [
        row[0].text
        for start in range(0, len(back), _MIXED)
        for row in reader.generate(back[start : start + _MIXED], ANSWER)
    ][::-1]
    return Sameness(
        len(prompts),
        sum(a == b for a, b in zip(alone, together, strict=True)),
        sum(a == b for a, b in zip(alone, mixed, strict=True)),
    )


def _edit(record: Record) -> list[tuple[int, ChunkReading]]:
    """Return the last passage that could be rephrased, with its place."""
    usable = [
        (at, chunk) for at, chunk in enumerate(record.result.chunks) if chunk.rephrased.outcome == "rephrased"
    ]
    return usable[-1:]


def semantic_chunker(corpus: Library, encoder: Encoder) -> AdaptiveChunker:
    """Return Algorithm 2 with T_max and τ that fit a corpus and an encoder.

    T_max is the longest passage of the corpus, in estimated tokens: in the paper it is the length of the
    pieces that are retrieved at first. τ is the median likeness of neighbouring sentences.
    """
    longest = max(estimated_tokens(passage.text) for passage in corpus.passages)
    chunker = AdaptiveChunker(encoder, chunk_size=longest)
    return chunker.with_quantile(
        [document.text for document in corpus.documents.values()], quantile=TAU_QUANTILE
    )


def cuts(corpus: Library, chunker: AdaptiveChunker) -> dict[Cut, Mapping[str, Sequence[Passage]]]:
    """Return the pieces of every document, by way of cutting and by document.

    ``"ranked anew"`` are the passages as they were: what that changes is their order alone.
    """
    half = chunker.chunk_size // 2
    names = list(corpus.documents)
    whole = list(corpus.documents.values())
    alone = chunker.with_options(similarity_threshold=1.0)
    return {
        "ranked anew": corpus.parts,
        "fixed, half": {
            name: [
                Passage(piece.text, id=f"{name}@{piece.start}")
                for piece in chunk_text(document.text, half, half // _OVERLAP)
            ]
            for name, document in corpus.documents.items()
        },
        "sentences": _by_document(names, alone.passages(whole)),
        "semantic": _by_document(names, chunker.passages(whole)),
    }


def _by_document(names: Sequence[str], chunks: Sequence[Passage]) -> dict[str, list[Passage]]:
    found: dict[str, list[Passage]] = {name: [] for name in names}
    for chunk in chunks:
        found[str(chunk.metadata["document"])].append(chunk)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Recut:
    """A question answered from documents that were cut anew.

    Attributes:
        passages: The k pieces nearest to the question.
        correct: Whether the answer is right.
    """

    passages: tuple[Passage, ...]
    correct: bool


def recut(
    cases: Sequence[Case],
    pieces: Mapping[str, Sequence[Passage]],
    k: int,
    services: Services,
    progress: Progress,
) -> tuple[Recut, ...]:
    """Answer every question from the k nearest pieces of the documents behind what was retrieved."""
    programs = [_answered(case, pieces, k) for case in cases]
    return tuple(drivers.run_many(programs, services, window=AT_ONCE, progress=progress))


def _answered(case: Case, pieces: Mapping[str, Sequence[Passage]], k: int) -> Program[Recut]:
    candidates = [piece for document in case.documents for piece in pieces[document.id]]
    # The refiner's own way to rank, so that its first cut and this are the same.
    ranked = yield from Pool(case.question.text, (), 0).replace(candidates)
    shown = tuple(ranked[:k])
    prompt = OPTIONS.answer_prompt(case.question.text, [piece.text for piece in shown])
    [[answer]] = yield from generate([prompt], ANSWER)
    return Recut(shown, is_correct(case.question, answer.text))


def refiner(
    reader: Reader, entailer: Entailer, chunker: AdaptiveChunker, cache: DenseCache, k: int
) -> ContextRefiner:
    """Return the refiner that all variants are made of."""
    return ContextRefiner(
        reader,
        entailer,
        encoder=chunker.encoder,
        chunker=chunker,
        top_n=k,
        max_chunks=2 * k,
        max_tokens=ANSWER.max_tokens,
        rephrase_tokens=REPHRASE_TOKENS,
        on_failure="raise",
        cache=cache,
    )


def refined(
    default: ContextRefiner, records: Sequence[Record], stages: Stages
) -> dict[str, list[RefinementResult]]:
    """Refine the contexts of some questions by every variant."""
    asked = [
        Candidates(record.case.question.text, record.case.pool, record.case.documents) for record in records
    ]
    return {
        name: default.with_options(**changes).run_many(asked, window=AT_ONCE, progress=stages(name))
        for name, changes in VARIANTS.items()
    }


class NotingEntailer:
    """Another entailer that notes what it said.

    Args:
        entailer: Who judges.

    Attributes:
        verdicts: Whether the first answer of a pair was found to entail the second.
    """

    def __init__(self, entailer: Entailer) -> None:
        self._entailer = entailer
        self.verdicts: dict[Pair, bool] = {}

    @property
    def name(self) -> str:
        """Identity of the model."""
        return self._entailer.name

    @property
    def local(self) -> bool:
        """Whether pairs of many callers should be merged."""
        return is_local(self._entailer)

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return probabilities [pairs, 3]."""
        rows = self._entailer.entail(pairs)
        self.verdicts.update(
            (pair, int(row.argmax()) == ENTAILMENT) for pair, row in zip(pairs, rows, strict=True)
        )
        return rows
