"""Stage three, preference alignment (DynQR, section 2.2): prefer rewrites with the higher reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from surerag.errors import ConfigurationError, InputError
from surerag.extras import extra
from surerag.journal import OnChange
from surerag.training.rewriter.options import AlignOptions, Reward
from surerag.training.rewriter.pairs import preference_pairs
from surerag.training.rewriter.results import Aligned, StageProgress, named
from surerag.training.rewriter.tables import queries_of, written

PAIRS = "pairs.parquet"
_COLUMN: Mapping[Reward, str] = {
    "uncertainty": "uncertainty", "answer": "correct", "retrieval": "found", "relevance": "relevance",
}  # fmt: skip
_NEEDS: Mapping[Reward, str] = {
    "uncertainty": "rewrites that could be tried",
    "answer": "gold answers",
    "retrieval": "gold answers",
    "relevance": "an encoder",
}


def align(
    samples: str | Path,
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
        samples: The file that :func:`~surerag.training.rewriter.sample` wrote.
        rewriter: Folder (or Hugging Face id) of the distilled rewriter.
        output: Folder for everything; made if it is not there.
        options: What steers this stage; None for the paper's settings.
        on_change: What to do if the folder belongs to a run with other data, models or settings.
        progress: How far it is.

    Raises:
        InputError: If the file cannot be used, or no query has two rewrites of different reward.
        ConfigurationError: If the samples lack the reward, or the folder belongs to another run.
        MissingExtraError: If a package for training is not installed.
    """
    with extra("train"):
        from surerag.training.rewriter.preference import learn_preferences
    options, samples, output = options or AlignOptions(), Path(samples), Path(output)
    triplets: list[tuple[str, str, str]] = []
    queries = 0
    with written(output / PAIRS, "pairs", {"samples": samples.name, "reward": options.reward}) as write:
        for rows in preferences(samples, options):
            queries += 1
            triplets += [(row["query"], row["better"], row["worse"]) for row in rows]
            write(rows)
        if not triplets:
            raise InputError(
                f"in {samples}, no query has two rewrites whose reward ({options.reward}) differs",
                hint="sample more queries, more rewrites, or at a higher temperature",
            )
    model = learn_preferences(triplets, rewriter, output, options, on_change, named(progress, "Aligning"))
    return Aligned(model, output / PAIRS, queries, len(triplets))


def preferences(samples: Path, options: AlignOptions) -> Iterator[list[dict[str, Any]]]:
    """Yield the pairs of each query that has some, as rows of ``pairs.parquet``.

    Raises:
        InputError: If the file cannot be used.
        ConfigurationError: If no rewrite has the reward.
    """
    measured = False
    for rows in queries_of(samples, "samples"):
        rated = [(row, rewarded) for row in rows if (rewarded := reward_of(row, options.reward)) is not None]
        measured = measured or bool(rated)
        pairs = preference_pairs(
            [rewarded for _, rewarded in rated], options.pairs, least_difference=options.least_difference
        )
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

    Example:
        >>> reward_of({"uncertainty": 1.25, "correct": True}, "uncertainty")
        -1.25
        >>> reward_of({"uncertainty": 1.25, "correct": True}, "answer")
        1.0
    """
    value = row.get(_COLUMN[reward])
    if value is None:
        return None
    return -float(value) if reward == "uncertainty" else float(value)
