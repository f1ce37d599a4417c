"""Fine-tuning a base with one of trl's trainers: begun anew or gone on with, to the same weights."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from safetensors import SafetensorError
from transformers import (
    EarlyStoppingCallback,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations.integration_utils import TensorBoardCallback

from surerag.drivers.progress import Progress, reporting
from surerag.errors import ConfigurationError, ServiceError
from surerag.journal import OnChange
from surerag.storage import unwritable, write_whole
from surerag.training.rewriter.bases import TENSORBOARD, Base, accelerated
from surerag.training.rewriter.exporting import export
from surerag.training.rewriter.material import Material
from surerag.training.rewriter.options import FineTuning
from surerag.training.rewriter.processes import is_first, number, wait_for_all
from surerag.training.rewriter.recipe import Recipe, Stage, settled
from surerag.training.rewriter.results import Learnt

CHECKPOINTS, MODEL, RUN, CURVE, LEARNT = "checkpoints", "model", "run.json", "curve.jsonl", "learnt.json"
_WHOLE, _ENDED = "whole", "ended"
_NO_MATTER = (
    "device", "micro_batch", "save_every", "gradient_checkpointing", "attention", "report_to",
)  # fmt: skip
"""Settings that change how weights are found, and not which."""
_BARELY = 10
"""Fewer steps are worth a warning."""

logger = logging.getLogger("surerag")


@dataclass(frozen=True, slots=True)
class Job:
    """A base, what it is to learn, and how.

    Attributes:
        stage: Which stage it belongs to.
        base: What to train.
        material: From what.
        settings: How, as far as somebody said.
        about: Further settings that the weights depend on, as plain values.
        end: The token that ends a rewrite.
        variables: Of the chat template, as they were in training.
        trainer: Makes the trainer from its arguments, the data and what is held back.
    """

    stage: Stage
    base: Base
    material: Material
    settings: FineTuning
    about: Mapping[str, Any]
    end: int
    variables: Mapping[str, Any]
    trainer: Callable[[dict[str, Any], Dataset, Dataset | None], Trainer]


class Tuned(NamedTuple):
    """A model's folder, and how it came about."""

    model: Path
    learnt: Learnt


def fine_tune(job: Job, output: Path, on_change: OnChange, progress: Progress, description: str) -> Tuned:
    """Train, going on from the last whole checkpoint, and write the model.

    Args:
        job: Who is to learn what.
        output: Folder for ``model``, ``run.json``, ``curve.jsonl``, ``learnt.json``, ``tensorboard`` if that
            is reported to, and, while it trains, ``checkpoints``.
        on_change: What to do if the folder belongs to another run; answers are not kept here, so that
            ``"reuse"`` begins anew like ``"restart"`` if something changed.
        progress: How far it is.
        description: What this is called on a bar.

    Raises:
        ConfigurationError: If the folder belongs to another run.
        StorageError: If the disk is full; checkpoints stay.
        ServiceError: If there is too little memory; checkpoints stay.
    """
    model, checkpoints, cpu = output / MODEL, output / CHECKPOINTS, job.settings.device == "cpu"
    weights = sum(parameter.numel() for parameter in job.base.model.parameters())
    rows, held_back = map(len, job.material)
    recipe = settled(job.settings, job.stage, rows, weights, number(), looks=held_back > 0)
    if is_first():
        _claim(output, _run(job, recipe), on_change)
    wait_for_all(cpu=cpu)
    if not model.is_dir():
        with _explained(output):
            _train(job, recipe, output, progress, description)
    wait_for_all(cpu=cpu)
    if is_first():
        shutil.rmtree(checkpoints, ignore_errors=True)
    return Tuned(model, Learnt(**json.loads((output / LEARNT).read_text(encoding="utf-8"))))


