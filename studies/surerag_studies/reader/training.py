"""Train the embedded reader from scratch: ``python -m surerag_studies.reader.training --output DIR``.

Two CPU cores need less than two hours, a GPU minutes. Batches are a function of seed and step, so that a
run that was interrupted and resumed sees the same data as one that was not.
"""

from __future__ import annotations

import ctypes
import json
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as functional
import typer
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from surerag.world.relations import RELATIONS
from surerag_studies.reader.batches import Batch, Batches, Encoder, probe_sets, yield_to_trainer
from surerag_studies.reader.model import (
    SHAPES,
    Shape,
    States,
    attention_scores,
    build_config,
    hidden_states,
    layer,
    rotary,
    set_out,
)
from surerag_studies.reader.tokenizer import build_tokenizer, marks

NOTES_WEIGHT = 0.3
"""Weight of each loss on early states: what a sentence told, what a question asks for, where it was told."""

_EMBEDDING = "model.embed_tokens.weight"
# Options of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


class Trainer:
    """Weights, optimisers, and one step of training."""

    def __init__(
        self, config: Qwen3Config, shape: Shape, *, seed: int, device: torch.device, compiled: bool
    ) -> None:
        torch.manual_seed(seed)
        self.config, self.shape, self.device = config, shape, device
        model = Qwen3ForCausalLM(config)
        self.weights: dict[str, Tensor] = {
            name: parameter.detach().to(device).requires_grad_()
            for name, parameter in model.named_parameters()
        }
        set_out(self.weights, shape, seed=seed)
        # They serve training alone, and are not a part of the model.
        self.heads: dict[str, Tensor] = {
            "entity": torch.eye(shape.width, device=device).mul_(0.3).requires_grad_(),
            "value": torch.eye(shape.width, device=device).mul_(0.3).requires_grad_(),
            "relation": torch.zeros(len(RELATIONS), shape.width, device=device, requires_grad=True),
        }
        sharp = [w for name, w in self.weights.items() if "q_norm" in name or "k_norm" in name]
        hidden = [w for name, w in self.weights.items() if w.ndim == 2 and "embed" not in name]
        rest = [
            w
            for name, w in self.weights.items()
            if "embed" in name or "layernorm" in name or "model.norm" in name
        ]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(hidden, lr=0.01, weight_decay=0.01),
            torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.97), weight_decay=0.0),
            # These weights bound how sharply attention can pick out one name among many; at the rate of
            # the others they grow for thousands of steps.
            torch.optim.AdamW(sharp, lr=5e-3, betas=(0.9, 0.97), weight_decay=0.0),
            torch.optim.AdamW(list(self.heads.values()), lr=1e-3, betas=(0.9, 0.97), weight_decay=0.0),
        ]
        self._rates = [group["lr"] for opt in self.optimizers for group in opt.param_groups]
        self._layer = torch.compile(layer) if compiled else layer
        longest = 2048
        self._cos, self._sin = rotary(config, longest, torch.bfloat16, device)

    def logits(self, ids: Tensor, where: Tensor) -> Tensor:
        """Return logits [selected, vocabulary] at the selected positions."""
        cast = self._cast()
        return functional.linear(self._states(ids, cast).last[where], cast[_EMBEDDING]).float()

    def _cast(self) -> dict[str, Tensor]:
        return {name: w.to(torch.bfloat16) for name, w in self.weights.items()}

    def _states(self, ids: Tensor, cast: dict[str, Tensor]) -> States:
        return hidden_states(ids, cast, self._cos, self._sin, self.shape.layers, self._layer)

    def step(self, batch: Batch, rate: float) -> dict[str, tuple[float, int]]:
        """Learn from a batch; returns each task's summed loss and count, the notes among them."""
        ids, weight = batch.ids.to(self.device), batch.weight.to(self.device)
        where = weight[:, :-1] > 0
        where = functional.pad(where, (0, 1))
        targets = functional.pad(ids[:, 1:], (0, 1))[where]
        cast = self._cast()
        states = self._states(ids, cast)
        logits = functional.linear(states.last[where], cast[_EMBEDDING]).float()
        losses = functional.cross_entropy(logits, targets, reduction="none")
        weights = weight[where]
        loss = (losses * weights).sum() / weights.sum()
        sums: dict[str, tuple[float, int]] = {}
        noted: dict[str, Tensor] = {}
        if len(batch.notes):
            noted = self._noted(states.early, cast[_EMBEDDING], batch.notes.to(self.device))
        if len(batch.links):
            links = batch.links.to(self.device)
            scores = attention_scores(states.early, cast, links, self._cos, self._sin)
            noted["look-up"] = functional.cross_entropy(scores, links[:, 2])
        if noted:
            loss = loss + NOTES_WEIGHT * torch.stack(list(noted.values())).sum()
            sums = {f"~{name}": (value.item(), 1) for name, value in noted.items()}
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for group, base in zip(
            (g for o in self.optimizers for g in o.param_groups), self._rates, strict=True
        ):
            group["lr"] = base * rate
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        rows = where.nonzero()[:, 0]
        for row, value in zip(rows.tolist(), losses.tolist(), strict=True):
            total, count = sums.get(batch.tasks[row], (0.0, 0))
            sums[batch.tasks[row]] = (total + value, count + 1)
        return sums

    def _noted(self, early: Tensor, embedding: Tensor, notes: Tensor) -> dict[str, Tensor]:
        """Return how well early states tell of what they are to know."""
        at = early[notes[:, 0], notes[:, 1]]
        heads = {name: w.to(torch.bfloat16) for name, w in self.heads.items()}
        entity = functional.linear(functional.linear(at, heads["entity"]), embedding).float()
        value = functional.linear(functional.linear(at, heads["value"]), embedding).float()
        return {
            "entity": functional.cross_entropy(entity, notes[:, 2]),
            "relation": functional.cross_entropy(
                functional.linear(at, heads["relation"]).float(), notes[:, 3]
            ),
            "value": functional.cross_entropy(value, notes[:, 4], ignore_index=-1, reduction="sum")
            / (notes[:, 4] >= 0).sum().clamp(min=1),
        }

    @torch.no_grad()
    def exact(self, batch: Batch) -> list[bool]:
        """Tell for each row whether greedy decoding would give its answers, word for word."""
        ids, weight = batch.ids.to(self.device), batch.weight.to(self.device)
        where = functional.pad(weight[:, :-1] > 0, (0, 1))
        targets = functional.pad(ids[:, 1:], (0, 1))[where]
        wrong = self.logits(ids, where).argmax(-1) != targets
        rows = where.nonzero()[:, 0][wrong]
        bad = set(rows.tolist())
        return [row not in bad for row in range(len(ids))]

    def save(self, path: Path, state: Mapping[str, float]) -> None:
        """Write a checkpoint, all or nothing."""
        content = {
            "weights": {name: w.detach() for name, w in self.weights.items()},
            "heads": {name: w.detach() for name, w in self.heads.items()},
            "optimizers": [o.state_dict() for o in self.optimizers],
            "state": dict(state),
        }
        torch.save(content, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def load(self, path: Path) -> dict[str, float]:
        """Continue from a checkpoint; returns what was saved beside it."""
        content = torch.load(path, map_location=self.device, weights_only=True)
        with torch.no_grad():
            for part, tensors in (("weights", self.weights), ("heads", self.heads)):
                for name, w in tensors.items():
                    w.copy_(content[part][name])
        for optimizer, saved in zip(self.optimizers, content["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        state: dict[str, float] = content["state"]
        return state

    def start_from(self, directory: Path) -> None:
        """Begin with the weights of an exported model of the same size."""
        saved = load_file(directory / "model.safetensors")
        with torch.no_grad():
            for name, w in self.weights.items():
                w.copy_(saved[name])

    def export(self, directory: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        """Write the model as Transformers loads it, weights in bfloat16."""
        directory.mkdir(parents=True, exist_ok=True)
        self.config.architectures = ["Qwen3ForCausalLM"]
        self.config.dtype = torch.bfloat16
        self.config.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        weights = {
            name: w.detach().to("cpu", torch.bfloat16).contiguous() for name, w in self.weights.items()
        }
        file = directory / "model.safetensors"
        save_file(weights, file, metadata={"format": "pt"})
        file.chmod(0o644)


def rate_at(step: int, progress: float) -> float:
    """Warm up over 50 steps; fall linearly over the last quarter."""
    return min(1.0, (step + 1) / 50) * min(1.0, max(0.0, (1 - progress) / 0.25))


def train(
    output: Path,
    *,
    size: str = "default",
    seed: int = 0,
    steps: int = 6000,
    minutes: float = 110.0,
    tokens: int = 6_000,
    without: Sequence[str] = (),
    start: Path | None = None,
    resume: Path | None = None,
    every: int = 500,
    compiled: bool = True,
    decay_now: bool = False,
    workers: int = 1,
    probed: int = 96,
) -> Path:
    """Train and export a reader.

    Args:
        output: Directory for the model; checkpoints and curves go beside the weights, into ``run/``.
        size: A name in `SHAPES`.
        seed: Seed of weights and data.
        steps: Number of steps.
        minutes: Wall-clock bound; the rate falls to 0 by whichever ends first.
        tokens: Tokens a step.
        without: Tasks to leave out, as named in `tasks.TASKS`.
        start: An exported model of the same size to begin with, rather than from scratch.
        resume: A checkpoint to go on from.
        every: Steps between probes and checkpoints.
        compiled: Whether to compile the forward pass (needs a C++ compiler on a CPU).
        decay_now: Start the decay of the rate at the resumed step.
        workers: Processes that make batches; with 0 the trainer makes them itself.
        probed: Examples of each task in a probe.

    Returns:
        The output directory.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = SHAPES[size]
    tokenizer = build_tokenizer() if start is None else PreTrainedTokenizerFast.from_pretrained(start)
    special = marks(tokenizer)
    config = build_config(shape, len(tokenizer), special.end, special.pad)
    trainer = Trainer(config, shape, seed=seed, device=device, compiled=compiled)
    state = {"step": 0.0, "seconds": 0.0}
    if start is not None:
        trainer.start_from(start)
    if resume is not None:
        state = trainer.load(resume)
    run = output / "run"
    run.mkdir(parents=True, exist_ok=True)
    first = int(state["step"])
    data = Batches(tokenizer, seed=seed, first=first, tokens=tokens, without=frozenset(without))
    loader = iter(
        DataLoader(
            data,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=16 if workers else None,
            worker_init_fn=yield_to_trainer,
        )
    )
    probes = probe_sets(Encoder(tokenizer), special.pad, probed)
    began = time.monotonic() - state["seconds"]
    began_here = time.monotonic()
    sums: dict[str, tuple[float, int]] = {}
    for step in range(first, steps):
        seconds = time.monotonic() - began
        progress = max(step / steps, seconds / 60 / minutes)
        if decay_now:
            left = max((step - first) / (steps - first), (time.monotonic() - began_here) / 60 / minutes)
            progress = 0.75 + 0.25 * left
        if progress >= 1:
            break
        for task, (total, count) in trainer.step(next(loader), rate_at(step, progress)).items():
            before = sums.get(task, (0.0, 0))
            sums[task] = (before[0] + total, before[1] + count)
        if (step + 1) % 25 == 0:
            losses = {task: round(total / count, 3) for task, (total, count) in sorted(sums.items())}
            _log(run, {"step": step + 1, "seconds": round(time.monotonic() - began), "loss": losses})
            sums = {}
        if (step + 1) % every == 0:
            state = {"step": step + 1, "seconds": time.monotonic() - began}
            trainer.save(run / "last.pt", state)
            if (step + 1) % (4 * every) == 0:
                trainer.save(run / f"step{step + 1}.pt", state)
            figures = {
                name: round(
                    sum(sum(trainer.exact(b), 0) for b in batches) / sum(len(b.ids) for b in batches), 3
                )
                for name, batches in probes.items()
            }
            _log(run, {"step": step + 1, "seconds": round(time.monotonic() - began), "exact": figures})
    trainer.save(run / "last.pt", {"step": step + 1, "seconds": time.monotonic() - began})
    trainer.export(output, tokenizer)
    return output


def _keep_memory() -> None:
    """Ask glibc to keep freed blocks: returning and fetching them again costs a fifth of a step."""
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**29)):
        libc.mallopt(option, value)


def _log(run: Path, entry: Mapping[str, object]) -> None:
    line = json.dumps(entry)
    print(line, flush=True)
    with (run / "curves.jsonl").open("a") as file:
        file.write(line + "\n")


def main(
    output: Annotated[Path, typer.Option(help="Directory for the model.")],
    size: Annotated[str, typer.Option(help="default or small.")] = "default",
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
    steps: Annotated[int, typer.Option(help="Number of steps.")] = 6000,
    minutes: Annotated[float, typer.Option(help="Wall-clock bound.")] = 110.0,
    tokens: Annotated[int, typer.Option(help="Tokens a step.")] = 6_000,
    without: Annotated[list[str] | None, typer.Option(help="A task to leave out; may be repeated.")] = None,
    start: Annotated[Path | None, typer.Option(help="Exported model to begin with.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Checkpoint to go on from.")] = None,
    every: Annotated[int, typer.Option(help="Steps between probes.")] = 500,
    compiled: Annotated[bool, typer.Option(help="Compile the forward pass.")] = True,
    decay_now: Annotated[bool, typer.Option(help="Let the rate fall from the resumed step on.")] = False,
) -> None:
    """Train the embedded reader from scratch."""
    _keep_memory()
    train(
        output, size=size, seed=seed, steps=steps, minutes=minutes, tokens=tokens, without=without or (),
        start=start, resume=resume, every=every, compiled=compiled, decay_now=decay_now,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
