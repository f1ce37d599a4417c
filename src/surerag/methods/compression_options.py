"""The settings of a cluster compressor, each said once, for the core's class and for the adapters."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from surerag.clustering import Order, Root
from surerag.errors import PromptError
from surerag.methods.compression_types import (
    AllEmpty,
    Clustering,
    CompressionMode,
    FewShot,
    OnFailure,
    Variant,
)
from surerag.methods.faithfulness import Guard
from surerag.methods.refusals import NothingRule


@dataclass(frozen=True, kw_only=True)
class CompressorOptions:
    """What a user can set on a cluster compressor, whatever framework it stands in.

    A subclass has these as fields of its own, and explains them under "Settings" in its help.

    Attributes:
        mode: ``"extract"`` what is relevant (section 4.3), ``"answer_with_evidence"`` (appendix C.2), or
            ``"fact_check"``: what supports or refutes a statement (appendix C.1).
        variant: Settings that are None are taken from here: ``"default"``, ``"paper"``, or ``"official"``
            (the authors' code).
        clustering: ``"dynamic"`` is Algorithm 1; ``"average"`` and ``"random"`` are the controls of Table 4;
            ``"single"`` compresses each passage alone.
        tau: Size of the first cluster; ``"auto"`` is 1 for at most ten passages, else 3. Larger ones show
            the model more facts together, in fewer and longer calls.
        cap: Largest size of a cluster; 0 for no bound.
        count_root: Whether these sizes include a cluster's root.
        root: A cluster's root is the free passage most similar to the ``"query"``, or first by ``"rank"``.
        order: Passages inside a cluster by ``"similarity"`` to its root, or by ``"rank"``.
        nothing: How to tell that a reply means nothing: the agreed words (``"sentinel"``), those or a
            refusal (``"anchored"``), or many substrings (``"legacy"``).
        all_empty: What to return when every cluster yields nothing: the ``"original"`` passages, or
            ``"nothing"``.
        pass_below: Clusters of at most this many tokens go through as they are: a call would not gain.
        refuse_longer: Whether a compression that is longer than its sources is refused.
        guard: How to check that a source says what a compression says, sentence by sentence: by
            ``"overlap"`` of words, by ``"entailment"``, or ``"off"``. None is overlap in mode ``"extract"``,
            off in others.
        guard_action: Whether to ``"remove"`` or to ``"flag"`` sentences that no source supports.
        support: Share of words, or probability of entailment, that counts as support.
        on_failure: If the reader fails for a cluster: its ``"original"`` passages go through, with a
            warning, or ``"raise"``.
        budget: Tokens of all that is returned, at most.
        bridging: How often clusters that yielded nothing are asked again, with what the others yielded
            beside their passages. The second fact of a two-hop question is relevant only together with the
            first, and its cluster is dropped without this. 0 is the paper's; 1 serves two-hop questions.
        examples: Worked examples for the prompt.
        max_tokens: Length of a compression, at most.
        temperature: None is 0, and 0.7 in mode ``"answer_with_evidence"`` (section 5.1).
        seed: Of sampling and of random clusters.
    """

    mode: CompressionMode = "extract"
    variant: Variant = "default"
    clustering: Clustering = "dynamic"
    tau: int | Literal["auto"] | None = None
    cap: int | None = None
    count_root: bool | None = None
    root: Root | None = None
    order: Order | None = None
    nothing: NothingRule | None = None
    all_empty: AllEmpty | None = None
    pass_below: int | None = None
    refuse_longer: bool | None = None
    guard: Guard | None = None
    guard_action: Literal["remove", "flag"] = "remove"
    support: float = 0.6
    on_failure: OnFailure = "original"
    budget: int | None = None
    bridging: int = 0
    # Defaults are plain values: the adapters' field machinery reads them, and knows no factories of ours.
    examples: tuple[FewShot, ...] = field(default=(), repr=False)
    max_tokens: int = 256
    temperature: float | None = None
    seed: int = 0

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        explained = inspect.cleandoc(CompressorOptions.__doc__ or "").split("Attributes:\n", 1)[-1]
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\nSettings:\n{explained}"


PLAIN_SETTINGS = tuple(item.name for item in fields(CompressorOptions) if item.name != "examples")
"""Names of the settings that are plain values."""

MODES: tuple[CompressionMode, ...] = get_args(CompressionMode)
"""Every mode; each has a prompt of its name."""


def check_prompt_names(names: Iterable[str]) -> None:
    """Refuse prompts for modes that do not exist.

    Raises:
        PromptError: If there are any.
    """
    unknown = sorted(set(names) - set(MODES))
    if unknown:
        raise PromptError(f"there is no prompt {unknown}", hint=f"choose among {sorted(MODES)}")
