"""Code that all studies share: command-line arguments, readers, and tables with intervals."""

from __future__ import annotations

import argparse
import atexit
import json
import logging
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from surerag import Passage, SamplingParams, Services
from surerag.drivers import run_many
from surerag.effects import Generate, Program, perform
from surerag.errors import InputError
from surerag.measures import auroc, exact_match
from surerag.measures.statistics import (
    Estimate,
    mean_interval,
    paired_difference,
)
from surerag.messages import Generation, Prompt, TraceKind
from surerag.readers.protocol import BaseReader, as_reader
from surerag.services import Encoder

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@dataclass(frozen=True)
class Case:
    """A question with its right answers.

    Attributes:
        question: Text of the question.
        references: Right answers.
        gold: Passages that contain the answer.
        group: Kind of question, for tables by group.
        is_correct: Function that judges an answer; None compares it with the references.
    """

    question: str
    references: tuple[str, ...]
    gold: tuple[Passage, ...] = ()
    group: str = ""
    is_correct: Callable[[str], bool] | None = None

    def judge(self, answer: str) -> bool:
        """Return whether an answer is right: by ``is_correct``, or by exact match."""
        if self.is_correct is not None:
            return self.is_correct(answer)
        return bool(exact_match(answer, self.references))


class LookupRetriever:
    """A retriever that returns prepared passages for the text of a question."""

    def __init__(self, results: Mapping[str, Sequence[Passage]]) -> None:
        self._results = results

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return the first k passages of a question."""
        return list(self._results.get(query, ()))[:k]


class Claim(NamedTuple):
    """A claim of a paper, what the study measured, and whether the claim holds."""

    claim: str
    evidence: str
    holds: bool


def make_parser(description: str, n: int = 200) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all studies have.

    The parser also silences warnings about single questions, and prints the duration when the study ends.
    """
    started = time.monotonic()

    def say_how_long() -> None:
        if not console.file.closed:  # by a test runner
            console.print(f"It took {time.monotonic() - started:.0f} s.")

    atexit.register(say_how_long)
    logging.getLogger("surerag").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(
        description=description,
        epilog="A bar shows the progress, and the study ends with its duration. Try a small -n first.",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the closed world, or of the sample of questions"
    )
    parser.add_argument("-n", type=int, default=n, help="number of questions")
    parser.add_argument(
        "--reader", default="world", help='"world" (the embedded reader), "demo", or a Hugging Face id'
    )
    parser.add_argument("--dtype", help="number type of a local reader, such as bfloat16")
    return with_json(parser)


def with_json(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the option ``--json``, which writes the printed tables into a file that fills the pages."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables into this file")
    return parser


def load_reader(name: str, dtype: str | None = None) -> BaseReader:
    """Load a reader: world, demo, an id of the hub, a folder, or ADDRESS#MODEL of a server."""
    if name == "world":
        from studies.world import embedded_reader

        return as_reader(embedded_reader())
    if name == "demo":
        from surerag.demo import load_reader as load_demo_reader

        return as_reader(load_demo_reader())
    if "://" in name:
        from surerag import OpenAIReader

        address, _, model = name.partition("#")
        if not model:
            raise InputError(f"{name} names a server but no model", hint="write ADDRESS#MODEL")
        return OpenAIReader(model, base_url=address)
    from surerag import TransformersReader

    return TransformersReader.from_pretrained(name, dtype=dtype)


def load_encoder() -> Encoder:
    """Load MiniLM from the installed package that contains it."""
    from surerag.encoders import packaged_minilm

    return packaged_minilm()


def world_cases(
    seed: int, n: int, kinds: Sequence[str] | None = None
) -> tuple[list[Case], list[Passage], list[Passage]]:
    """Return questions of a closed world, its passages, and the first passage of each article."""
    from studies.world import World, is_correct
    from studies.world.spec import DEFAULT_SIZE

    world = World(seed, DEFAULT_SIZE)
    cases = [
        Case(
            item.text,
            item.answers,
            tuple(world.passage[name] for name in item.gold_passages),
            item.kind.value,
            partial(is_correct, item),
        )
        for item in world.questions(n, kinds)
    ]
    leads = [passage for passage in world.passages if passage.metadata["part"] == "lead"]
    return cases, list(world.passages), leads


