"""Costs of the stages, estimated without asking or loading a model: calls and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from surerag.errors import ConfigurationError
from surerag.extras import extra
from surerag.methods.dynqr.metrics import SAMPLED
from surerag.prompts import format_passages
from surerag.training.rewriter.alignment import preferences
from surerag.training.rewriter.options import AlignOptions, DistilOptions, FineTuning, SampleOptions
from surerag.training.rewriter.queries import Query
from surerag.training.rewriter.recipe import Stage, settled
from surerag.types import ANSWER_TOKENS, Passage

CountTokens = Callable[[str], int]


class CostLine(NamedTuple):
    """What is asked of one model.

    Attributes:
        what: Who is asked, or trained.
        calls: Generations, retrievals or training steps.
        read: Tokens of prompts, each counted once however many samples it gets; of examples, in training.
        written: Tokens generated, at most.
    """

    what: str
    calls: int
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class StageCost:
    """What a stage would cost from its beginning; what a folder holds already is not asked again.

    Attributes:
        stage: Its name.
        lines: One for each model.
    """

    stage: str
    lines: tuple[CostLine, ...]


def token_counter(base: str | Path) -> CountTokens:
    """Return a function that counts tokens as the base's tokenizer does; other models' counts are alike.

    Raises:
        ConfigurationError: If the tokenizer cannot be loaded.
        MissingExtraError: If transformers is not installed.
    """
    with extra("train"):
        from transformers import AutoTokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(base))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the tokenizer of {str(base)!r} cannot be loaded: {str(error).strip().splitlines()[0]}",
            hint="give a model's Hugging Face id that can be reached, or the folder of a saved one",
        ) from error
    return lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def distil_cost(
    queries: Sequence[Query], options: DistilOptions, count: CountTokens, weights: int
) -> StageCost:
    """Return what :func:`~surerag.training.rewriter.distil` would cost.

    Rewrites are taken to be as long as their queries for the training's tokens, and as long as they may be
    for the teacher's.
    """
    asked = _prompts(queries, options.prompts["rewrite"].render, count)
    learnt = asked + sum(count(query.text) for query in queries)
    return StageCost(
        "distil",
        (
            CostLine("teacher", len(queries), asked, len(queries) * options.rewriting.max_tokens),
            _training("distil", len(queries), learnt, options.fine_tuning, weights),
        ),
    )


def sample_cost(
    queries: Sequence[Query],
    options: SampleOptions,
    count: CountTokens,
    contexts: Sequence[Sequence[Passage]],
) -> StageCost:
    """Return what :func:`~surerag.training.rewriter.sample` would cost if no two rewrites were equal.

    Args:
        queries: To be rewritten.
        options: Of the stage.
        count: Counts tokens.
        contexts: Some contexts of usual length, at least one: what a retriever finds for some queries, or
            passages drawn from the corpus.
    """
    tries = len(queries) * options.rewrites
    question = max((query.text for query in queries), key=len)
    shown = [
        options.prompts["answer"].render(
            passages=format_passages(p.text for p in passages), question=question
        )
        for passages in contexts
    ]
    context = sum(map(count, shown)) / len(shown)
    answers = tries * (1 + (options.n_samples if options.metric in SAMPLED else 0))
    read = _prompts(queries, options.prompts["rewrite"].render, count)
    return StageCost(
        "sample",
        (
            CostLine("rewriter", tries, read, tries * options.rewrite_tokens),
            CostLine("retriever", tries, 0, 0),
            CostLine(
                "reader", answers, round(tries * context), answers * (options.max_tokens or ANSWER_TOKENS)
            ),
        ),
    )


def align_cost(
    queries: Sequence[Query],
    options: AlignOptions,
    count: CountTokens,
    weights: int,
    samples: Path | None = None,
) -> StageCost:
    """Return what :func:`~surerag.training.rewriter.align` would cost; a pair is read once with each rewrite.

    Without a file of samples, every query is taken to have all its pairs, of rewrites as long as the query.
    """
    if samples is not None:
        found = [row for rows in preferences(samples, options) for row in rows]
        prompts = [options.prompts["rewrite"].render(query=row["query"]) for row in found]
        tokens = sum(
            2 * count(prompt) + count(row["better"]) + count(row["worse"])
            for prompt, row in zip(prompts, found, strict=True)
        )
        return StageCost("align", (_training("align", len(found), tokens, options.fine_tuning, weights),))
    pairs = len(queries) * options.pairs
    asked = _prompts(queries, options.prompts["rewrite"].render, count)
    read = 2 * options.pairs * (asked + sum(count(query.text) for query in queries))
    return StageCost("align", (_training("align", pairs, read, options.fine_tuning, weights),))


def _prompts(queries: Sequence[Query], render: Callable[..., str], count: CountTokens) -> int:
    return sum(count(render(query=query.text)) for query in queries)


def _training(stage: Stage, examples: int, tokens: int, settings: FineTuning, weights: int) -> CostLine:
    recipe = settled(settings, stage, max(examples, 1), weights)
    return CostLine("training steps", recipe.steps, recipe.epochs * tokens, 0)
