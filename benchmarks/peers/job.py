"""Jobs for peers and their results, as files: for any Python, any version of transformers.

A job holds folders of the models, prompts, questions, and the statements whose pairs are to be judged.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

NAMES = ("without", "with")


class Stopwatch:
    """Adds up seconds by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = {}

    def time(self, name: str, work: Callable[[], Any]) -> Any:
        """Do some work, and count its time."""
        started = self.clock()
        try:
            return work()
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.clock() - started


def read() -> tuple[dict[str, Any], Stopwatch]:
    """Return the job that the command line names, and a watch; set threads and seed."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    return job, Stopwatch(getattr(time, job["clock"]))


def load(folder: str) -> tuple[Any, Any]:
    """Load the causal model and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


def logits_of(model: Any, tokenizer: Any, prompt: str) -> list[float]:
    """Return some logits behind a prompt, by which it is seen that all use the same weights."""
    with torch.no_grad():
        return model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1, :64].tolist()


def write(package: str, watch: Stopwatch, **found: Any) -> None:
    """Write what was found into the file that the command line names."""
    versions = {name: version(name) for name in (package, "transformers", "torch")}
    result = {"versions": versions, "seconds": watch.seconds, **found}
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")
