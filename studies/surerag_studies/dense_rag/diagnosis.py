"""Where answers are lost: the candidates, the reader, the judge, the labels, or the choice between rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from surerag import RefinementResult
from surerag.entailment.labels import ENTAILMENT
from surerag.evaluation.statistics import share
from surerag.methods.dense_rag.result import ChunkReading, Round
from surerag.types import Pair
from surerag.world.language import Fact
from surerag.world.questions import is_correct
from surerag_studies.dense_rag.analysis import Answered
from surerag_studies.dense_rag.asking import Record
from surerag_studies.dense_rag.cases import tells, tells_all, tells_any
from surerag_studies.dense_rag.results import Reason
from surerag_studies.judging import AliasEntailer

CANDIDATES, READER, REPHRASER, JUDGE = "candidates", "reader", "rephraser", "judge"
EVALUATION, LABELS, CHOICE = "self-evaluation", "labels", "choice"


def diagnosis(
    records: Sequence[Record], refined: Answered | None, verdicts: Mapping[Pair, bool]
) -> tuple[Reason, ...]:
    """Return every line of the diagnosis.

    Args:
        records: All questions.
        refined: What the full method made of the uncertain ones; None where there are none.
        verdicts: What the entailer said about pairs of answers.
    """
    uncertain = [record for record in records if record.uncertain]
    results = () if refined is None else refined.results
    return (
        *_candidates(uncertain, results),
        *_reader(records),
        *_rephraser(records),
        *_judge(records, verdicts),
        *_evaluation(uncertain, results),
        *_labels(uncertain, results),
        *_choice(uncertain, results),
    )


def stops(results: Iterable[RefinementResult]) -> tuple[tuple[str, int], ...]:
    """Return why refinements ended, the most frequent reason first."""
    return tuple(Counter(result.stopped for result in results).most_common())


def _candidates(uncertain: Sequence[Record], results: Sequence[RefinementResult]) -> list[Reason]:
    """What is needed has to be there before anything can be mended; questions known by heart are left out."""
    some = [
        (record, result)
        for record, result in zip(uncertain, results, strict=True)
        if not record.case.question.taught
    ]
    places = {
        "all that is needed is in the first context": [
            tells_all(record.result.passages, record.case.facts) for record, _ in some
        ],
        "… in what was retrieved": [tells_all(record.case.pool, record.case.facts) for record, _ in some],
        "… in the documents behind it": [
            tells_all(record.case.documents, record.case.facts) for record, _ in some
        ],
        "… in the nearest chunks cut anew": [
            tells_all(result.rounds[1].measured.passages, record.case.facts)
            for record, result in some
            if result.rounds[0].rechunked and len(result.rounds) > 1
        ],
        "… in some context of the refiner": [
            any(tells_all(one.measured.passages, record.case.facts) for one in result.rounds)
            for record, result in some
        ],
        "… in the context that was kept": [
            tells_all(result.passages, record.case.facts) for record, result in some
        ],
    }
    return [_reason(CANDIDATES, what, flags) for what, flags in places.items()]


def _reader(records: Sequence[Record]) -> list[Reason]:
    told = [(record, tells_all(record.result.passages, record.case.facts)) for record in records]
    fresh = [(record, known) for record, known in told if not record.case.question.taught]
    return [
        _reason(READER, "right where the context tells all", [r.correct for r, known in fresh if known]),
        _reason(READER, "right where it does not", [r.correct for r, known in fresh if not known]),
        _reason(READER, "right where it knows by heart", [r.correct for r, _ in told if _taught(r)]),
        _reason(
            READER, "uncertain where the context tells all", [r.uncertain for r, known in fresh if known]
        ),
        _reason(READER, "uncertain where it does not", [r.uncertain for r, known in fresh if not known]),
        _reason(READER, "uncertain where it knows by heart", [r.uncertain for r, _ in told if _taught(r)]),
    ]


def _taught(record: Record) -> bool:
    return record.case.question.taught


def _rephraser(records: Sequence[Record]) -> list[Reason]:
    chunks = [chunk for record in records for chunk in record.result.chunks]
    kept = [
        all(tells(chunk.rephrased.text, fact) for fact in facts)
        for record in records
        for chunk in record.result.chunks
        if chunk.rephrased.outcome == "rephrased" and (facts := _told(chunk, record.case.facts))
    ]
    return [
        _reason(
            REPHRASER, "passages said in other words", [c.rephrased.outcome == "rephrased" for c in chunks]
        ),
        _reason(REPHRASER, "what is needed survives it", kept),
    ]


def _told(chunk: ChunkReading, facts: Sequence[Fact]) -> list[Fact]:
    return [fact for fact in facts if tells(chunk.passage.text, fact)]


def _judge(records: Sequence[Record], verdicts: Mapping[Pair, bool]) -> list[Reason]:
    """Against the world's accepted forms, on the pairs that came up: ones of different texts."""
    pairs = list(verdicts)
    if not pairs:
        return []
    truth = AliasEntailer(record.case.question for record in records)
    same = (truth.entail(pairs).argmax(axis=1) == ENTAILMENT).tolist()
    said = [verdicts[pair] for pair in pairs]
    return [
        _reason(JUDGE, "finds entailment between different answers", _where(said, same, wanted=False)),
        _reason(JUDGE, "finds it between forms of one answer", _where(said, same, wanted=True)),
    ]


