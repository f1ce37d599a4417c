"""Options from a YAML file, under our names or those of TRL, Axolotl and LLaMA-Factory."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from surerag.errors import ConfigurationError, InputError
from surerag.extras import extra
from surerag.training.rewriter.options import AlignOptions, DistilOptions, FineTuning, Lora, SampleOptions

_STAGES: Final = {"distil": DistilOptions, "sample": SampleOptions, "align": AlignOptions}
_NAMES: Final = {
    "num_train_epochs": "epochs", "num_epochs": "epochs",
    "per_device_train_batch_size": "micro_batch", "micro_batch_size": "micro_batch",
    "max_length": "max_tokens", "cutoff_len": "max_tokens", "sequence_len": "max_tokens",
    "load_in_4bit": "four_bit", "attn_implementation": "attention", "save_steps": "save_every",
    "lr_scheduler": "trainer.lr_scheduler_type", "optimizer": "trainer.optim", "flash_attention": "attention",
    "lora_r": "lora.rank", "lora_rank": "lora.rank", "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout", "lora_target_modules": "lora.targets", "lora_target": "lora.targets",
    "early_stopping_patience": "patience", "val_size": "validation", "val_set_size": "validation",
}  # fmt: skip
"""Other programs' names of options of ours."""
_PLACES: Final = {"model_name_or_path": "base", "base_model": "base", "output_dir": "output"}
_BETA: Final = ("beta", "dpo_beta", "pref_beta", "rl_beta")
_LORA: Final[Mapping[str, Mapping[Any, bool | str]]] = {
    "use_peft": {True: True, False: False}, "adapter": {"lora": True, "qlora": "four_bit", "": False},
    "finetuning_type": {"lora": True, "full": False},
}  # fmt: skip
"""How they say that adapters are trained."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a file, or ``--set``, says.

    Attributes:
        stages: Options of each stage by name, ``fine_tuning`` among them.
        tuning: Options of both trainings.
        places: ``base`` and ``output``, where they are said.
    """

    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)


def read_options(file: Path) -> dict[str, Any]:
    """Return what a YAML (or JSON) file holds: an object.

    Raises:
        InputError: If it cannot be read.
    """
    with extra("train"):
        import yaml
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"{file} cannot be read as YAML: {' '.join(str(error).split())}", hint="write NAME: VALUE lines"
        ) from error
    if not isinstance(found, dict):
        raise InputError(f"{file} holds no options by name, but {type(found).__name__}")
    return found


def read_value(text: str) -> Any:
    """Return what a text means in YAML: a number, a list, true.

    Raises:
        InputError: If it means nothing.
    """
    with extra("train"):
        import yaml
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{text!r} is no value: {' '.join(str(error).split())}") from error


def given_of(record: Mapping[str, Any]) -> Given:
    """Sort options by what they belong to.

    Names of ours stand under ``distil``, ``sample`` and ``align`` (dots lead further in), or, for both
    trainings, by themselves; so do those of other programs. What TRL's configurations know besides is handed
    on to them.

    Raises:
        ConfigurationError: If a name is not known, naming the nearest.

    Example:
        >>> given_of({"learning_rate": 1e-4, "lora_r": 8, "align": {"beta": 0.2}}).tuning
        {'learning_rate': 0.0001, 'lora': {'rank': 8}}
    """
    stages: dict[str, dict[str, Any]] = {name: {} for name in _STAGES}
    tuning: dict[str, Any] = {}
    places: dict[str, str] = {}
    for name, value in record.items():
        stage, _, rest = name.partition(".")
        if stage in _STAGES and rest:
            _put(stages[stage], rest, value)
        elif name in _STAGES and isinstance(value, Mapping):
            for inner, one in value.items():
                _put(stages[name], inner, one)
        elif name in _PLACES or name in _PLACES.values():
            places[_PLACES.get(name, name)] = str(value)
        elif name in _BETA:
            stages["align"]["beta"] = value
        elif name in _LORA:
            _adapters(tuning, name, value)
        else:
            _put(tuning, _tuning_name(name), value)
    turns = tuning.pop("gradient_accumulation_steps", None)
    if turns is not None:
        tuning["batch"] = int(turns) * int(tuning.get("micro_batch", FineTuning().micro_batch))
    for name, options in stages.items():
        _check(name, options, [one.name for one in fields(_STAGES[name])])
    return Given(stages, tuning, places)


def built(given: Given, stage: str, options: Any) -> Any:
    """Return a stage's options with what was given in place of theirs.

    Raises:
        ConfigurationError: If a value cannot be.
    """
    changes = dict(given.stages.get(stage, {}))
    if stage in ("distil", "align"):
        tuning = {**given.tuning, **changes.pop("fine_tuning", {})}
        changes["fine_tuning"] = _replaced(options.fine_tuning, tuning)
    return _replaced(options, changes)


def _replaced(options: Any, changes: Mapping[str, Any]) -> Any:
    known = {one.name: getattr(options, one.name) for one in fields(options)}
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name == "lora" and isinstance(value, Mapping):
            before = known["lora"] or Lora()
            inner = dict(value)
            if "rank" in inner and "alpha" not in inner:
                inner["alpha"] = 2 * int(inner["rank"])
            targets = inner.get("targets")
            if isinstance(targets, str):
                inner["targets"] = None if targets in ("all", "all-linear") else tuple(targets.split(","))
            elif isinstance(targets, list):
                inner["targets"] = tuple(targets)
            value = _replaced(before, inner)
        elif name == "trainer":
            value = {**known["trainer"], **value}
        elif value is not None and (isinstance(known.get(name), float) or name == "learning_rate"):
            value = float(value)  # YAML reads 1e-4 as a text
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    try:
        return type(options)(**{**known, **values})
    except TypeError as error:
        raise ConfigurationError(f"the options cannot be taken: {error}") from error


def _put(into: dict[str, Any], name: str, value: Any) -> None:
    first, _, rest = name.partition(".")
    if rest:
        into.setdefault(first, {})
        _put(into[first], rest, value)
    elif isinstance(value, Mapping) and isinstance(into.get(first), dict):
        into[first] |= value
    else:
        into[first] = dict(value) if isinstance(value, Mapping) else value


def _adapters(tuning: dict[str, Any], name: str, value: Any) -> None:
    means = _LORA[name].get(value)
    if means is None:
        choices = ", ".join(map(repr, _LORA[name]))
        raise ConfigurationError(f"{name} must be one of {choices}, got {value!r}")
    if means:
        tuning.setdefault("lora", {})
    if means == "four_bit":
        tuning["four_bit"] = True


def _tuning_name(name: str) -> str:
    ours = [one.name for one in fields(FineTuning)]
    plain = _NAMES.get(name, name)
    if plain.partition(".")[0] in (*ours, "gradient_accumulation_steps"):
        return plain
    with extra("train"):
        from trl import DPOConfig, SFTConfig
    theirs = {one.name for config in (SFTConfig, DPOConfig) for one in fields(config)}
    if name in theirs:
        return f"trainer.{name}"
    _check("both trainings", {name: None}, [*ours, *_NAMES, *theirs])
    return name


def _check(where: str, given: Mapping[str, Any], known: list[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise ConfigurationError(
                f"there is no option {name!r} of {where}",
                hint=f"if {near[0]!r} is meant, write that" if near else f"choose of {', '.join(known[:40])}",
            )
