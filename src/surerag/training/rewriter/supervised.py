"""Learning a teacher's rewrites with trl's SFTTrainer: the loss is on the rewrite alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Trainer
from trl import SFTConfig, SFTTrainer

from surerag.drivers.progress import Progress
from surerag.journal import OnChange
from surerag.prompts import PromptTemplate
from surerag.training.rewriter.bases import load_base, lora_of, window_of
from surerag.training.rewriter.encoding import RewriteEncoder
from surerag.training.rewriter.material import material_of
from surerag.training.rewriter.options import FineTuning
from surerag.training.rewriter.tuning import Job, Tuned, fine_tune

_IGNORED = -100


def learn_rewrites(
    examples: Sequence[tuple[str, str]],
    id_or_path: str | Path,
    output: Path,
    settings: FineTuning,
    prompt: PromptTemplate,
    on_change: OnChange,
    progress: Progress,
) -> Tuned:
    """Fine-tune a base on pairs of query and rewrite.

    See :func:`~surerag.training.rewriter.tuning.fine_tune`.
    """
    base = load_base(id_or_path, settings)
    encoder = RewriteEncoder(base.tokenizer, settings.template_options)
    rows = [_row(encoder, prompt.render(query=query), rewrite) for query, rewrite in examples]
    lengths, queries = [len(row["input_ids"]) for row in rows], [query for query, _ in examples]

    def trainer_of(arguments: dict[str, Any], data: Dataset, held_back: Dataset | None) -> Trainer:
        # The data are token ids with labels already: trl has nothing to prepare.
        config = SFTConfig(**arguments, max_length=None, dataset_kwargs={"skip_prepare_dataset": True})
        return SFTTrainer(
            base.model,
            config,
            train_dataset=data,
            eval_dataset=held_back,
            processing_class=base.tokenizer,
            peft_config=lora_of(settings),
        )

    material = material_of(rows, lengths, queries, settings, window_of(base))
    job = Job("distil", base, material, settings, {}, encoder.end, encoder.variables, trainer_of)
    return fine_tune(job, output, on_change, progress, "Distilling")


def _row(encoder: RewriteEncoder, prompt: str, rewrite: str) -> dict[str, Any]:
    before, after = encoder.prompt(prompt), encoder.rewrite(prompt, rewrite)
    return {"input_ids": before + after, "labels": [_IGNORED] * len(before) + after}
