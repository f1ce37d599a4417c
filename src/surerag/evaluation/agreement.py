"""The same samples judged by other entailment models (SePer, appendix B.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surerag.measures import answer_weights, seper_soft
from surerag.methods.seper.options import SePerOptions
from surerag.methods.seper.scoring import Verdicts, pairs_to_judge
from surerag.services import Entailer

_OPTIONS = SePerOptions()
_ENTAILERS_BATCH = 1_024


def rejudged(rows: Sequence[Mapping[str, Any]], entailer: Entailer) -> NDArray[np.float64]:
    """Return ΔSePer of each row's last step, by the soft kernel, with its answers judged anew.

    Args:
        rows: Lines of ``results.jsonl``: ``question``, ``answers`` (golds), ``steps`` with samples.
        entailer: Judges, each pair once a question.

    Returns:
        ΔSePer, shape [rows]; not a number where a row was not measured.
    """
    found = np.full(len(rows), np.nan)
    for at, row in enumerate(rows):
        step = next((one for one in reversed(row["steps"]) if one), None)
        if row.get("error") or step is None:
            continue
        contexts = [step[side]["answers"] for side in ("before", "after")]
        texts = [[sample["text"] for sample in samples] for samples in contexts]
        pairs = pairs_to_judge(row["question"], texts, row["answers"], _OPTIONS)
        verdicts: dict[tuple[str, str], NDArray[np.float64]] = {}
        for start in range(0, len(pairs), _ENTAILERS_BATCH):
            some = pairs[start : start + _ENTAILERS_BATCH]
            for pair, judged in zip(some, entailer.entail(some), strict=True):
                verdicts[pair.premise, pair.hypothesis] = judged
        known = Verdicts(verdicts, _OPTIONS)
        before, after = (_belief(samples, row["answers"], known) for samples in contexts)
        found[at] = after - before
    return found


def _belief(samples: Sequence[Mapping[str, Any]], golds: Sequence[str], verdicts: Verdicts) -> float:
    texts = [sample["text"] for sample in samples]
    logs = [sample["log_likelihood"] for sample in samples]
    degrees = [[verdicts.degree(text, gold) for gold in golds] for text in texts]
    weights = answer_weights(
        texts, None if None in logs else logs, "frequency" if None in logs else "distinct"
    )
    return seper_soft(weights, degrees, _OPTIONS.rules.golds)
