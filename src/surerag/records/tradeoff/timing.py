"""How long questions take one by one, which a recording in batches cannot tell."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from surerag.decisions.policy import Policy
from surerag.errors import InputError
from surerag.evaluation.rows import Question
from surerag.records.pipeline import Pipeline
from surerag.records.tradeoff.choices import Method
from surerag.records.tradeoff.columns import Times
from surerag.services import Retriever
from surerag.storage import write_whole
from surerag.types import Passage

TIMINGS = "timings.json"


class Clocked:
    """A retriever that counts its own time."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self.seconds = 0.0
        self.times = 0

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Return what the retriever finds."""
        began = time.perf_counter()
        found = self._retriever.retrieve(query, k)
        self.seconds += time.perf_counter() - began
        self.times += 1
        return found


def timed(parts: Pipeline, method: Method, questions: Sequence[Question]) -> Times:
    """Ask some questions one by one, without acting, acting, and without the method.

    Args:
        parts: The pipeline; its thresholds and modes are set aside.
        method: Whose decision is timed.
        questions: At least one.

    Raises:
        InputError: If the pipeline has no such method, or there are no questions.
    """
    if not questions:
        raise InputError("there are no questions to time", hint="give at least one")
    clock, ways = _ways(parts, method)
    texts = [question.text for question in questions]
    for way in ways:
        way(texts[0])  # the first call pays for what is made when it is first used
    clock.seconds, clock.times = 0.0, 0
    means = []
    for way in ways:
        taken = []
        for text in texts:
            began, before = time.perf_counter(), clock.seconds
            way(text)
            taken.append(time.perf_counter() - began - (clock.seconds - before))
        means.append(1000 * float(np.mean(taken)))
    retrieval = 1000 * clock.seconds / clock.times if clock.times else None
    return Times(means[0], means[1], means[2], retrieval, len(texts))


def kept_times(folder: Path, method: Method, alone: int, made: Callable[[], Times]) -> Times:
    """Return the times that a folder holds, or measure and keep them.

    Args:
        folder: Where they are kept.
        method: Whose.
        alone: Questions asked one by one; times of another number are measured again.
        made: Measures them.
    """
    file = folder / TIMINGS
    known = read_times(folder)
    if method not in known or known[method].alone != alone:
        known[method] = made()
        write_whole(file, json.dumps({name: asdict(one) for name, one in known.items()}, indent=2) + "\n")
    return known[method]


def read_times(folder: Path) -> dict[str, Times]:
    """Return the times that a folder holds, by method.

    Raises:
        InputError: If the file holds something else.
    """
    file = folder / TIMINGS
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): Times(**one) for name, one in told.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{file} holds no times: {error}", hint="remove it to measure again") from error


def _ways(parts: Pipeline, method: Method) -> tuple[Clocked, list[Callable[[str], Any]]]:
    """Return a clock, and how a question is answered without acting, acting, and plainly."""
    if method == "dynqr" and parts.rewriter is not None:
        clock = Clocked(parts.rewriter.retriever)
        rewriter = parts.rewriter.with_options(retriever=clock)
        never = rewriter.with_options(threshold=math.inf)
        rewriting = rewriter.with_options(threshold=-math.inf)
        return clock, [never.run, rewriting.run, never.run]
    if parts.lazy is not None and parts.lazy.retriever is not None:
        clock = Clocked(parts.lazy.retriever)
        lazy = parts.lazy.with_options(retriever=clock)
        plain = lazy.with_options(mode="standard")
        if method == "l-rag":
            always = Policy(-math.inf, "best", None, None, 0.95, 0, 1.0, identity=lazy.identity)
            shut = lazy.with_options(mode="lazy", threshold=math.inf)
            return clock, [shut.run, lazy.with_options(mode="lazy", threshold=always).run, plain.run]
        if parts.compressor is not None:
            compressor, given = parts.compressor, lazy.with_options(mode="oracle")

            def compressed(text: str) -> Any:
                shorter = compressor.run(text, clock.retrieve(text, lazy.top_n))
                return given.run(text, oracle=shorter.passages)

            return clock, [plain.run, compressed, plain.run]
    raise InputError(f"the pipeline has no part for {method}", hint="choose another method")
