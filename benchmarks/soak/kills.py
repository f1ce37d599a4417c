"""``surerag evaluate`` and ``surerag train-rewriter`` over a server, killed at random points and resumed.

    python -m benchmarks.soak.kills KILLS SEED

Each command first runs undisturbed; then it is killed again and again, and has to end with the same files,
byte for byte. What its journal holds is never asked again. (``compare`` is killed in ``tests/cli``.)
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from surerag.readers.openai import OpenAIReader
from surerag.readers.openai.probe import PROBE_PROMPTS
from surerag.recording import generation_key
from surerag.types import Passage, Sampling
from tests.evaluation.noting import write_rows
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Said, Script

_CONCURRENCY = 4
_QUERIES = 24
_COMMAND = (sys.executable, "-c", "from surerag.cli import main; main()")
_ANSWER_SECONDS = 0.02
_TOWNS = ("Velm", "Orun", "Toren", "Sarl")
_PASSAGES = [
    Passage(f"Person {number} was born in {_TOWNS[number % 4]}.", id=f"p{number}") for number in range(30)
]


class Corpus:
    """Finds other passages for every query, always the same ones for the same query."""

    name = "corpus"

    def retrieve(self, query: str, k: int) -> list[Passage]:
        """Return passages in an order of the query's own."""
        return random.Random(query).sample(_PASSAGES, k)


def corpus() -> Corpus:
    """Make what ``--retriever`` names."""
    return Corpus()


class Slow(Script):
    """Takes a while to answer; how sure it is depends on the prompt."""

    def __init__(self) -> None:
        super().__init__(_answer)

    def say(self, prompt: str, temperature: float, seed: int, max_tokens: int) -> Said:
        """Answer a prompt."""
        time.sleep(_ANSWER_SECONDS)
        return Said(Script([], -0.1 - _doubt(prompt)).read(_answer(prompt))[:max_tokens], "stop")


def _doubt(prompt: str) -> float:
    return hashlib.sha256(prompt.encode()).digest()[0] / 128


def _answer(prompt: str) -> str:
    if prompt.startswith("Rewrite"):
        return f"Where was {prompt.rpartition('Query: ')[2].split()[2]} born?"
    if "entail" in prompt:
        return "entailment" if _doubt(prompt) < 1 else "neutral"
    return next((town for town in _TOWNS if town in prompt), "Nowhere")


@dataclass(frozen=True)
class Command:
    """A command to be killed.

    Attributes:
        name: What it is called.
        arguments: From a folder for its output to its arguments.
        results: Files that have to be the same, by their names under the output.
        known: From the output and all prompts to those that the journal holds answers to.
        in_flight: Requests that a kill may cost at most.
    """

    name: str
    arguments: Callable[[Path], Sequence[str]]
    results: Callable[[Path], list[Path]]
    known: Callable[[Path, set[str]], set[str]]
    in_flight: int


class Killing:
    """Runs commands over one server, and kills them."""

    def __init__(self, server: FakeOpenAI, folder: Path, rng: random.Random) -> None:
        self._server, self._folder, self._rng = server, folder, rng
        self._seen = 0

    def start(self, command: Command, out: Path) -> subprocess.Popen[bytes]:
        """Start a command."""
        out.parent.mkdir(exist_ok=True)
        with (out.parent / "printed.txt").open("ab") as printed:
            return subprocess.Popen([*_COMMAND, *command.arguments(out)], stdout=printed, stderr=printed)

    def asked(self) -> list[str]:
        """Return the prompts that came in since this was called last, without those of probes."""
        fresh = self._server.requests[self._seen :]
        self._seen += len(fresh)
        prompts = [str(request.body["messages"][-1]["content"]) for request in fresh]
        return [prompt for prompt in prompts if prompt not in PROBE_PROMPTS]

    def undisturbed(self, command: Command) -> tuple[Path, Counter[str], float]:
        """Run it once; return its output, what it asked, and how long it took."""
        out, started = self._folder / command.name / "out", time.monotonic()
        code = self.start(command, out).wait()
        if code:
            raise SystemExit(
                f"{command.name} failed undisturbed:\n{(out.parent / 'printed.txt').read_text()}"
            )
        return out, Counter(self.asked()), time.monotonic() - started

    def disturbed(
        self, command: Command, kills: int, trial: int, calm: tuple[Path, Counter[str], float]
    ) -> int:
        """Kill it a few times, then let it end; return how often it was killed.

        Raises:
            AssertionError: If something was asked twice, or the results differ.
        """
        expected, once, seconds = calm
        out = self._folder / f"{command.name} {trial}" / "out"
        asked: list[str] = []
        killed = 0
        while True:
            known = command.known(out, set(once))
            process = self.start(command, out)
            if killed < kills:
                self._wait(process, once.total(), seconds)
                process.kill()
            code = process.wait()
            now = self.asked()
            asked += now
            again = known & set(now)
            assert not again, f"{command.name} asks again what it knows: {sorted(again)[:3]}"
            if code != -signal.SIGKILL:
                break
            killed += 1
        assert code == 0, f"{command.name} ended with {code}:\n{(out.parent / 'printed.txt').read_text()}"
        assert set(asked) == set(once), f"{command.name} asked something else than undisturbed"
        extra = len(asked) - once.total()
        assert extra <= killed * command.in_flight, (
            f"{command.name}: {extra} more requests after {killed} kills"
        )
        for file in command.results(expected):
            same = _timeless(out / file.relative_to(expected)) == _timeless(file)
            assert same, f"{command.name}: {file.name} differs after {killed} kills"
        print(f"{command.name}: {killed} kills, {extra} requests beside {once.total()}, same results")
        return killed

    def _wait(self, process: subprocess.Popen[bytes], requests: int, seconds: float) -> None:
        """Wait until a random request, or for a random time: much happens after the last request."""
        before = len(self._server.requests)
        if self._rng.random() < 0.6:
            reach = before + self._rng.randrange(requests + 12)
            while process.poll() is None and len(self._server.requests) < reach:
                time.sleep(0.001)
            time.sleep(self._rng.random() * 0.03)
        else:
            deadline = time.monotonic() + self._rng.random() * seconds
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)


