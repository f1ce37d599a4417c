"""Options of the three stages; the paper's own beside them (DynQR, appendix B)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from surerag.errors import ConfigurationError
from surerag.methods.dynqr.metrics import METRICS, Metric
from surerag.methods.dynqr.options import DynQROptions
from surerag.types import Sampling

Reward = Literal["uncertainty", "answer", "retrieval", "relevance"]
"""What a rewrite is rewarded for: low uncertainty of the reader (DynQR); a right answer (the frame of RRR);
documents that contain a gold answer (RetPO); documents relevant to the original query (RaFe)."""
REWARDS: tuple[Reward, ...] = get_args(Reward)

OnFailure = Literal["raise", "skip"]
Dtype = Literal["base", "float32", "bfloat16", "float16"]


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ConfigurationError(f"{name} must be at least {least}, got {value!r}")


def _complete_prompts(options: DistilOptions | SampleOptions | AlignOptions) -> None:
    """Put the method's own prompts where none was given in their place."""
    object.__setattr__(options, "prompts", DynQROptions.PROMPTS.replaced(options.prompts))


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters instead of full fine-tuning (Hu et al., "LoRA", ICLR 2022).

    Attributes:
        rank: Rank of an update.
        alpha: Its scale; an update counts alpha / rank.
        dropout: Before the update.
        targets: Names of the layers that get one; None for all linear layers but the output layer.
    """

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _at_least(1, rank=self.rank, alpha=self.alpha)
        if not 0 <= self.dropout < 1:
            raise ConfigurationError(f"dropout must be in [0, 1), got {self.dropout!r}")


@dataclass(frozen=True, slots=True)
class FineTuning:
    """How weights are changed, in the first stage as in the third.

    Where they are None, rate, batch and epochs are chosen by
    :func:`~surerag.training.rewriter.recipe.settled`, from the number of examples,
    the size of the model, and whether all weights are trained or adapters.

    Attributes:
        learning_rate: Highest rate; it falls linearly to 0.
        batch: Examples a step.
        epochs: Passes over the data, at most: it ends early where held-back examples say so.
        micro_batch: Examples that go through the model at once, at most; a step takes as many turns as it
            needs. Lower it where memory is short; what was trained before is gone on with.
        validation: Share of the examples that is held back to choose the best checkpoint and to end early;
            of fewer than twenty, none is. 0 keeps the last.
        patience: Looks at the held-back examples without a better loss, after which it ends.
        max_tokens: Longer examples, prompt and rewrite together, are left out.
        lora: Train adapters instead of all weights; the result is merged.
        seed: Of the order of examples, and of adapters.
        save_every: Steps between checkpoints: what a kill can cost. None for a tenth of all steps, as it is
            wherever examples are held back.
        dtype: Of the weights that are written; ``"base"`` is the base's own. Training itself is in float32,
            on an accelerator with matrix products in bfloat16.
        device: ``"cpu"`` forbids an accelerator; None takes one if there is one.
        gradient_checkpointing: Whether to save memory by computing twice; None does on an accelerator.
        four_bit: Whether to hold the frozen base in four bits under adapters (QLoRA); needs bitsandbytes and
            CUDA.
        attention: As ``attn_implementation`` of ``from_pretrained``; None as the model has it.
        report_to: Where curves go while it trains, as the trainer of ``transformers`` names it, such as
            ``"tensorboard"``.
        trainer: Further arguments of trl's ``SFTConfig`` or ``DPOConfig`` by name, such as ``fsdp``,
            ``optim`` or ``precompute_ref_log_probs``.
        template_options: Variables of the chat template, as :class:`surerag.TransformersReader` takes them.
            They become the written model's own, so that it is used as it was trained.
        trust_remote_code: Whether code that comes with the base may run.

    Raises:
        ConfigurationError: If a value is out of range.
    """

    learning_rate: float | None = None
    batch: int | None = None
    epochs: int | None = None
    micro_batch: int = 10
    validation: float = 0.1
    patience: int = 3
    max_tokens: int = 1024
    lora: Lora | None = None
    seed: int = 0
    save_every: int | None = None
    dtype: Dtype = "base"
    device: Literal["cpu"] | None = None
    gradient_checkpointing: bool | None = None
    four_bit: bool = False
    attention: str | None = None
    report_to: str = "none"
    trainer: Mapping[str, Any] = field(default_factory=dict)
    template_options: Mapping[str, Any] = field(default_factory=dict)
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.learning_rate is not None and not self.learning_rate > 0:
            raise ConfigurationError(f"learning_rate must be above 0, got {self.learning_rate!r}")
        given = {"batch": self.batch, "epochs": self.epochs, "save_every": self.save_every}
        _at_least(
            1,
            micro_batch=self.micro_batch,
            patience=self.patience,
            max_tokens=self.max_tokens,
            **{name: value for name, value in given.items() if value is not None},
        )
        if not 0 <= self.validation < 1:
            raise ConfigurationError(f"validation must be in [0, 1), got {self.validation!r}")
        if self.dtype not in get_args(Dtype):
            raise ConfigurationError(
                f"unknown dtype {self.dtype!r}", hint=f"choose {', '.join(get_args(Dtype))}"
            )
        if self.four_bit and self.lora is None:
            raise ConfigurationError("weights in four bits cannot be trained", hint="give lora=Lora(), too")
        if taken := sorted(OURS & self.trainer.keys()):
            raise ConfigurationError(
                f"trainer may not set {', '.join(taken)}", hint="there are options of ours for them"
            )


OURS = frozenset(
    "output_dir learning_rate num_train_epochs max_steps per_device_train_batch_size seed data_seed "
    "report_to gradient_accumulation_steps save_strategy save_steps eval_strategy eval_steps beta max_length "
    "load_best_model_at_end resume_from_checkpoint".split()
)
"""Arguments of a trainer that follow from options of ours."""

PAPER_DISTIL = FineTuning(learning_rate=1e-6, batch=100, epochs=1, validation=0)
"""The paper's first stage (DynQR, appendix B)."""
PAPER_ALIGN = FineTuning(learning_rate=1e-5, batch=20, epochs=2, validation=0)
"""The paper's third stage."""


