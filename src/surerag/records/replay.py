"""Services that give the recorded answers: offline, at once, and to nothing else that is asked."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.errors import ConfigurationError
from surerag.readers.protocol import BaseReader, Capabilities
from surerag.recording import entailment_key, generation_key, kept_generation, retrieval_key
from surerag.records.schema import ASKED, asked_answer
from surerag.records.trace import Trace
from surerag.runs import records_in
from surerag.types import Generation, Pair, Passage, Prompt, Sampling, as_messages

_PARTS_HELD = 4
_SHOWN = 70


class NotRecordedError(ConfigurationError):
    """A trace was asked for something that was not recorded; no fallback hides it."""


class ReplayReader(BaseReader):
    """Gives the answers of a trace, with their log-probabilities and entropies, by prompt and sampling.

    What was asked has to be the same to the letter: prompt, temperature, seed, length, stop texts. How much
    of the trace an answer needs is free: what was recorded is given. Of more samples than are asked for, the
    first are given, as by any reader.

    Holds 24 bytes for each recorded answer, and the answers of a few parts.

    Args:
        trace: A trace that kept its texts.
        name: Of the model; the reader that was recorded if left out.

    Raises:
        ConfigurationError: If texts were not kept, or there is no model of this name.
    """

    def __init__(self, trace: Trace, name: str | None = None) -> None:
        readers: Mapping[str, Any] = trace.about.get("readers", {})
        self._name = str(trace.about.get("reader", "")) if name is None else name
        if self._name not in readers:
            raise ConfigurationError(
                f"{trace.folder} holds no answers of {self._name!r}",
                hint=f"it holds those of {', '.join(readers) or 'no reader'}",
            )
        self._can = Capabilities(**{**readers[self._name], "local": True})
        self._asked = _Asked(trace, "generate")

    def __repr__(self) -> str:
        return f"ReplayReader({self._name!r})"

    @property
    def name(self) -> str:
        """Identity of the model that was recorded: calibrations of the one hold for the other."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """What the recorded reader gave."""
        return self._can

    @property
    def max_tokens(self) -> int:
        """Length of an answer, at most, where nobody set another."""
        found: int = self._asked.trace.about.get("max_tokens", {}).get(self._name, super().max_tokens)
        return found

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return the recorded answers to each prompt.

        Raises:
            NotRecordedError: If one of them was not recorded with this sampling.
        """
        return [self._recorded(prompt, sampling) for prompt in prompts]

    def _recorded(self, prompt: Prompt, sampling: Sampling) -> list[Generation]:
        wanted = canonical(sampling)
        key = generation_key(self._name, prompt, replace(wanted, n=1))
        for found in self._asked.answers(key):
            if len(found) >= sampling.n:
                return [kept_generation(sample) for sample in found[: sampling.n]]
        raise self._missing(prompt, wanted)

    def _missing(self, prompt: Prompt, sampling: Sampling) -> NotRecordedError:
        shown = as_messages(prompt)[-1].content[-_SHOWN:]
        others = [json.loads(told) for told in self._asked.samplings(prompt_digest(prompt))]
        if others:
            mine = json.loads(sampling_text(sampling))
            near = [{name: told[name] for name in mine if told[name] != mine[name]} for told in others]
            nearest = min(near, key=len)
            differs = {name: mine[name] for name in nearest}
            was = ", ".join(f"{name}={value!r}" for name, value in nearest.items())
            now = ", ".join(f"{name}={value!r}" for name, value in differs.items())
            return NotRecordedError(
                f"the prompt that ends in {shown!r} was recorded with another sampling: {was}; asked: {now}",
                hint="replay with the settings of the recording, which stand under 'about' in its manifest",
            )
        return NotRecordedError(
            f"the trace {self._asked.trace.folder} holds no answer to the prompt that ends in {shown!r}",
            hint="replay the recorded questions with the settings of the recording (under 'about' in its "
            "manifest) and the passages that were found then (trace.retriever()); or record what is new",
        )


