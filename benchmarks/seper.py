"""ΔSePer for 64 questions, against the straightforward way and against two packages' semantic entropy.

Run ``python -m benchmarks.seper --peers-in DIR``, where DIR keeps an environment for each peer (made at the
first run; without it they are made for this run alone; ``--without-peers`` leaves them out). A small quick
run is ``--questions 8``; ``--tiny`` only shows that it runs.

All have the same models, a random 8-layer, 384-wide Llama and a random DeBERTa-v3-small, and the same
questions of the closed world, each with a context of 1,000 tokens. What a random model says never repeats
itself, while a real reader's answers do, and how often decides what there is to judge. So the embedded
reader is asked the same questions first (from memory, and from five passages), and the random Llama draws
each of its answers from a pool of such a size that as many of N samples are distinct, on average; they are
as long, too. Its embeddings and output matrix are set so that the next word depends on the last one alone
(see ``_seper_models``): it costs what any Llama of this shape costs, and says the same with every library.

- The straightforward way follows Algorithm 1 on the libraries' own calls (see ``_seper_plain``):
  ``generate(num_return_sequences=N)`` for one prompt at a time, and one pair at a time to the classifier.
  It draws its own samples, and then judges those of the package, so that scores can be compared.
- lm-polygraph and uqlm do what their semantic entropy needs, no more: N samples for the same prompts, and
  clusters of them. Gold answers are nothing to them, so they do less than the hard kernel, beside which they
  stand.
- The floor is the models' forward passes alone: each prompt read once, all sequences decoded together, each
  distinct pair judged once.

Contenders take turns, and each has read one question before. With ``--cpu-time --threads 1`` the
processor's seconds are counted, for machines that do other things meanwhile.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks._seper_contest import (
    KERNELS,
    Judging,
    Setting,
    Times,
    Work,
    answers_by_prompt,
    count,
    floor,
    judging,
    ours,
    plain,
    plain_judging,
    prepare,
)
from benchmarks._seper_models import DEBERTA_TINY
from benchmarks._seper_peers import PEERS, Answer, Peer, PeerError, ask, environment
from benchmarks._seper_world import measure
from benchmarks.models import Shape, arguments
from benchmarks.paired import Spread
from surerag.world import World, embedded_reader

TINY = Work(
    context_tokens=60,
    samples=4,
    max_tokens=16,
    reader=Shape(layers=2, width=32, inner=48, heads=4, key_value_heads=2, vocabulary=2048),
    nli=DEBERTA_TINY,
)
TOLERANCE = 1e-6
OURS, STRAIGHT, FLOOR = "surerag", "straightforward", "floor"
ENTROPY = "entropy"


class Row(NamedTuple):
    """A contender's name, and the kernel, in whose place peers have ``"entropy"``: the semantic one."""

    name: str
    kernel: str


class Found(NamedTuple):
    """All that was measured, one item a turn."""

    times: dict[Row, list[Times]]
    judging: dict[str, list[Judging]]
    distinct: dict[str, Mapping[str, Sequence[int]]]
    differences: list[float]
    failures: dict[str, str]


def contest(setting: Setting, turns: int, folder: Path, pythons: Mapping[Peer, Path], threads: int) -> Found:
    """Let all take turns."""
    found = Found(defaultdict(list), defaultdict(list), {}, [], {})
    for turn in range(turns):
        _say(f"turn {turn + 1} of {turns}: surerag")
        mine = ours(setting, seed=turn)
        _say("the straightforward way")
        other = plain(setting, mine)
        _say("the floor")
        least = floor(setting, mine)
        for kernel in KERNELS:
            found.times[Row(STRAIGHT, kernel)].append(other.times[kernel])
            found.times[Row(OURS, kernel)].append(mine.times[kernel])
            found.times[Row(FLOOR, kernel)].append(least[kernel])
        found.differences.append(other.difference)
        found.distinct[STRAIGHT] = other.distinct
        found.distinct[OURS] = {
            name: [len({one.text for one in row}) for row in rows] for name, rows in mine.samples.items()
        }
        answers = answers_by_prompt(setting, mine)
        found.judging[STRAIGHT].append(plain_judging(setting, answers))
        found.judging[OURS].append(judging(setting, answers))
        job = _job(setting, folder, answers, turn, threads)
        for peer, python in pythons.items():
            _say(peer.package)
            try:
                answer = ask(peer, python, job)
                _check_weights(setting, answer)
            except PeerError as error:
                found.failures[peer.name] = str(error)
                continue
            parts = [answer.seconds[name] for name in ("without", "with", "entailment", "total")]
            found.times[Row(peer.name, ENTROPY)].append(Times(*parts))
            found.judging[peer.name].append(Judging(count(answers), answer.judged, answer.seconds["pairs"]))
            found.distinct[peer.name] = answer.distinct
    return found


