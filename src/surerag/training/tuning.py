"""Fine-tune a model with TRL: distillation (SFT) and alignment (DPO), resumed from the last checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from surerag.errors import ConfigurationError, extra, writing
from surerag.readers.failures import reason_of
from surerag.training.options import RewriterTraining
from surerag.training.sampling import Preference

CHECKPOINTS = "checkpoints"


def distil(
    pairs: Sequence[tuple[str, str]], base: str | Path, output: Path, options: RewriterTraining
) -> Path:
    """Fine-tune a base model on a teacher's rewrites (SFT; DynQR, section 2.2); return the model's folder."""
    examples = [(query, {"completion": rewrite}) for query, rewrite in pairs]
    return _tune("distil", examples, base, output, options)


def align(
    preferences: Sequence[Preference], base: str | Path, output: Path, options: RewriterTraining
) -> Path:
    """Fine-tune a distilled rewriter on preferences (DPO; DynQR, section 2.2); return the model's folder."""
    examples = [(item.query, {"chosen": item.better, "rejected": item.worse}) for item in preferences]
    return _tune("align", examples, base, output, options)


def _tune(
    stage: Literal["distil", "align"],
    examples: Sequence[tuple[str, dict[str, str]]],
    base: str | Path,
    output: Path,
    options: RewriterTraining,
) -> Path:
    checkpoints = output / CHECKPOINTS
    if (output / "config.json").exists() and not checkpoints.exists():
        return output
    with extra("train"):
        from datasets import Dataset
        from transformers.trainer_utils import get_last_checkpoint
        from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
    model, tokenizer = load_base(base)
    rows = Dataset.from_list([_row(options, tokenizer, query, **texts) for query, texts in examples])
    arguments = _arguments(output, options, stage, len(rows))
    shared = {"train_dataset": rows, "processing_class": tokenizer, "peft_config": _adapters(options)}
    trainer: Any
    if stage == "distil":
        trainer = SFTTrainer(
            model, SFTConfig(**{**arguments, "completion_only_loss": True, **options.trainer}), **shared
        )
    else:
        trainer = DPOTrainer(
            model, None, DPOConfig(**{**arguments, "beta": 0.1, **options.trainer}), **shared
        )
    last = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    with writing(output):
        trainer.train(resume_from_checkpoint=last)
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "merge_and_unload"):
            model = model.merge_and_unload()
        model.save_pretrained(str(output))
        tokenizer.save_pretrained(str(output))
    shutil.rmtree(checkpoints, ignore_errors=True)
    return output


def load_base(base: str | Path) -> tuple[Any, Any]:
    """Return a model to train, and its tokenizer; raise ConfigurationError if they cannot be loaded."""
    with extra("train"):
        import trl  # noqa: F401
        from transformers import AutoModelForCausalLM, AutoTokenizer
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(base))
        # Only safetensors are loaded, because pickled weights could run code.
        model = AutoModelForCausalLM.from_pretrained(str(base), dtype="float32", use_safetensors=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the base model {str(base)!r} cannot be loaded: {reason_of(error)}",
            hint="pass the Hugging Face id of a causal language model, or a folder with safetensors",
        ) from error
    if tokenizer.eos_token is None:
        raise ConfigurationError(f"the tokenizer of {base} has no end token", hint="pass another base model")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _row(options: RewriterTraining, tokenizer: Any, query: str, **texts: str) -> dict[str, Any]:
    prompt = options.prompts["rewrite"].render(query=query)
    if tokenizer.chat_template is None:
        return {"prompt": f"{prompt}\n", **{name: text + tokenizer.eos_token for name, text in texts.items()}}
    answers = {name: [{"role": "assistant", "content": text}] for name, text in texts.items()}
    # Thinking is switched off in training, as it is when the rewriter is used.
    template = {"chat_template_kwargs": {"enable_thinking": False}}
    return {"prompt": [{"role": "user", "content": prompt}], **answers, **template}


def _arguments(output: Path, options: RewriterTraining, stage: str, rows: int) -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available()
    batch = getattr(options, f"{stage}_batch") or min(max(rows // 32, 4), 32)
    at_once = next(size for size in range(8, 0, -1) if batch % size == 0)
    return {
        "use_cpu": not cuda,
        "bf16": cuda and torch.cuda.is_bf16_supported(),
        "output_dir": str(output / CHECKPOINTS),
        "learning_rate": getattr(options, f"{stage}_rate"),
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": batch // at_once,
        "num_train_epochs": getattr(options, f"{stage}_epochs"),
        "save_strategy": "steps",
        "save_steps": 0.1,
        "save_total_limit": 2,
        "logging_steps": 10,
        "report_to": "none",
        "seed": options.seed,
        "data_seed": options.seed,
    }


def _adapters(options: RewriterTraining) -> Any:
    if options.lora_rank is None:
        return None
    from peft import LoraConfig

    return LoraConfig(r=options.lora_rank, lora_alpha=2 * options.lora_rank, target_modules="all-linear")