@dataclass(frozen=True, slots=True)
class DistilOptions:
    """The first stage.

    Attributes:
        fine_tuning: How the base learns; :data:`PAPER_DISTIL` is the paper's.
        rewriting: How the teacher writes; one rewrite a query, greedily.
        rewrite_words: Words of a rewrite, at most; the student does not learn from a longer or an empty one.
        keep_unchanged: Whether to learn also from queries that the teacher left as they are.
        max_unusable: Share of the teacher's replies that may be refusals, thoughts, repetitions of one
            another or otherwise of no use. Above it the stage ends: after the first twenty replies, before
            the others are paid for, and again at the end. So it does if all replies repeat their queries.
            1 goes on with whatever there is.
        window: Queries at work at a time: a batch of a local model, or requests under way.
        on_failure: What to do about queries that the teacher fails to rewrite, after all others were asked:
            ``"raise"``, or ``"skip"`` them.
        prompts: Prompts in place of the method's own, by name, as in :class:`surerag.UncertaintyRewriter`.
            Of these, ``rewrite`` is used; inference has to use the same.
    """

    fine_tuning: FineTuning = FineTuning()
    rewriting: Sampling = field(default_factory=Sampling)
    rewrite_words: int = 64
    keep_unchanged: bool = True
    max_unusable: float = 0.5
    window: int = 64
    on_failure: OnFailure = "raise"
    prompts: Mapping[str, Any] = DynQROptions.PROMPTS

    def __post_init__(self) -> None:
        _at_least(1, rewrite_words=self.rewrite_words, window=self.window)
        _complete_prompts(self)
        if not 0 <= self.max_unusable <= 1:
            raise ConfigurationError(f"max_unusable must be in [0, 1], got {self.max_unusable!r}")
        if self.rewriting.n != 1:
            raise ConfigurationError(f"the teacher writes one rewrite a query, not {self.rewriting.n}")


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """The second stage.

    Attributes:
        rewrites: n, rewrites sampled for each query; equal ones are tried once.
        temperature: Of the rewriter.
        top_p: Nucleus mass of the rewriter.
        seed: Of the rewriter; sample ``i`` of a query depends on the query, this seed and ``i`` alone.
        rewrite_tokens: Length of a rewrite, at most; one that is cut off is not tried.
        rewrite_words: Words of a rewrite, at most.
        metric: The reader's uncertainty; None where no reward needs it, so that any reader will do. This and
            the next four are as in :class:`surerag.UncertaintyRewriter`: a rewrite is answered from as at
            inference.
        top_n: Passages to answer from, at most; None takes all that the retriever returns.
        n_samples: N, answers sampled for each rewrite if the metric is ``"ln_entropy"`` or
            ``"disagreement"``.
        max_tokens: Length of an answer, at most; None is the reader's own limit.
        stop: Texts that end an answer.
        window: Queries in one batch of local models, or under way at a server.
        on_failure: What to do about queries that fail, after all others were asked: ``"raise"``, or
            ``"skip"`` them.
        template_options: Variables of the rewriter's chat template, if it is loaded from a folder.
        prompts: For rewriter and reader, in place of the method's own, by name.
    """

    rewrites: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    rewrite_tokens: int = 64
    rewrite_words: int = 64
    metric: Metric | None = "perplexity"
    top_n: int | None = None
    n_samples: int = 10
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    window: int = 64
    on_failure: OnFailure = "raise"
    template_options: Mapping[str, Any] = field(default_factory=dict)
    prompts: Mapping[str, Any] = DynQROptions.PROMPTS

    def __post_init__(self) -> None:
        _at_least(
            1,
            rewrites=self.rewrites,
            rewrite_tokens=self.rewrite_tokens,
            rewrite_words=self.rewrite_words,
            n_samples=self.n_samples,
            window=self.window,
        )
        _complete_prompts(self)
        if not (self.metric is None or callable(self.metric) or self.metric in METRICS):
            raise ConfigurationError(
                f"unknown metric {self.metric!r}", hint=f"choose {', '.join(METRICS)}, or pass a function"
            )

    @property
    def rewriting(self) -> Sampling:
        """How the rewriter writes."""
        return Sampling(
            self.rewrites,
            self.temperature,
            self.top_p,
            max_tokens=self.rewrite_tokens,
            seed=self.seed,
            trace="none",
        )


