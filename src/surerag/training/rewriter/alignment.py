"""Stage three, preference alignment (DynQR, section 2.2): prefer rewrites with the higher reward."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from surerag.errors import ConfigurationError, InputError
from surerag.extras import extra
from surerag.journal import OnChange
from surerag.training.rewriter.locking import locked
from surerag.training.rewriter.options import AlignOptions, Reward
from surerag.training.rewriter.pairs import preference_pairs
from surerag.training.rewriter.processes import is_first, wait_for_all
from surerag.training.rewriter.results import Aligned, Learnt, StageProgress, named
from surerag.training.rewriter.tables import queries_of, written

PAIRS = "pairs.parquet"
_COLUMN: Mapping[Reward, str] = {
    "uncertainty": "uncertainty", "answer": "correct", "retrieval": "found", "relevance": "relevance",
}  # fmt: skip
_CHANCE: Final = 0.05
_NEEDS: Mapping[Reward, str] = {
    "uncertainty": "rewrites that could be tried",
    "answer": "gold answers",
    "retrieval": "gold answers",
    "relevance": "an encoder",
}

logger = logging.getLogger("surerag")


def align(
    samples: str | Path | Sequence[tuple[str, str, str]],
    rewriter: str | Path,
    output: str | Path,
    options: AlignOptions | None = None,
    *,
    on_change: OnChange = "error",
    progress: StageProgress = False,
) -> Aligned:
    """Pair rewrites by their reward, and fine-tune the distilled rewriter to prefer the better ones.

    ``output`` then holds ``pairs.parquet`` and the folder ``model``, which
    :meth:`surerag.TransformersReader.from_pretrained` loads. A run that is killed goes on from its last
    checkpoint when the same is called again, to the same weights.

    Args:
        samples: The file that :func:`~surerag.training.rewriter.sample` wrote; or triplets of one's own, of
            query, better and worse rewrite.
        rewriter: Folder (or Hugging Face id) of the distilled rewriter.
        output: Folder for everything; made if it is not there.
        options: What steers this stage; None for rates, batches and passes that follow from the data.
        on_change: What to do if the folder belongs to a run with other data, models or settings.
        progress: How far it is.

    Raises:
        InputError: If the file cannot be used, or no query has two rewrites of different reward.
        ConfigurationError: If the samples lack the reward, or the folder belongs to another run.
        MissingExtraError: If a package for training is not installed.
    """
    with extra("train"):
        from surerag.training.rewriter.preference import learn_preferences
    options, output = options or AlignOptions(), Path(output)
    with locked(output):
        if is_first():
            _write_pairs(samples, output / PAIRS, options)
        wait_for_all(cpu=options.fine_tuning.device == "cpu")
        rows = [row for group in queries_of(output / PAIRS, "pairs") for row in group]
        triplets = [(row["query"], row["better"], row["worse"]) for row in rows]
        queries = len({query for query, _, _ in triplets})
        tuned = learn_preferences(triplets, rewriter, output, options, on_change, named(progress, "Aligning"))
    _warn_of_noise(tuned.learnt)
    return Aligned(tuned.model, output / PAIRS, queries, len(triplets), tuned.learnt)


def _write_pairs(
    samples: str | Path | Sequence[tuple[str, str, str]], file: Path, options: AlignOptions
) -> None:
    """Write preferences down, of samples or as they were given."""
    found = False
    if isinstance(samples, str | Path):
        name, groups = Path(samples).name, preferences(Path(samples), options)
    else:
        name, groups = "given", _given(samples)
    with written(file, "pairs", {"samples": name, "reward": options.reward}) as write:
        for rows in groups:
            found = True
            write(rows)
        if not found:
            raise InputError(
                f"in {samples}, no query has two rewrites whose reward ({options.reward}) differs enough",
                hint="sample more queries, more rewrites, or at a higher temperature; or lower "
                "least_difference",
            )


def _given(triplets: Iterable[tuple[str, str, str]]) -> Iterator[list[dict[str, Any]]]:
    for query, better, worse in triplets:
        yield [{"query_id": query, "query": query, "better": better, "worse": worse}]


def _warn_of_noise(learnt: Learnt) -> None:
    """Say so where what was learnt is not told from chance on queries that were held back."""
    if learnt.chance is None:
        logger.warning(
            "%d pairs are too few to hold some back: whether they teach anything is not known",
            learnt.examples,
        )
    elif learnt.chance > _CHANCE:
        logger.warning(
            "the pairs may be noise: of %d held-back queries the better rewrite is preferred for %d "
            "(one-sided sign test, p = %.2g)",
            learnt.held_back,
            learnt.preferred,
            learnt.chance,
        )


def least_difference(samples: Path, reward: Reward) -> float:
    """Return a tenth of the interquartile range of all rewards of a file: less is taken for noise."""
    rewards = [
        found
        for rows in queries_of(samples, "samples")
        for row in rows
        if (found := reward_of(row, reward)) is not None
    ]
    low, high = np.quantile(rewards, [0.25, 0.75]) if rewards else (0.0, 0.0)
    return float(high - low) / 10


def preferences(samples: Path, options: AlignOptions) -> Iterator[list[dict[str, Any]]]:
    """Yield the pairs of each query that has some, as rows of ``pairs.parquet``.

    Raises:
        InputError: If the file cannot be used.
        ConfigurationError: If no rewrite has the reward.
    """
    measured = False
    least = options.least_difference
    least = least_difference(samples, options.reward) if least is None else least
    for rows in queries_of(samples, "samples"):
        rated = [(row, rewarded) for row in rows if (rewarded := reward_of(row, options.reward)) is not None]
        measured = measured or bool(rated)
        pairs = preference_pairs([rewarded for _, rewarded in rated], options.pairs, least_difference=least)
        if pairs:
            yield [
                {
                    "query_id": rows[0]["query_id"],
                    "query": rows[0]["query"],
                    "better": rated[pair.better][0]["rewrite"],
                    "worse": rated[pair.worse][0]["rewrite"],
                    "better_reward": rated[pair.better][1],
                    "worse_reward": rated[pair.worse][1],
                    "difference": pair.difference,
                }
                for pair in pairs
            ]
    if not measured:
        raise ConfigurationError(
            f"no rewrite in {samples} has the reward {options.reward!r}",
            hint=f"sample again with {_NEEDS[options.reward]}, or choose another reward",
        )


def reward_of(row: Mapping[str, Any], reward: Reward) -> float | None:
    """Return what a rewrite is worth, higher for more; None if that was not measured.

    An answer without a word, or that says that there is none, is infinitely uncertain: it says nothing of how
    uncertain, and would rule every pair. So it counts as not measured.

    Example:
        >>> reward_of({"uncertainty": 1.25, "correct": True}, "uncertainty")
        -1.25
        >>> reward_of({"uncertainty": 1.25, "correct": True}, "answer")
        1.0
    """
    value = row.get(_COLUMN[reward])
    if value is None or not math.isfinite(value):
        return None
    return -float(value) if reward == "uncertainty" else float(value)
