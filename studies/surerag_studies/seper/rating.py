"""The reader as a judge of contexts (SePer, Table 2 and appendix B.2), where it can follow the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from surerag.evaluation.rivals import Rated, RatingJudge
from surerag.readers.protocol import Reader
from surerag_studies.seper.analysis import Record
from surerag_studies.seper.results import Followed

TRIED = 40


def rated(records: Sequence[Record], reader: Reader) -> tuple[list[Record], Followed]:
    """Rate every context by both evaluations of B.2, if the reader answers with numbers at all."""
    judge = RatingJudge(reader)
    cases = [
        Rated(
            record.question.text,
            "\n".join(passage.text for passage in context.passages),
            record.question.answers[0],
        )
        for record in records
        for context in record.contexts
    ]
    tried = judge.direct(cases[:TRIED])
    followed = Followed(int(np.isfinite(tried).sum()), len(tried))
    if not followed.enough:
        return list(records), followed
    # What is no rating after all counts as no contribution.
    values = {
        "Judge, direct": np.nan_to_num(judge.direct(cases)),
        "Judge, reduction": np.nan_to_num(judge.reduction(cases)),
    }
    ends = np.cumsum([len(record.contexts) for record in records])[:-1]
    split = {label: np.split(ratings, ends) for label, ratings in values.items()}
    return [
        replace(record, ratings={label: rows[at].tolist() for label, rows in split.items()})
        for at, record in enumerate(records)
    ], followed
