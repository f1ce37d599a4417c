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

from surerag.world.core import core_facts
from surerag.world.language import Fact
from surerag.world.relations import RELATIONS
from surerag_studies.reader.drawing import Difficulty, Draw
from surerag_studies.reader.tasks import TASKS, Example
from surerag_studies.reader.tokenizer import marks


@dataclass(frozen=True, slots=True)
class Stage:
    """From a step on: what share each task has, and how hard the examples are."""

    start: int
    shares: Mapping[str, float]
    level: Difficulty


CURRICULUM: tuple[Stage, ...] = (
    # To look up by name: one relation, so that nothing but the name tells the facts apart.
    Stage(
        0,
        {"read": 0.5, "extract": 0.5},
        Difficulty(
            absent=0.0, single=0.1, vague=0.0, long=0.0, alike=1.0, relations=1, bare=1.0, canonical=1.0,
            turns=12,
        ),
    ),
    # By name and relation.
    Stage(
        304,
        {"read": 0.45, "extract": 0.45, "core": 0.10},
        Difficulty(
            absent=0.0, single=0.1, vague=0.0, long=0.0, alike=0.9, bare=0.8, canonical=0.5, turns=12
        ),
    ),
    # In many phrasings, among other sentences; then what goes beyond looking up.
    Stage(
        640,
        {"read": 0.40, "extract": 0.22, "two-hop": 0.10, "core": 0.08, "entail": 0.10, "rephrase": 0.10},
        Difficulty(
            passages=5, absent=0.02, single=0.15, vague=0.05, long=0.0, alike=0.6, bare=0.4, canonical=0.1
        ),
    ),
    Stage(
        1360,
        {
            "read": 0.25, "two-hop": 0.13, "core": 0.06, "beside": 0.05, "rephrase": 0.08, "rewrite": 0.05,
            "entail": 0.12, "suff": 0.13, "extract": 0.13,
        },
        Difficulty(passages=6, absent=0.08, vague=0.1, long=0.0, alike=0.35, bare=0.2),
    ),
    Stage(
        1904,
        {
            "read": 0.22, "two-hop": 0.10, "core": 0.05, "beside": 0.07, "rephrase": 0.07, "rewrite": 0.04,
            "entail": 0.14, "suff": 0.16, "extract": 0.14, "summary": 0.01,
        },
        Difficulty(passages=10, absent=0.1, long=0.1),
    ),
    Stage(
        2496,
        {
            "read": 0.19, "two-hop": 0.18, "core": 0.12, "beside": 0.09, "rephrase": 0.08, "rewrite": 0.02,
            "entail": 0.08, "suff": 0.10, "extract": 0.13, "summary": 0.01,
        },
        Difficulty(passages=20, absent=0.12, long=0.08),
    ),
)  # fmt: skip


def stage_at(step: int) -> Stage:
    """Return the stage that a step belongs to."""
    return [stage for stage in CURRICULUM if stage.start <= step][-1]


class Note(NamedTuple):
    """What is known at a token: of which entity and relation something was told or asked.

    Attributes:
        position: Of the full stop after a statement, or of the token before an answer.
        entity: The entity's token.
        relation: Number of the relation.
        value: The value's token; -1 where it is asked for.
    """

    position: int
    entity: int
    relation: int
    value: int


class Batch(NamedTuple):
    """One step's rows.

    Attributes:
        ids: Padded token ids [batch, length].
        weight: Weights of the loss [batch, length] on predicting the next token.
        tasks: Of each row.
        notes: Row and fields of each `Note`, [notes, 5].
        links: Where a note asks what another one tells: row and the two positions, [links, 3].
    """

    ids: Tensor
    weight: Tensor
    tasks: tuple[str, ...]
    notes: Tensor
    links: Tensor


class Encoded(NamedTuple):
    """One conversation as ids; ``weight[i]`` is how much the prediction of ``ids[i + 1]`` counts."""

    task: str
    ids: list[int]
    weight: list[float]
    notes: list[Note]


class Encoder:
    """Turns conversations into ids exactly as the chat template does."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._encode = tokenizer.backend_tokenizer.encode
        self._marks = marks(tokenizer)
        [self._stop] = self._encode(".", add_special_tokens=False).ids[-1:]

    def words(self, text: str) -> list[int]:
        """Return the ids of a text, a space put before the first word of every line."""
        ids: list[int] = self._encode(text.replace("\n", "\n "), add_special_tokens=False).ids
        return ids

    def conversation(self, example: Example) -> Encoded:
        """Return the ids of a conversation, and which of them to learn."""
        ids: list[int] = []
        weight: list[float] = []
        notes: list[Note] = []
        for user, answer, about in example.turns:
            prompt = [self._marks.user, *self.words(user), self._marks.end, self._marks.assistant]
            target = [*self.words(answer), self._marks.end]
            if not ids:
                notes += self._told(prompt, example.told)
            ids += prompt
            if about is not None:
                entity, relation, _ = self._tokens(about)
                notes.append(Note(len(ids) - 1, entity, relation, -1))
            ids += target
            # The last token of the prompt predicts the first of the answer; a long answer counts more
            # than a short one, but not by its length.
            weight += [0.0] * (len(prompt) - 1) + [len(target) ** -0.5] * len(target) + [0.0]
        return Encoded(example.task, ids, weight, notes)

    def _told(self, ids: Sequence[int], facts: Sequence[Fact]) -> Iterator[Note]:
        """Find the full stops after statements of facts."""
        known = [self._tokens(fact) for fact in facts]
        start = 0
        for position, token in enumerate(ids):
            if token == self._stop:
                said = set(ids[start:position])
                start = position + 1
                for entity, relation, value in known:
                    if entity in said and value in said:
                        yield Note(position, entity, relation, value)
                        break

    def _tokens(self, fact: Fact) -> tuple[int, int, int]:
        return (self.words(fact.entity)[0], RELATIONS.index(fact.relation), self.words(fact.value)[0])


def collate(rows: Sequence[Encoded], pad: int) -> Batch:
    """Pad rows on the right to a common length, a multiple of 8."""
    length = math.ceil(max(len(r.ids) for r in rows) / 8) * 8
    ids = torch.tensor([r.ids + [pad] * (length - len(r.ids)) for r in rows])
    weight = torch.tensor([r.weight + [0.0] * (length - len(r.weight)) for r in rows])
    notes = [(number, *note) for number, row in enumerate(rows) for note in row.notes]
    links = [(number, *link) for number, row in enumerate(rows) for link in _links(row.notes)]
    return Batch(
        ids,
        weight,
        tuple(r.task for r in rows),
        torch.tensor(notes, dtype=torch.long).reshape(-1, 5),
        torch.tensor(links, dtype=torch.long).reshape(-1, 3),
    )


def _links(notes: Sequence[Note]) -> Iterator[tuple[int, int]]:
    """Pair what is asked for with where it was told."""
    told = {(note.entity, note.relation): note.position for note in notes if note.value >= 0}
    for note in notes:
        place = told.get((note.entity, note.relation))
        if note.value < 0 and place is not None:
            yield note.position, place


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
    return Example(task, first, example.told)