_CLOCK = re.compile(rb'"seconds": [^,}]+|[\d,]+\.\d s, ')


def _timeless(file: Path) -> bytes:
    """Read a file but for what a clock said."""
    return _CLOCK.sub(b"", file.read_bytes())


_PAGES = ("report.html", "results.json", "systems.svg")


def evaluation(url: str, folder: Path) -> Command:
    """Return ``surerag evaluate`` over two systems."""
    file = write_rows(folder / "rows.jsonl", questions=16)
    reader = OpenAIReader("toy", base_url=url, api_key="k")
    samplings = (Sampling(n=3, temperature=1.0, max_tokens=64, seed=0), Sampling(max_tokens=8))

    def known(out: Path, prompts: set[str]) -> set[str]:
        keys = {entry.get("key") for file in out.glob("open-*.jsonl") for entry in whole_lines(file)}
        return {
            prompt
            for prompt in prompts
            if any(generation_key(reader.name, prompt, sampling) in keys for sampling in samplings)
        }

    return Command(
        "evaluate",
        lambda out: [
            *("evaluate", str(file), "--output", str(out), "--model", "toy", "--base-url", url),
            *(
                "--entailment",
                "judge",
                "--n-samples",
                "3",
                "--extremes",
                "1",
                "--concurrency",
                str(_CONCURRENCY),
            ),
        ],
        lambda out: [*sorted(out.glob("*.parquet")), *(out / name for name in _PAGES)],
        known,
        # Each of the rows at work asks for two contexts, or for some pairs, at the same time.
        _CONCURRENCY * _CONCURRENCY,
    )


def training(url: str, folder: Path) -> Command:
    """Return ``surerag train-rewriter`` of a tiny base: all three stages."""
    queries = [
        {"question": f"Where was Person{number} raised?", "answers": ["Velm"]} for number in range(_QUERIES)
    ]
    file = folder / "queries.jsonl"
    file.write_text("".join(json.dumps(query) + "\n" for query in queries))
    base = folder / "base"
    make = "import sys; from pathlib import Path; from tests.training.rewriter_models import tiny_base; "
    subprocess.run([sys.executable, "-c", f"{make}tiny_base(Path(sys.argv[1]))", str(base)], check=True)

    def known(out: Path, prompts: set[str]) -> set[str]:
        told = [json.dumps(entry) for entry in whole_lines(out / "sample" / "journal.jsonl")]
        names = [f"Question: Where was Person{number} raised?" for number in range(_QUERIES)]
        done = [name for name in names if any(name.removeprefix("Question: ") in line for line in told)]
        return {prompt for prompt in prompts if any(name in prompt for name in done)}

    return Command(
        "train-rewriter",
        lambda out: [
            *("train-rewriter", str(file), "--output", str(out), "--base", str(base)),
            *("--model", "toy", "--base-url", url, "--retriever", "benchmarks.soak.kills:corpus"),
            *(
                "--rewrites",
                "4",
                "-k",
                "3",
                "--temperature",
                "3",
                "--distil-rate",
                "0.01",
                "--distil-batch",
                "4",
            ),
            *("--distil-epochs", "16", "--align-rate", "0.001", "--align-batch", "5", "--save-every", "2"),
            *("--concurrency", str(_CONCURRENCY)),
        ],
        lambda out: [*out.glob("*/*.parquet"), *out.glob("*/model/model.safetensors")],
        known,
        # Each of the queries at work asks about all its rewrites.
        _CONCURRENCY * 4,
    )


def whole_lines(journal: Path) -> list[dict[str, object]]:
    """Read a journal up to its last whole line."""
    text = journal.read_text() if journal.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def main(kills: int, seed: int) -> None:
    """Kill both commands in turn, three times a run, until there were so many kills."""
    with FakeOpenAI(Slow()) as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        killing = Killing(server, folder, random.Random(seed))
        commands = [make(server.base_url, folder) for make in (evaluation, training)]
        calm = [killing.undisturbed(command) for command in commands]
        left, trial = kills, 0
        while left > 0:
            at = trial % len(commands)
            trial += 1
            wanted = min(3, left, max(1, kills // 2))
            left -= killing.disturbed(commands[at], wanted, trial, calm[at])
    print(f"{kills} kills, each resumed to the undisturbed result, and nothing asked twice")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
