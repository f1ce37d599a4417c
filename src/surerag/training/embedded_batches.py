"""Batches for training the embedded reader: a function of seed and step."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import PreTrainedTokenizerFast

from surerag.training.embedded_draw import Difficulty, Draw
from surerag.training.embedded_tasks import TASKS, Example
from surerag.training.embedded_tokenizer import marks
from surerag.world.core import core_facts


@dataclass(frozen=True, slots=True)
class Stage:
    """From a step on: what share each task has, and how hard the examples are."""

    start: int
    shares: Mapping[str, float]
    level: Difficulty


CURRICULUM: tuple[Stage, ...] = (
    Stage(0, {"read": 0.85, "core": 0.15}, Difficulty(passages=3, absent=0.0, vague=0.0, long=0.0)),
    Stage(
        250,
        {
            "read": 0.30, "two-hop": 0.13, "core": 0.08, "beside": 0.06, "rephrase": 0.09, "rewrite": 0.09,
            "entail": 0.09, "suff": 0.08, "extract": 0.08,
        },
        Difficulty(passages=5, absent=0.05, vague=0.08, long=0.0),
    ),
    Stage(
        600,
        {
            "read": 0.24, "two-hop": 0.20, "core": 0.07, "beside": 0.08, "rephrase": 0.07, "rewrite": 0.06,
            "entail": 0.08, "suff": 0.10, "extract": 0.09, "summary": 0.01,
        },
        Difficulty(passages=8, absent=0.1, long=0.0),
    ),
    # What tells whether something is there comes late, and then needs a larger share.
    Stage(
        750,
        {
            "read": 0.18, "two-hop": 0.14, "core": 0.05, "beside": 0.07, "rephrase": 0.07, "rewrite": 0.03,
            "entail": 0.16, "suff": 0.18, "extract": 0.11, "summary": 0.01,
        },
        Difficulty(passages=8, absent=0.1, long=0.0),
    ),
    Stage(
        1250,
        {
            "read": 0.24, "two-hop": 0.18, "core": 0.07, "beside": 0.08, "rephrase": 0.08, "rewrite": 0.05,
            "entail": 0.07, "suff": 0.11, "extract": 0.11, "summary": 0.01,
        },
        Difficulty(passages=20, absent=0.1, long=0.15),
    ),
    Stage(
        1500,
        {
            "read": 0.22, "two-hop": 0.06, "core": 0.04, "beside": 0.05, "rephrase": 0.06, "rewrite": 0.02,
            "entail": 0.20, "suff": 0.22, "extract": 0.12, "summary": 0.01,
        },
        Difficulty(passages=20, absent=0.08, long=0.10),
    ),
    Stage(
        1750,
        {
            "read": 0.24, "two-hop": 0.05, "core": 0.03, "beside": 0.04, "rephrase": 0.04, "rewrite": 0.01,
            "entail": 0.22, "suff": 0.22, "extract": 0.14, "summary": 0.01,
        },
        Difficulty(passages=20, absent=0.08, long=0.08, words=0.7),
    ),
)  # fmt: skip


def stage_at(step: int) -> Stage:
    """Return the stage that a step belongs to."""
    return [stage for stage in CURRICULUM if stage.start <= step][-1]


class Batch(NamedTuple):
    """Padded token ids [batch, length], weights of the loss [batch, length] on predicting the next token."""

    ids: Tensor
    weight: Tensor
    tasks: tuple[str, ...]


class Encoded(NamedTuple):
    """One conversation as ids; ``weight[i]`` is how much the prediction of ``ids[i + 1]`` counts."""

    task: str
    ids: list[int]
    weight: list[float]


class Encoder:
    """Turns conversations into ids exactly as the chat template does."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._encode = tokenizer.backend_tokenizer.encode
        self._marks = marks(tokenizer)

    def words(self, text: str) -> list[int]:
        """Return the ids of a text, a space put before the first word of every line."""
        ids: list[int] = self._encode(text.replace("\n", "\n "), add_special_tokens=False).ids
        return ids

    def conversation(self, example: Example) -> Encoded:
        """Return the ids of a conversation, and which of them to learn."""
        ids: list[int] = []
        weight: list[float] = []
        for user, answer in example.turns:
            prompt = [self._marks.user, *self.words(user), self._marks.end, self._marks.assistant]
            target = [*self.words(answer), self._marks.end]
            ids += prompt + target
            # The last token of the prompt predicts the first of the answer; a long answer counts more
            # than a short one, but not by its length.
            weight += [0.0] * (len(prompt) - 1) + [len(target) ** -0.5] * len(target) + [0.0]
        return Encoded(example.task, ids, weight)


