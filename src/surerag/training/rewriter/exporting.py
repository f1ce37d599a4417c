"""Writing a trained rewriter: whole, its adapter beside it, with the template it was trained with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerBase, Trainer

from surerag.training.rewriter.bases import Base, load_base
from surerag.training.rewriter.options import FineTuning
from surerag.training.rewriter.processes import is_first

ADAPTER = "adapter"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export(
    trainer: Trainer, base: Base, end: int, variables: Mapping[str, Any], folder: Path, settings: FineTuning
) -> None:
    """Write model and tokenizer under another name first; adapters are merged, and kept beside.

    Args:
        trainer: Holds what was trained, perhaps in pieces in several processes.
        base: What it was trained from.
        end: The token that ends a rewrite; the model is told to stop there.
        variables: Of the chat template; they become its defaults.
        folder: Where to.
        settings: How it was trained.
    """
    # With weights in pieces, all processes help to put them together; the first one writes.
    weights = trainer.accelerator.get_state_dict(trainer.model) if trainer.is_fsdp_enabled else None
    if not is_first():
        return
    unfinished = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    if isinstance(model, PeftModel):
        adapter = unfinished / ADAPTER
        model.save_pretrained(str(adapter), state_dict=weights)
        if settings.four_bit or weights is not None:
            # Merged into the weights as they were published, not as they were held.
            whole = load_base(
                base.source, FineTuning(device="cpu", trust_remote_code=settings.trust_remote_code)
            )
            model = PeftModel.from_pretrained(whole.model, str(adapter))
        model, weights = model.merge_and_unload(), None
        make_portable(adapter, base.source)
    if weights is None:
        model = model.to("cpu", base.dtype if settings.dtype == "base" else _DTYPES[settings.dtype])
    model.config.use_cache = True
    known = model.generation_config.eos_token_id
    ends = known if isinstance(known, list) else [known]
    model.generation_config.eos_token_id = (
        known if end in ends else [*(e for e in ends if e is not None), end]
    )
    model.save_pretrained(unfinished, state_dict=weights)
    settled_template(base.tokenizer, variables)
    base.tokenizer.save_pretrained(unfinished)
    unfinished.replace(folder)


def settled_template(tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any]) -> None:
    """Make variables of a chat template its defaults, whoever loads it: a server as well as we.

    Thinking that was off in training is off in use; who sets a variable himself still can.
    """
    template = tokenizer.chat_template
    if not variables or not isinstance(template, str):
        return
    settings = "".join(
        f"{{%- if {name} is not defined %}}{{%- set {name} = {_literal(value)} %}}{{%- endif %}}"
        for name, value in sorted(variables.items())
    )
    if not template.startswith(settings):
        tokenizer.chat_template = settings + template


def make_portable(adapter: Path, source: str) -> None:
    """Have an adapter be one on the model that all began with, not on a folder of this machine.

    What was aligned was distilled before, perhaps by adapters: both together are one of twice the rank, for
    the sum of two products of matrices is the product of the joined ones.
    """
    before = Path(source) / ADAPTER
    settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    if (before / "adapter_config.json").is_file():
        first = json.loads((before / "adapter_config.json").read_text(encoding="utf-8"))
        old, new = (load_file(place / "adapter_model.safetensors") for place in (before, adapter))
        if old.keys() != new.keys():
            return
        # Scales are alpha / rank; the joined one has scale 1, and each half its own in its second matrix.
        scales = [one["lora_alpha"] / one["r"] for one in (first, settings)]
        joined = {
            name: torch.cat([old[name], new[name]], dim=0)
            if ".lora_A." in name
            else torch.cat([old[name] * scales[0], new[name] * scales[1]], dim=1)
            for name in new
        }
        save_file(joined, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
        settings["r"] = settings["lora_alpha"] = first["r"] + settings["r"]
        source = first["base_model_name_or_path"]
    settings["base_model_name_or_path"] = source
    (adapter / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def _literal(value: Any) -> str:
    """Return a plain value as templates write it: as JSON does, but for nothing."""
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {_literal(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)