def _train(job: Job, recipe: Recipe, output: Path, progress: Progress, description: str) -> None:
    checkpoints, held_back = output / CHECKPOINTS, job.material.held_back
    arguments = _arguments(job, recipe, checkpoints)
    data = [Dataset.from_list(rows) if rows else None for rows in job.material]
    trainer = job.trainer(arguments, data[0], data[1])
    last = _last_whole(checkpoints)
    with reporting(progress, recipe.steps, description) as advance:
        trainer.remove_callback(PrinterCallback)
        if held_back:
            trainer.add_callback(EarlyStoppingCallback(job.settings.patience))
        trainer.add_callback(_Watch(advance))
        if job.settings.report_to == TENSORBOARD:
            curves = TensorBoardCallback()
            curves.logging_dir = str(output / TENSORBOARD)  # beside the checkpoints they would go with these
            trainer.add_callback(curves)
        if held_back and last is not None and (last / _WHOLE).read_text(encoding="utf-8") == _ENDED:
            # It had ended, early perhaps: one more step could find another best.
            trainer.state = TrainerState.load_from_json(str(last / "trainer_state.json"))
            trainer._load_best_model()
        else:
            trainer.train(resume_from_checkpoint=None if last is None else str(last))
    found = trainer.evaluate() if held_back else {}
    if is_first():
        _write_curve(trainer.state, output / CURVE)
        learnt = _learnt(trainer.state, recipe, job.material, found)
        write_whole(output / LEARNT, json.dumps(asdict(learnt), indent=2) + "\n")
    export(trainer, job.base, job.end, job.variables, output / MODEL, job.settings)


def _run(job: Job, recipe: Recipe) -> dict[str, Any]:
    """Return what the weights depend on."""
    set_ = {name: value for name, value in asdict(job.settings).items() if name not in _NO_MATTER}
    run = {
        "base": job.base.name,
        "examples": f"{len(job.material.rows)}, digest {_digest(job.material.rows)}",
        "held_back": f"{len(job.material.held_back)}, digest {_digest(job.material.held_back)}",
        "stage": job.stage,
        **job.about,
        **set_,
        "learning_rate": recipe.learning_rate,
        "batch": recipe.batch,
        "epochs": recipe.epochs,
        "template_options": dict(job.variables),
    }
    return dict(json.loads(json.dumps(run)))