def collate(rows: Sequence[Encoded], pad: int) -> Batch:
    """Pad rows on the right to a common length, a multiple of 8."""
    length = math.ceil(max(len(r.ids) for r in rows) / 8) * 8
    ids = torch.tensor([r.ids + [pad] * (length - len(r.ids)) for r in rows])
    weight = torch.tensor([r.weight + [0.0] * (length - len(r.weight)) for r in rows])
    return Batch(ids, weight, tuple(r.task for r in rows))


class Batches(IterableDataset[Batch]):
    """Endless batches from a step on, each of about ``tokens`` tokens and of rows of like length."""

    GROUP = 16

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        seed: int,
        first: int,
        tokens: int,
        without: frozenset[str],
    ) -> None:
        self._tokenizer = tokenizer
        self._seed, self._first, self._tokens, self._without = seed, first, tokens, without

    def __iter__(self) -> Iterator[Batch]:
        encoder = Encoder(self._tokenizer)
        group = self._first // self.GROUP
        skip = self._first % self.GROUP
        while True:
            yield from self._group(encoder, group)[skip:]
            group, skip = group + 1, 0

    def _group(self, encoder: Encoder, group: int) -> list[Batch]:
        rng = random.Random(f"surerag.training {self._seed} {group}")
        stage = stage_at(group * self.GROUP)
        shares = {task: share for task, share in stage.shares.items() if task not in self._without}
        level = replace(stage.level, vague=0.0) if "vague" in self._without else stage.level
        rows: list[Encoded] = []
        size = 0
        while size < self._tokens * self.GROUP:
            task = rng.choices(list(shares), list(shares.values()))[0]
            row = encoder.conversation(TASKS[task](Draw(rng, level)))
            size += len(row.ids)
            rows.append(row)
        rows.sort(key=lambda row: len(row.ids))
        cuts = [0]
        taken = 0
        for index, row in enumerate(rows):
            taken += len(row.ids)
            if taken >= len(cuts) * size / self.GROUP and len(cuts) < self.GROUP:
                cuts.append(index + 1)
        cuts.append(len(rows))
        pad = marks(self._tokenizer).pad
        batches = [collate(rows[a:b], pad) for a, b in pairwise(cuts)]
        rng.shuffle(batches)
        return batches


def yield_to_trainer(worker: int) -> None:
    """Set up a process that makes batches: one thread, behind the trainer."""
    torch.set_num_threads(1)
    os.nice(5)


def probe_sets(encoder: Encoder, pad: int, size: int) -> dict[str, list[Batch]]:
    """Fixed examples, one turn each, in held-out phrasings, for the curves."""
    base = Difficulty(passages=5, absent=0.0, single=1.0, held_out=False, vague=0.0, long=1.0)
    settings: dict[str, tuple[str, Difficulty]] = {
        "read1": ("read", replace(base, passages=1)),
        "read5": ("read", base),
        "read5h": ("read", replace(base, held_out=True)),
        "read20": ("read", replace(base, passages=20)),
        "core-h": ("core", replace(base, held_out=True)),
        "beside": ("beside", base),
        "two-hop": ("two-hop", base),
        "entail": ("entail", base),
        "suff": ("suff", base),
        "extract": ("extract", base),
        "rewrite": ("rewrite", base),
    }
    sets: dict[str, list[Batch]] = {}
    for name, (task, level) in settings.items():
        rows: list[Encoded] = []
        number = 0
        while len(rows) < size:
            rng = random.Random(f"surerag.training probe {name} {number}")
            number += 1
            probe = _probe(task, TASKS[task](Draw(rng, level)))
            if probe is not None:
                rows.append(encoder.conversation(probe))
        rows.sort(key=lambda row: len(row.ids))
        sets[name] = [collate(rows[at : at + 24], pad) for at in range(0, size, 24)]
    return sets


def _probe(task: str, example: Example) -> Example | None:
    """Keep the first turn, unless chance alone decides its answer."""
    first = example.turns[:1]
    if task in {"core", "beside"}:
        known = any(
            fact.entity in first[0].user and fact.value == first[0].answer for fact in core_facts().values()
        )
        if not known:
            return None
    if task == "read" and len(first[0].answer.split()) > 1:
        return None
    return Example(task, first)
