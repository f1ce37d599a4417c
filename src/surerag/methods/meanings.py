"""Which of several sampled answers mean the same, and how far they disagree."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import combinations, permutations
from typing import Annotated, Literal, NamedTuple

import numpy as np

from surerag.clustering import meaning_clusters
from surerag.decisions.policy import CalibrationWarning
from surerag.effects import Program, entail
from surerag.errors import ConfigurationError, ServiceError
from surerag.measures import same_answer
from surerag.messages import Generation, Pair
from surerag.methods.functions import name_of
from surerag.options import Doc

SameMeaning = Literal["words", "entailment"] | Callable[[str, str], bool]
"""How to tell that two sampled answers mean the same. ``"words"``: the words of one stand in a row in the
other (:func:`surerag.measures.same_answer`), at no cost, for answers of a few words. ``"entailment"``: each
entails the other, says the method's ``entailer``; for answers of a sentence or more. Or a function of two
answers."""

SameMeaningOption = Annotated[
    SameMeaning,
    Doc(
        """How ``"disagreement"`` tells that two sampled answers mean the same: ``"words"`` (those of one
        stand in a row in the other; for answers of a few words), ``"entailment"`` (by the ``entailer``), or a
        function of two answers."""
    ),
]
"""The option ``same_meaning`` of methods that sample answers."""

_ENTAILMENT = 2
"""Column of an entailer's row: contradiction, neutral, entailment."""


class Meanings(NamedTuple):
    """Sampled answers by what they mean.

    Attributes:
        clusters: Meaning cluster of each answer, numbered from 0 in the order of first members.
        judgements: Pairs that an entailer was asked about.
    """

    clusters: tuple[int, ...]
    judgements: int = 0


def meaning_name(same_meaning: SameMeaning) -> str:
    """Return how meanings are told apart, as signals name it.

    Example:
        >>> meaning_name("words"), meaning_name(str.__eq__)
        ('same words', 'same by __eq__')
    """
    if callable(same_meaning):
        return f"same by {name_of(same_meaning)}"
    return {"words": "same words", "entailment": "entailing each other"}[same_meaning]


def check_same_meaning(same_meaning: object) -> None:
    """Refuse what does not tell meanings apart.

    Raises:
        ConfigurationError: If it is neither a known name nor a function.
    """
    if same_meaning not in ("words", "entailment") and not callable(same_meaning):
        raise ConfigurationError(
            f"same_meaning must be words, entailment or a function, got {same_meaning!r}",
            hint="a function takes two answers, and says whether they mean the same",
        )


def meanings_of(
    question: str, samples: Sequence[Generation], same_meaning: SameMeaning, most: float = math.inf
) -> Program[Meanings]:
    """Group sampled answers by meaning (Farquhar et al. 2024); equal texts need no judge.

    Args:
        question: What was asked; an entailer reads answers in its light.
        samples: At least one.
        same_meaning: How to tell.
        most: Pairs that an entailer may be asked about; where more are needed, none is, and no answer has a
            cluster.

    Raises:
        ServiceError: If an entailer returns something other than three probabilities a pair.
    """
    texts = [sample.text.strip() for sample in samples]
    distinct = list(dict.fromkeys(texts))
    judgements = 0
    if same_meaning == "entailment":
        wanted = [Pair(a, b, question) for a, b in permutations(distinct, 2) if a and b]
        if len(wanted) > most:
            return Meanings(())
        entailed = (yield from _entailed(wanted)) if wanted else set()
        judgements = len(wanted)
        same = {(pair.premise, pair.hypothesis) for pair in entailed if _reversed(pair) in entailed}
    else:
        means = same_answer if same_meaning == "words" else same_meaning
        pairs = [pair for pair in combinations(distinct, 2) if means(*pair)]
        same = {*pairs, *((b, a) for a, b in pairs)}
    of_texts = meaning_clusters([[a == b or (a, b) in same for b in distinct] for a in distinct])
    cluster = dict(zip(distinct, of_texts.tolist(), strict=True))
    return Meanings(tuple(cluster[text] for text in texts), judgements)


def typical(samples: Sequence[Generation], clusters: Sequence[int]) -> Generation:
    """Return the first answer of the largest cluster; of clusters of one size, the one that came first.

    Example:
        >>> typical([Generation(text) for text in ("Orun", "Velm", "in Velm")], [0, 1, 1]).text
        'Velm'
    """
    return samples[list(clusters).index(int(np.bincount(clusters).argmax()))]


def warn_if_never_disagreed(signals: Sequence[float]) -> None:
    """Warn if the samples of no question of several disagreed: as a rule, the model does not sample.

    Args:
        signals: Disagreement on each question of a sample.
    """
    if len(signals) > 1 and not any(signals):
        warnings.warn(
            f"the sampled answers agree on all {len(signals)} questions, so no threshold tells these apart; "
            "an LLM that was built to answer at temperature 0 has to be built to sample",
            CalibrationWarning,
            stacklevel=3,
        )


def _entailed(wanted: Sequence[Pair]) -> Program[set[Pair]]:
    """Return the pairs of which the first statement entails the second, by the likeliest label."""
    rows = np.asarray((yield from entail(wanted)), dtype=np.float64)
    if rows.shape != (len(wanted), 3) or not np.isfinite(rows).all():
        raise ServiceError(
            f"expected {len(wanted)} rows of three probabilities, got an array of shape {rows.shape}",
            hint="let the entailer return contradiction, neutral and entailment for each pair",
        )
    return {pair for pair, row in zip(wanted, rows, strict=True) if int(row.argmax()) == _ENTAILMENT}


def _reversed(pair: Pair) -> Pair:
    return Pair(pair.hypothesis, pair.premise, pair.question)
