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
from surerag.training.rewriter.bases import load_base, lora_of, window_of
from surerag.training.rewriter.encoding import RewriteEncoder
from surerag.training.rewriter.material import material_of
from surerag.training.rewriter.options import AlignOptions
from surerag.training.rewriter.tuning import Job, Tuned, fine_tune


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
) -> Tuned:
    """Fine-tune a rewriter on triplets of query, better and worse rewrite.

    See :func:`~surerag.training.rewriter.tuning.fine_tune`. What is preferred is measured against the
    rewriter as it was; with adapters, that is the model without them, and where the reference's
    log-probabilities are computed beforehand, the model before its first step.
    """
    settings = options.fine_tuning
    base = load_base(id_or_path, settings)
    spared = settings.lora is not None or bool(settings.trainer.get("precompute_ref_log_probs"))
    reference = None if spared else load_base(id_or_path, settings).model
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

    def trainer_of(arguments: dict[str, Any], data: Dataset, held_back: Dataset | None) -> Trainer:
        config = DPOConfig(**arguments, beta=options.beta, max_length=None)
        return _Encoded(
            base.model,
            reference,
            config,
            train_dataset=data,
            eval_dataset=held_back,
            processing_class=base.tokenizer,
            peft_config=lora_of(settings),
        )

    queries = [query for query, _, _ in triplets]
    material = material_of(rows, lengths, queries, settings, window_of(base))
    about = {"beta": options.beta}
    job = Job("align", base, material, settings, about, encoder.end, encoder.variables, trainer_of)
    return fine_tune(job, output, on_change, progress, "Aligning")