def answers_to(
    reader: BaseReader,
    prompts: Sequence[Prompt],
    max_tokens: int = 32,
    trace: TraceKind = "none",
    label: str = "Answers",
) -> list[Generation]:
    """Return greedy answers to prompts; ``label`` is the title of the progress bar."""
    sampling = SamplingParams(max_tokens=max_tokens, trace=trace)
    return [answer for [answer] in samples_of(reader, prompts, sampling, label)]


def samples_of(
    reader: BaseReader, prompts: Sequence[Prompt], sampling: SamplingParams, label: str = "Samples"
) -> list[list[Generation]]:
    """Return all samples of each prompt."""

    def program(prompt: Prompt) -> Program[list[Generation]]:
        [samples] = yield from perform(Generate([prompt], sampling))
        return samples

    programs = [program(prompt) for prompt in prompts]
    return run_many(programs, Services(reader=reader), window=128, progress=label)


def share(values: Sequence[bool]) -> Estimate:
    """Return the share of true values with its 95 % interval."""
    return mean_interval([float(value) for value in values])


def difference(first: Sequence[bool], second: Sequence[bool]) -> Estimate:
    """Return the share of the first values minus that of the second, with its 95 % interval."""
    return paired_difference([float(value) for value in first], [float(value) for value in second])


def separation(wrong: Sequence[float], right: Sequence[float]) -> Estimate | None:
    """Return the AUROC of a score for wrong answers; None if there are no wrong or no right answers."""
    return auroc([*wrong, *right], [False] * len(wrong) + [True] * len(right))


def show(estimate: Estimate, *, scale: float = 100, digits: int = 1, sign: bool = False) -> str:
    """Return an estimate with its interval: ``57.3 [52.4, 62.1]``."""
    return estimate.text("+" if sign else "", scale, digits)


def before_and_after(before: Sequence[bool], after: Sequence[bool]) -> tuple[str, str, str]:
    """Return both shares of right answers, and their difference."""
    return show(share(before)), show(share(after)), show(difference(after, before), sign=True)


_printed: dict[str, list[dict[str, str]]] = {}
"""Rows of the printed tables by the table's name; the first column is called ``system``."""


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    note: str = "",
    *,
    name: str = "",
) -> None:
    """Print a table; the first column is text, the others are numbers.

    Args:
        title: Title above the table.
        columns: Names of the columns.
        rows: Cells of each row.
        note: Line below the table.
        name: Name of the table in the file of ``--json``; by default the beginning of the title.

    Raises:
        InputError: If two columns have the same name.
    """
    table = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    cells = [[str(value) for value in row] for row in rows]
    for row in cells:
        table.add_row(*row)
    console.print(table)
    console.print()
    keys = ["system", *columns[1:]]
    if len(set(keys)) < len(keys):
        raise InputError(f"two columns of {title!r} have the same name", hint="name each column differently")
    signs = [
        [value.replace("-", "−") if place else value for place, value in enumerate(row)] for row in cells
    ]
    _printed[name or re.split(r" \(|,|:", title)[0]] = [dict(zip(keys, row, strict=True)) for row in signs]


def print_claims(claims: Sequence[Claim]) -> None:
    """Print the claims of a paper, including claims without evidence."""
    rows = [(item.claim, item.evidence, "holds" if item.holds else "no evidence") for item in claims]
    print_table("Claims", ("Claim", "measured", "verdict"), rows)


def write_tables(arguments: argparse.Namespace) -> None:
    """Write all printed tables and their command into the file of ``--json``, if there is one."""
    tables = dict(_printed)
    _printed.clear()
    if arguments.json is None:
        return
    given = dict(vars(arguments))
    file = given.pop("json")
    words, paths = sys.argv[1:], {str(value) for value in given.values() if isinstance(value, Path)}
    kept = ["DATA" if word in paths else word for word in words if word not in ("--json", str(file))]
    written: dict[str, Any] = {
        "command": shlex.join(["python", "-m", f"studies.{Path(sys.argv[0]).stem}", *kept]),
        "date": datetime.now(UTC).date().isoformat(),
        **tables,
    }
    file.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
