"""Other ways to cut the same documents, and the answers from what each yields (form of Table 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from surerag import drivers
from surerag.components import AdaptiveChunker
from surerag.drivers.progress import Progress
from surerag.effects import Program, generate
from surerag.evaluation.dense.cases import Case, Library
from surerag.evaluation.dense.measuring import ANSWER, AT_ONCE, PROMPTS
from surerag.methods.compression_types import words_and_marks
from surerag.methods.refinement_pool import Pool
from surerag.retrieval.chunking import chunk_text
from surerag.services import Encoder, Services
from surerag.types import Passage
from surerag.world.questions import is_correct

Cut = Literal["ranked anew", "fixed, half", "sentences", "semantic"]

TAU_QUANTILE = 0.5
"""Share of neighbouring sentences that τ lies above: the paper's 0.6 belongs to another encoder."""

_OVERLAP = 8
"""A piece of fixed length shares one token in so many with the one before, as 64 of 512 in the paper."""


def semantic_chunker(corpus: Library, encoder: Encoder) -> AdaptiveChunker:
    """Return Algorithm 2 with T_max and τ that fit a corpus and an encoder.

    T_max is the longest passage of the corpus, in words and marks: in the paper it is the length of the
    pieces that are retrieved at first. τ is the median likeness of neighbouring sentences.
    """
    longest = max(words_and_marks(passage.text) for passage in corpus.passages)
    chunker = AdaptiveChunker(encoder, t_max=longest)
    return chunker.with_quantile(
        [document.text for document in corpus.documents.values()], quantile=TAU_QUANTILE
    )


def cuts(corpus: Library, chunker: AdaptiveChunker) -> dict[Cut, Mapping[str, Sequence[Passage]]]:
    """Return the pieces of every document, by way of cutting and by document.

    ``"ranked anew"`` are the passages as they were: what that changes is their order alone.
    """
    half = chunker.t_max // 2
    names = list(corpus.documents)
    whole = list(corpus.documents.values())
    alone = chunker.with_settings(tau=1.0)
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
    return tuple(drivers.run_many(programs, services, at_once=AT_ONCE, progress=progress))


def _answered(case: Case, pieces: Mapping[str, Sequence[Passage]], k: int) -> Program[Recut]:
    candidates = [piece for document in case.documents for piece in pieces[document.id]]
    # The refiner's own way to rank, so that its first cut and this are the same.
    ranked = yield from Pool(case.question.text, (), 0).replace(candidates)
    shown = tuple(ranked[:k])
    prompt = PROMPTS.asking(case.question.text, [piece.text for piece in shown])
    [[answer]] = yield from generate([prompt], ANSWER)
    return Recut(shown, is_correct(case.question, answer.text))
