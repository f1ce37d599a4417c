"""Options of ``surerag train-rewriter``'s stages: the variant's, a file's, then the command line's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import typer

from surerag.training.rewriter import PAPER_ALIGN, PAPER_DISTIL, AlignOptions, DistilOptions, SampleOptions
from surerag.training.rewriter.option_files import Given, built, given_of, read_options, read_value

_VARIANTS = {
    "default": (DistilOptions(), AlignOptions()),
    "paper": (
        DistilOptions(fine_tuning=PAPER_DISTIL),
        AlignOptions(least_difference=0.0, fine_tuning=PAPER_ALIGN),
    ),
}


class StageOptions(NamedTuple):
    """What steers each stage, and where a file said that base and output are."""

    distil: DistilOptions
    sample: SampleOptions
    align: AlignOptions
    places: Mapping[str, str]


def stage_options(
    file: Path | None,
    more: Sequence[str],
    variant: Literal["default", "paper"],
    *,
    tuning: Mapping[str, Any],
    distil: Mapping[str, Any],
    sample: Mapping[str, Any],
    align: Mapping[str, Any],
) -> StageOptions:
    """Return the options of all stages; what is said later counts: variant, flags, file, ``--set``.

    Args:
        file: A YAML file.
        more: NAME=VALUE.
        variant: Whose rates and batches.
        tuning: The command line's, for both trainings; None where nothing was said.
        distil: Its own for the first stage.
        sample: For the second.
        align: For the third.

    Raises:
        ConfigurationError: If an option is not known, or a value cannot be.
        InputError: If the file cannot be read.
    """
    flags = Given({"distil": _said(distil), "sample": _said(sample), "align": _said(align)}, _said(tuning))
    layers = [flags]
    if file is not None:
        layers.append(given_of(read_options(file)))
    if more:
        layers.append(given_of(dict(_pair(item) for item in more)))
    first, last = _VARIANTS[variant]
    second = SampleOptions()
    places: dict[str, str] = {}
    for layer in layers:
        first, second, last = (
            built(layer, "distil", first), built(layer, "sample", second), built(layer, "align", last),
        )  # fmt: skip
        places |= layer.places
    variables = first.fine_tuning.template_options
    if variables and not second.template_options:
        second = replace(second, template_options=variables)
    return StageOptions(first, second, last, places)


def _said(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _said(value) if isinstance(value, Mapping) else value
        for name, value in options.items()
        if value is not None
    }


def _pair(item: str) -> tuple[str, Any]:
    name, equals, value = item.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"expected NAME=VALUE, got {item!r}", param_hint="--set")
    return name, read_value(value)