def _job(setting: Setting, folder: Path, answers: list[list[str]], turn: int, threads: int) -> Path:
    job = {
        "reader": str(folder / "reader"),
        "nli": str(folder / "nli"),
        "prompts": setting.prompts,
        "questions": [case.question for case in setting.asked],
        "statements": answers,
        "samples": setting.work.samples,
        "max_tokens": setting.work.max_tokens,
        "batch": 4,  # as in lm-polygraph's own examples
        "threads": threads,
        "seed": turn,
        "clock": setting.clock.__name__,
    }
    file = folder / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    return file


def _check_weights(setting: Setting, answer: Answer) -> None:
    """See that a peer's reader is the same model."""
    encoded = setting.tokenizer(setting.prompts["without"][0], return_tensors="pt")
    with torch.inference_mode():
        expected = setting.model(**encoded).logits[0, -1, :64]
    if not torch.allclose(expected, torch.tensor(answer.logits), atol=1e-3):
        raise PeerError(f"it read other weights, with {answer.versions}")


def seconds(found: Found) -> Table:
    """Return the table of times: components, totals, and totals as multiples of the package's."""
    names = ("contender", "kernel", "without", "with", "entailment", "total", "× surerag")
    table = Table(*names, title="seconds")
    order = [*KERNELS, ENTROPY]
    for row, times in sorted(found.times.items(), key=lambda item: order.index(item[0].kernel)):
        kernel = row.kernel if row.kernel in KERNELS else "hard"
        mine = [one.total for one in found.times[Row(OURS, kernel)]]
        shown = [f"{statistics.median(column):.2f}" for column in zip(*times, strict=True)]
        table.add_row(row.name, row.kernel, *shown, _multiples([one.total for one in times], mine))
    return table


def rates(found: Found) -> Table:
    """Return the table of pairs per second; multiples are of the time for a pair that was asked."""
    table = Table("contender", "asked / s", "judged / s", "× surerag", title="all pairs of N answers")
    mine = [one.seconds / one.asked for one in found.judging[OURS]]
    for name, measured in found.judging.items():
        took = [one.seconds / one.asked for one in measured]
        judged = statistics.median(one.judged / one.seconds for one in measured)
        table.add_row(name, f"{1 / statistics.median(took):.0f}", f"{judged:.0f}", _multiples(took, mine))
    return table


def _multiples(times: Sequence[float], mine: Sequence[float]) -> str:
    """Return the median of the ratios, turn by turn, and their ends where there are several."""
    # A peer may have failed in some turn; the others are compared in order.
    ratio = Spread.of([one / own for one, own in zip(times, mine, strict=False)])
    ends = f" ({ratio.least:.2f} to {ratio.most:.2f})" if len(times) > 1 else ""
    return f"{ratio.median:.2f}{ends}"


def _profile(setting: Setting) -> None:
    profile = cProfile.Profile()
    profile.runcall(ours, setting, seed=0)
    pstats.Stats(profile).sort_stats("tottime").print_stats(20)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, and print tables."""
    parser = arguments(__doc__ or "", turns=1)
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1, help="of the world")
    parser.add_argument("--peers-in", type=Path, help="folder that keeps the peers' environments")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--profile", action="store_true", help="also print where the package's time goes")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    work = TINY if given.tiny else Work()
    world = World(seed=given.seed, size=60) if given.tiny else World(seed=given.seed)
    questions = world.questions(min(given.questions, 4) if given.tiny else given.questions)
    with tempfile.TemporaryDirectory() as place:
        folder, failures = Path(place), {}
        pythons: dict[Peer, Path] = {}
        for peer in () if given.without_peers else PEERS:
            _say(f"environment of {peer.package}")
            try:
                pythons[peer] = environment(peer, given.peers_in or folder / "peers")
            except PeerError as error:
                failures[peer.name] = str(error)
        _say("how often the embedded reader repeats itself")
        measured = measure(embedded_reader(), world, questions, work.samples)
        setting = prepare(folder, world, questions, measured, work, given.clock)
        first = setting._replace(
            asked=setting.asked[:1], prompts={name: rows[:1] for name, rows in setting.prompts.items()}
        )
        plain(first, ours(first, seed=0))
        found = contest(setting, given.turns, folder, pythons, given.threads)
        console = Console()
        console.print(seconds(found))
        console.print("Total is measured by itself. Multiples of the hard kernel's total for peers.")
        console.print(rates(found))
        said = {"embedded reader": {name: [row.distinct for row in rows] for name, rows in measured.items()}}
        for name, rows in (said | found.distinct).items():
            means = " / ".join(f"{statistics.mean(rows[part]):.1f}" for part in ("without", "with"))
            console.print(f"Distinct answers of {work.samples}, without / with context: {means} ({name})")
        for name, text in (failures | found.failures).items():
            console.print(f"{name} has no figures: {text}", markup=False)
        worst = max(found.differences)
        console.print(f"Same samples, largest difference of ΔSePer from the straightforward way: {worst:.1e}")
        if given.profile:
            _profile(setting)
        assert worst <= TOLERANCE, f"scores differ by {worst}"


if __name__ == "__main__":
    main()
