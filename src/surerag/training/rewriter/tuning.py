"""Fine-tuning a base with one of trl's trainers: begun anew or gone on with, to the same weights."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from surerag.drivers.progress import Progress, reporting
from surerag.errors import ConfigurationError, InputError
from surerag.journal import OnChange
from surerag.readers.transformers.model import CausalModel
from surerag.storage import write_whole
from surerag.training.rewriter.options import FineTuning

CHECKPOINTS, MODEL, RUN, CURVE = "checkpoints", "model", "run.json", "curve.jsonl"
_WHOLE = "whole"
_NO_MATTER = ("device", "save_every", "gradient_checkpointing")
"""Settings that change how weights are found, and not which."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Base:
    """What is fine-tuned.

    Attributes:
        model: Its weights; in float32, but for frozen ones under adapters on an accelerator.
        tokenizer: Its tokenizer.
        name: Its id or the last part of its path, and a short hash of its weights.
        dtype: Of the weights as they were published.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    dtype: torch.dtype


def load_base(id_or_path: str | Path, settings: FineTuning) -> Base:
    """Load a base to be trained, from safetensors only.

    Raises:
        ConfigurationError: If it cannot be loaded.
    """
    where, trusted = str(id_or_path), {"trust_remote_code": settings.trust_remote_code}
    frozen = settings.lora is not None and _accelerated(settings)
    try:
        config = AutoConfig.from_pretrained(where, **trusted)
        tokenizer = AutoTokenizer.from_pretrained(where, **trusted)
        model = AutoModelForCausalLM.from_pretrained(
            where, dtype="auto" if frozen else torch.float32, use_safetensors=True, **trusted
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the base {where!r} cannot be loaded: {str(error).strip().splitlines()[0]}",
            hint="give a causal model's Hugging Face id that can be reached, or the folder of a saved one, "
            "with weights as safetensors",
        ) from error
    known = CausalModel(model, tokenizer)
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    return Base(model, tokenizer, f"{known.origin}@{known.fingerprint}", dtype)


def fitting(rows: Sequence[dict[str, Any]], lengths: Sequence[int], longest: int) -> list[dict[str, Any]]:
    """Leave out rows of more tokens than may be.

    Raises:
        InputError: If none is left.
    """
    kept = [row for row, length in zip(rows, lengths, strict=True) if length <= longest]
    if not kept:
        raise InputError(
            f"all of {len(rows)} examples are longer than {longest} tokens",
            hint="raise max_tokens, or give shorter queries",
        )
    return kept


def fine_tune(
    base: Base,
    trainer_of: Callable[[dict[str, Any], Dataset], Trainer],
    rows: Sequence[dict[str, Any]],
    end: int,
    output: Path,
    settings: FineTuning,
    about: Mapping[str, Any],
    on_change: OnChange,
    progress: Progress,
    description: str,
) -> Path:
    """Train, going on from the last whole checkpoint, and write the model.

    Args:
        base: What to train.
        trainer_of: Makes the trainer from its arguments and the data.
        rows: The data: token ids.
        end: The token that ends a rewrite; the model is told to stop there.
        output: Folder for ``model``, ``run.json``, ``curve.jsonl`` and, while it trains, ``checkpoints``.
        settings: How to train.
        about: Further settings that the weights depend on, as plain values.
        on_change: What to do if the folder belongs to another run; answers are not kept here, so that
            ``"reuse"`` begins anew like ``"restart"`` if something changed.
        progress: How far it is.
        description: What this is called on a bar.

    Returns:
        The model's folder.

    Raises:
        ConfigurationError: If the folder belongs to another run.
    """
    model, checkpoints = output / MODEL, output / CHECKPOINTS
    run = {
        "base": base.name,
        "examples": f"{len(rows)}, digest {_digest(rows)}",
        **about,
        **{name: value for name, value in asdict(settings).items() if name not in _NO_MATTER},
    }
    _claim(output, json.loads(json.dumps(run)), on_change)
    if model.is_dir():
        return model
    trainer = trainer_of(_arguments(settings, checkpoints), Dataset.from_list(list(rows)))
    steps = settings.epochs * math.ceil(len(rows) / settings.batch)
    last = _last_whole(checkpoints)
    with reporting(progress, steps, description) as advance:
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(_Watch(advance))
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    _write_curve(trainer.state, output / CURVE)
    _export(trainer, base, end, model, settings)
    shutil.rmtree(checkpoints)
    return model


def lora_of(settings: FineTuning) -> LoraConfig | None:
    """Return the adapters in peft's terms; None for full fine-tuning."""
    lora = settings.lora
    if lora is None:
        return None
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear" if lora.targets is None else list(lora.targets),
        task_type="CAUSAL_LM",
    )


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

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        (Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / _WHOLE).touch()


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


def _arguments(settings: FineTuning, checkpoints: Path) -> dict[str, Any]:
    """Arguments that trl's configurations share with transformers'."""
    accelerated = _accelerated(settings)
    saves_memory = settings.gradient_checkpointing
    return {
        "output_dir": str(checkpoints),
        "per_device_train_batch_size": settings.turn_size,
        "gradient_accumulation_steps": settings.batch // settings.turn_size,
        "num_train_epochs": settings.epochs,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "linear",
        "seed": settings.seed,
        "data_seed": settings.seed,
        "save_strategy": "steps",
        "save_steps": settings.save_every,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": settings.device == "cpu",
        "bf16": accelerated and torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "gradient_checkpointing": accelerated if saves_memory is None else saves_memory,
        "dataloader_pin_memory": accelerated,
    }


def _accelerated(settings: FineTuning) -> bool:
    return settings.device != "cpu" and (torch.cuda.is_available() or torch.backends.mps.is_available())


def _last_whole(checkpoints: Path) -> Path | None:
    """Return the last checkpoint that was written to its end; remove what a kill left of others."""
    found = list(checkpoints.glob("checkpoint-*"))
    for folder in found:
        if not (folder / _WHOLE).exists():
            shutil.rmtree(folder)
    whole = [folder for folder in found if folder.exists()]
    return max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


def _export(trainer: Trainer, base: Base, end: int, folder: Path, settings: FineTuning) -> None:
    """Write model and tokenizer under another name first; adapters are merged, and kept beside."""
    unfinished = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    model: Any = trainer.model
    if isinstance(model, PeftModel):
        model.save_pretrained(str(unfinished / "adapter"))
        model = model.merge_and_unload()
    model = model.to("cpu", base.dtype if settings.dtype == "base" else _DTYPES[settings.dtype])
    model.config.use_cache = True
    known = model.generation_config.eos_token_id
    ends = known if isinstance(known, list) else [known]
    model.generation_config.eos_token_id = (
        known if end in ends else [*(e for e in ends if e is not None), end]
    )
    model.save_pretrained(unfinished)
    base.tokenizer.save_pretrained(unfinished)
    unfinished.replace(folder)


def _write_curve(state: TrainerState, file: Path) -> None:
    """Write what was noted of each step; not what depends on the process: equal runs write the same."""
    own = ("runtime", "per_second", "flos", "num_tokens")
    lines = [
        json.dumps(
            {name: value for name, value in entry.items() if not any(part in name for part in own)},
            sort_keys=True,
        )
        for entry in state.log_history
        if "loss" in entry
    ]
    write_whole(file, "".join(f"{line}\n" for line in lines))


def _digest(rows: Sequence[dict[str, Any]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True).encode("ascii"))
    return digest.hexdigest()[:16]
