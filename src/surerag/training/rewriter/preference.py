"""Learning preferences between rewrites with trl's DPOTrainer (Rafailov et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Trainer
from trl import DPOConfig, DPOTrainer

from surerag.drivers.progress import Progress
from surerag.journal import OnChange
from surerag.training.rewriter.encoding import RewriteEncoder
from surerag.training.rewriter.options import AlignOptions
from surerag.training.rewriter.tuning import fine_tune, fitting, load_base, lora_of


class _Encoded(DPOTrainer):
    """Takes token ids, as the rewriter will see and say them, where trl would make its own from texts."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset


def learn_preferences(
    triplets: Sequence[tuple[str, str, str]],
    id_or_path: str | Path,
    output: Path,
    options: AlignOptions,
    on_change: OnChange,
    progress: Progress,
) -> Path:
    """Fine-tune a rewriter on triplets of query, better and worse rewrite.

    See :func:`~surerag.training.rewriter.tuning.fine_tune`. What is preferred is measured against the
    rewriter as it was; with adapters, that is the model without them.
    """
    settings = options.fine_tuning
    base = load_base(id_or_path, settings)
    reference = None if settings.lora else load_base(id_or_path, settings).model
    encoder = RewriteEncoder(base.tokenizer, settings.template_options)
    rows = []
    for query, better, worse in triplets:
        prompt = options.prompts["rewrite"].render(query=query)
        rows.append(
            {
                "prompt_ids": encoder.prompt(prompt),
                "chosen_ids": encoder.rewrite(prompt, better),
                "rejected_ids": encoder.rewrite(prompt, worse),
            }
        )
    lengths = [len(row["prompt_ids"]) + max(len(row["chosen_ids"]), len(row["rejected_ids"])) for row in rows]
    rows = fitting(rows, lengths, settings.max_tokens)

    def trainer_of(arguments: dict[str, Any], data: Dataset) -> Trainer:
        config = DPOConfig(**arguments, beta=options.beta, max_length=None)
        return _Encoded(
            base.model,
            reference,
            config,
            train_dataset=data,
            processing_class=base.tokenizer,
            peft_config=lora_of(settings),
        )

    about = {"stage": "align", "beta": options.beta}
    return fine_tune(
        base, trainer_of, rows, encoder.end, output, settings, about, on_change, progress, "Aligning"
    )