class _Watch(TrainerCallback):
    """Tells of every step, and marks checkpoints that are whole."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        for _step in range(state.global_step):
            self._advance()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._advance()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Any = None,
        **_: Any,
    ) -> None:
        if logs and is_first() and (told := {"loss", "eval_loss"} & logs.keys()):
            shown = ", ".join(f"{name} {float(logs[name]):.4f}" for name in sorted(told))
            logger.info("step %d of %d: %s", state.global_step, state.max_steps, shown)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if is_first():
            file = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / _WHOLE
            write_whole(file, _ENDED if control.should_training_stop else "")


def _claim(output: Path, run: Mapping[str, Any], on_change: OnChange) -> None:
    """Take a folder for a run; what another one left there is refused, or removed."""
    file = output / RUN
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    if before is not None and before != run and on_change == "error":
        changes = [
            f"{name} was {before.get(name)!r} and is {run.get(name)!r}"
            for name in dict.fromkeys([*run, *before])
            if before.get(name) != run.get(name)
        ]
        raise ConfigurationError(
            f"{output} holds the training of another run: {'; '.join(changes)}",
            hint="write to another folder, or begin its training anew with --restart (on_change='restart') "
            "or, keeping answers that still apply, with --reuse (on_change='reuse')",
        )
    if before != run or on_change == "restart":
        for name in (MODEL, CHECKPOINTS):
            shutil.rmtree(output / name, ignore_errors=True)
        output.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(run, indent=2) + "\n")


def _arguments(job: Job, recipe: Recipe, checkpoints: Path) -> dict[str, Any]:
    """Arguments that trl's configurations share with transformers'."""
    settings, fast = job.settings, accelerated(job.settings)
    saves_memory = settings.gradient_checkpointing
    looks: dict[str, Any] = {}
    if job.material.held_back:
        looks = {
            "eval_strategy": "steps",
            "eval_steps": recipe.save_every,
            "per_device_eval_batch_size": 1,  # so that means over batches are means over examples
            "load_best_model_at_end": True,
            "metric_for_best_model": "eval_loss",
            "restore_callback_states_from_checkpoint": True,
        }
    return {
        "output_dir": str(checkpoints),
        "per_device_train_batch_size": recipe.turn,
        "gradient_accumulation_steps": recipe.turns,
        "num_train_epochs": recipe.epochs,
        "learning_rate": recipe.learning_rate,
        "lr_scheduler_type": "linear",
        "seed": settings.seed,
        "data_seed": settings.seed,
        "save_strategy": "steps",
        "save_steps": recipe.save_every,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": "none" if settings.report_to == TENSORBOARD else settings.report_to,
        "disable_tqdm": True,
        "use_cpu": settings.device == "cpu",
        "bf16": fast and torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "gradient_checkpointing": fast if saves_memory is None else saves_memory,
        "dataloader_pin_memory": fast,
        **looks,
        **settings.trainer,
    }


def _last_whole(checkpoints: Path) -> Path | None:
    """Return the last checkpoint that was written to its end; remove what a kill left of others."""
    found = list(checkpoints.glob("checkpoint-*"))
    if is_first():
        for folder in found:
            if not (folder / _WHOLE).exists():
                shutil.rmtree(folder)
    whole = [folder for folder in found if (folder / _WHOLE).exists()]
    return max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


@contextmanager
def _explained(output: Path) -> Iterator[None]:
    """Say of a full disk and of too little memory what to do; other errors stay as they are."""
    kept = "training goes on from its last checkpoint"
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ServiceError(
            f"there is too little memory: {str(error).splitlines()[0]}",
            hint=f"lower --micro-batch (micro_batch), or train adapters with --lora; {kept}",
        ) from error
    except OSError as error:
        if error.errno is None or (error.filename is None and error.errno != errno.ENOSPC):
            raise
        raise unwritable(output, error, kept=kept) from error
    except (SafetensorError, RuntimeError) as error:
        # Both libraries hide the disk's own number.
        if not any(sign in str(error) for sign in ("os error 28", "No space left", "PytorchStreamWriter")):
            raise
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise unwritable(output, full, kept=kept) from error


def _learnt(state: TrainerState, recipe: Recipe, material: Material, found: Mapping[str, float]) -> Learnt:
    losses = [float(entry["loss"]) for entry in state.log_history if "loss" in entry]
    best = state.best_global_step if material.held_back else None
    right = found.get("eval_rewards/accuracies")
    learnt = Learnt(
        examples=len(material.rows),
        held_back=len(material.held_back),
        learning_rate=recipe.learning_rate,
        batch=recipe.batch,
        epochs=recipe.epochs,
        steps=state.global_step,
        first_loss=losses[0],
        last_loss=losses[-1],
        best_step=best,
        held_back_loss=found.get("eval_loss"),
        preferred=None if right is None else round(right * len(material.held_back)),
    )
    if learnt.steps < _BARELY:
        logger.warning("only %d steps were taken: hardly anything can have been learnt", learnt.steps)
    return learnt


def _write_curve(state: TrainerState, file: Path) -> None:
    """Write what was noted of each step; not what depends on the process: equal runs write the same."""
    own = ("runtime", "per_second", "flos", "num_tokens")
    lines = [
        json.dumps(
            {name: value for name, value in entry.items() if not any(part in name for part in own)},
            sort_keys=True,
        )
        for entry in state.log_history
        if "loss" in entry or "eval_loss" in entry
    ]
    write_whole(file, "".join(f"{line}\n" for line in lines))


def _digest(rows: Sequence[dict[str, Any]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True).encode("ascii"))
    return digest.hexdigest()[:16]