def _where(flags: Sequence[bool], groups: Sequence[bool], *, wanted: bool) -> list[bool]:
    return [flag for flag, group in zip(flags, groups, strict=True) if group == wanted]


def _evaluation(uncertain: Sequence[Record], results: Sequence[RefinementResult]) -> list[Reason]:
    seen = [
        (one.sufficient, tells_all(one.measured.passages, record.case.facts))
        for record, result in zip(uncertain, results, strict=True)
        for one in result.rounds
        if one.sufficient is not None
    ]
    return [
        _reason(EVALUATION, "says enough where it is", [bool(said) for said, told in seen if told]),
        _reason(EVALUATION, "says enough where it is not", [bool(said) for said, told in seen if not told]),
    ]


def _labels(uncertain: Sequence[Record], results: Sequence[RefinementResult]) -> list[Reason]:
    rounds = [
        (record, one)
        for record, result in zip(uncertain, results, strict=True)
        for one in result.rounds
        if any(chunk.masked_answer is not None for chunk in one.measured.chunks)
    ]
    labelled = [
        (chunk.label, tells_any(chunk.passage, record.case.facts))
        for record, one in rounds
        for chunk in one.measured.chunks
        if chunk.masked_answer is not None
    ]
    return [
        _reason(
            LABELS,
            "uncertain chunks that tell something needed: unnecessary",
            [label == "unnecessary" for label, telling in labelled if telling],
        ),
        _reason(
            LABELS,
            "uncertain chunks that tell nothing needed: unnecessary",
            [label == "unnecessary" for label, telling in labelled if not telling],
        ),
        _reason(LABELS, "a round lost a needed fact by removing", [_lost(r, one) for r, one in rounds]),
        _reason(
            LABELS,
            "chunks that came tell something needed",
            [tells_any(new.passage, record.case.facts) for record, one in rounds for new in one.added],
        ),
    ]


def _lost(record: Record, one: Round) -> bool:
    gone = {passage.text for passage in one.removed}
    stays = [passage for passage in one.measured.passages if passage.text not in gone]
    return any(
        tells_all(one.measured.passages, [fact]) and not tells_all(stays, [fact])
        for fact in record.case.facts
    )


def _choice(uncertain: Sequence[Record], results: Sequence[RefinementResult]) -> list[Reason]:
    both = list(zip(uncertain, results, strict=True))
    some = [
        any(is_correct(record.case.question, one.measured.answer) for one in result.rounds)
        for record, result in both
    ]
    kept = [is_correct(record.case.question, result.answer or "") for record, result in both]
    last = [is_correct(r.case.question, result.rounds[-1].measured.answer) for r, result in both]
    first = [result.best is result.rounds[0] for _, result in both if result.rounds]
    return [
        _reason(CHOICE, "some context gave the right answer", some),
        _reason(CHOICE, "the kept one did", kept),
        _reason(CHOICE, "the last one did", last),
        _reason(CHOICE, "the first context was kept", first),
    ]


def _reason(about: str, what: str, flags: Sequence[bool]) -> Reason:
    return Reason(about, what, share(flags) if flags else None)
