"""A server in a process of its own that answers about numbered items, and gets a share of them wrong.

    python -m benchmarks.soak.server SHARE SEED

It prints its address. When its input ends, it prints how many requests there were and how many of each fault,
and ends.
"""

from __future__ import annotations

import json
import random
import re
import sys
import threading
from collections import Counter, deque

from tests.servers.fake_openai import FakeOpenAI, Json
from tests.servers.faults import FAULTS, ONLY_CORE, Fault
from tests.servers.toy_model import Said, Script, split

_ASKED = re.compile(r"#(\d+)")

_SEEN_BY_TOKENS = "tokens spell another text"


def question_of(number: int) -> str:
    """Ask for an item; no other text has its number behind this mark."""
    return f"In which room is item #{number}?"


def evidence_of(number: int) -> str:
    """Say where an item is."""
    return f"Item {number} is in room {number}."


class Items(Script):
    """Answers with the number that the question asks for: surely if it is even, unsurely if it is odd."""

    def __init__(self) -> None:
        super().__init__(self._answer)

    def say(self, prompt: str, temperature: float, seed: int, max_tokens: int) -> Said:
        """Answer a prompt."""
        text = self._answer(prompt)
        words = split(text)
        unsure = text.startswith("Item") and any(int(digits) % 2 for digits in re.findall(r"\d+", text))
        tokens = Script([], -2.0 if unsure else -0.05).read(text)
        return Said(tokens[:max_tokens], "length" if len(words) > max_tokens else "stop")

    def _answer(self, prompt: str) -> str:
        asked = _ASKED.findall(prompt)
        if "entail" in prompt:
            return "entailment"
        if "Rewrite the query" in prompt:
            return f"Where exactly is item #{asked[-1]} kept?"
        return evidence_of(int(asked[-1])) if asked else "There is no item."


class Faulty(FakeOpenAI):
    """Chooses a fault at random for a share of the requests, and counts.

    Args:
        share: Of requests that go wrong, in [0, 1].
        seed: Of the choice.
    """

    def __init__(self, share: float, seed: int) -> None:
        super().__init__(Items())
        self.counts: Counter[str] = Counter()
        self.requests = deque(maxlen=0)
        self.streams = deque(maxlen=0)
        self._share, self._rng, self._choosing = share, random.Random(seed), threading.Lock()

    def fault_for(self, body: Json) -> Fault | None:
        """Choose a fault, or none."""
        with self._choosing:
            name = self._chosen(body)
            self.counts[name or ""] += 1
        return FAULTS.get(name or "")

    def _chosen(self, body: Json) -> str | None:
        if self._rng.random() >= self._share:
            return None
        name = self._rng.choice(list(FAULTS))
        unbound = name in ONLY_CORE and body["model"] != "core"
        # Where no tokens are asked for, nothing tells that a text is not what was said.
        unseen = name == _SEEN_BY_TOKENS and not body.get("logprobs")
        return "500" if unbound or unseen else name


def main(share: float, seed: int) -> None:
    """Serve until the input ends."""
    # A fault that blocks holds a thread; a small stack each, for there are many.
    threading.stack_size(256 * 1024)
    with Faulty(share, seed) as server:
        print(server.base_url, flush=True)
        sys.stdin.read()
        counts = server.counts
    print(json.dumps({"requests": counts.total(), "honest": counts.pop("", 0), "faults": counts}), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