class ReplayEntailer:
    """Judges the pairs of a trace as they were judged.

    Args:
        trace: A trace that kept its texts.

    Raises:
        ConfigurationError: If texts were not kept, or no pair was judged.
    """

    local = True

    def __init__(self, trace: Trace) -> None:
        name = trace.about.get("entailer")
        if not name:
            raise ConfigurationError(
                f"{trace.folder} holds no judgements", hint="record with a SePer or Dense"
            )
        self.name: str = name
        self._asked = _Asked(trace, "entail")

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return the recorded probabilities [pairs, 3] of contradiction, neutral, entailment.

        Raises:
            NotRecordedError: If a pair was not judged.
        """
        rows = [self._recorded(pair) for pair in pairs]
        return np.array(rows, dtype=np.float64).reshape(len(rows), 3)

    def _recorded(self, pair: Pair) -> list[float]:
        found: list[float] | None = next(self._asked.answers(entailment_key(self.name, pair)), None)
        if found is None:
            raise NotRecordedError(
                f"the trace {self._asked.trace.folder} holds no judgement on {pair.premise[:_SHOWN]!r} and "
                f"{pair.hypothesis[:_SHOWN]!r}",
                hint="replay with the settings of the recording, which stand under 'about' in its manifest",
            )
        return found


class ReplayRetriever:
    """Finds what was found for the queries of a trace.

    Args:
        trace: A trace that kept its texts.
        name: What the retriever is called there.

    Raises:
        ConfigurationError: If texts were not kept.
    """

    def __init__(self, trace: Trace, name: str) -> None:
        self.name = name
        self._asked = _Asked(trace, "retrieve")

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return the recorded passages, best first.

        Raises:
            NotRecordedError: If this query, or this number, was not recorded.
        """
        found = next(self._asked.answers(retrieval_key(self.name, query, k)), None)
        if found is None:
            raise NotRecordedError(
                f"the trace {self._asked.trace.folder} does not hold what {self.name!r} found for "
                f"{query[:_SHOWN]!r} with k={k}",
                hint="replay the recorded questions with the settings of the recording",
            )
        return [Passage(**passage) for passage in found]

    def retrieve_many(self, queries: Sequence[str], k: int | None) -> list[list[Passage]]:
        """Return what :meth:`retrieve` returns for each query."""
        return [self.retrieve(query, k) for query in queries]


def canonical(sampling: Sampling) -> Sampling:
    """Return a sampling without what changes no answer: how much of its trace is needed."""
    return replace(sampling, trace="entropy")


def sampling_text(sampling: Sampling) -> str:
    """Return a sampling as a trace notes it."""
    return json.dumps({name: value for name, value in asdict(sampling).items() if name != "trace"})


def prompt_digest(prompt: Prompt) -> str:
    """Return the digest under which a trace notes a prompt."""
    turns = json.dumps([list(turn) for turn in as_messages(prompt)])
    return hashlib.sha256(turns.encode("ascii")).hexdigest()[:32]


class _Place(NamedTuple):
    part: int
    row: int


class _Asked:
    """Finds answers by their digests: places in memory, and the answers of the parts that were read last."""

    def __init__(self, trace: Trace, kind: Literal["generate", "entail", "retrieve"]) -> None:
        trace.needs_texts("a replay")
        self.trace = trace
        self._kind = kind
        self._held: OrderedDict[int, list[dict[str, Any]]] = OrderedDict()
        self._lock = Lock()
        keys: list[NDArray[np.uint64]] = []
        places: list[NDArray[np.int32]] = []
        for part in trace.manifest:
            found = [
                (_short(record["key"]), row)
                for row, record in enumerate(records_in(trace.path(part.files[ASKED]), ("key", "kind")))
                if record["kind"] == kind
            ]
            keys.append(np.array([key for key, _ in found], dtype=np.uint64))
            places.append(np.array([(part.unit, row) for _, row in found], dtype=np.int32).reshape(-1, 2))
        unsorted = np.concatenate([np.zeros(0, np.uint64), *keys])
        order = np.argsort(unsorted, kind="stable")
        self._keys = unsorted[order]
        self._places = np.concatenate([np.zeros((0, 2), np.int32), *places])[order]

    def answers(self, key: str) -> Iterator[Any]:
        """Yield what was recorded under a digest."""
        first, last = (
            np.searchsorted(self._keys, np.uint64(_short(key)), side) for side in ("left", "right")
        )
        for part, row in self._places[first:last]:
            record = self._records(int(part))[int(row)]
            if record["key"] == key:
                yield asked_answer(record)

    def samplings(self, prompt: str) -> list[str]:
        """Return how a prompt was asked, for a message: this reads the whole trace."""
        return [
            record["sampling"]
            for part in self.trace.manifest
            for record in records_in(self.trace.path(part.files[ASKED]), ("kind", "prompt", "sampling"))
            if record["kind"] == self._kind and record["prompt"] == prompt
        ]

    def _records(self, part: int) -> list[dict[str, Any]]:
        with self._lock:
            if part not in self._held:
                asked = self.trace.manifest.parts[part].files[ASKED]
                self._held[part] = list(records_in(self.trace.path(asked)))
                while len(self._held) > _PARTS_HELD:
                    self._held.popitem(last=False)
            self._held.move_to_end(part)
            return self._held[part]


def _short(key: str) -> int:
    return int(key[:16], 16)