@dataclass(frozen=True, slots=True)
class AlignOptions:
    """The third stage.

    Attributes:
        reward: What a rewrite is rewarded for; see :data:`Reward`.
        pairs: Pairs for each query, those with the largest difference.
        least_difference: Pairs whose rewards differ by no more are left out; 0 keeps all that differ, as the
            paper does. None for a tenth of the interquartile range of all rewards.
        beta: DPO's β: how dearly leaving the distilled rewriter is paid for.
        fine_tuning: How the rewriter learns; :data:`PAPER_ALIGN` is the paper's.
        prompts: Prompts in place of the method's own, by name; of these, ``rewrite`` is used.
    """

    reward: Reward = "uncertainty"
    pairs: int = 3
    least_difference: float | None = None
    beta: float = 0.1
    fine_tuning: FineTuning = FineTuning(validation=0.2)
    prompts: Mapping[str, Any] = DynQROptions.PROMPTS

    def __post_init__(self) -> None:
        if self.reward not in REWARDS:
            raise ConfigurationError(f"unknown reward {self.reward!r}", hint=f"choose {', '.join(REWARDS)}")
        _at_least(1, pairs=self.pairs)
        if self.least_difference is not None and not self.least_difference >= 0:
            raise ConfigurationError(f"least_difference must be 0 or more, got {self.least_difference!r}")
        if not self.beta > 0:
            raise ConfigurationError(f"beta must be above 0, got {self.beta!r}")
        _complete_prompts(self)
