"""Entailers judge whether one statement entails another: by equality, with a classifier, or with a reader."""

from __future__ import annotations

import logging
import math
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from surerag.effects import CONTRADICTION, ENTAILMENT, NEUTRAL
from surerag.errors import ConfigurationError, ContextLengthError, ServiceError, check_at_least, extra
from surerag.lru import LRUDict
from surerag.measures import normalize_answer
from surerag.messages import Generation, Pair, SamplingParams, Template, TokenTrace, TraceKind
from surerag.prompts import ENTAILMENT as ENTAILMENT_PROMPT
from surerag.prompts import as_template
from surerag.readers.calls import (
    AWAITING,
    BLOCKING,
    Blocking,
    in_thread,
    model_call,
    raise_if_cancelled,
    run_blocking,
)
from surerag.readers.protocol import Reader, as_reader

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["ExactEntailer", "JudgeEntailer", "NLIEntailer"]

LABELS: Final = ("contradiction", "neutral", "entailment")
"""Names of the columns of every array of probabilities in this module."""
logger = logging.getLogger("surerag")
Probabilities = NDArray[np.float64]


class ExactEntailer:
    """Compares normalised texts: equal texts entail each other, and different texts contradict each other.

    This entailer is for short answers and for tests.

    Example:
        >>> ExactEntailer().entail([Pair("The Orun.", "orun"), Pair("Velm", "Orun")]).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """

    local = True
    name = "exact"

    def entail(self, pairs: Sequence[Pair]) -> Probabilities:
        """Return one-hot rows [pairs, 3]: contradiction, neutral, entailment."""
        rows = np.zeros((len(pairs), len(LABELS)))
        for row, pair in zip(rows, pairs, strict=True):
            same = normalize_answer(pair.premise) == normalize_answer(pair.hypothesis)
            row[ENTAILMENT if same else CONTRADICTION] = 1.0
        return rows


class JudgeEntailer:
    """Asks a reader to reply ``entailment``, ``contradiction`` or ``neutral`` (DENSE-RAG, appendix B.2).

    The label in the reply gets the probability that the reader reports for the label's tokens. The other two
    labels share the rest, but each gets at most half of the probability of the label in the reply. Without
    log-probabilities, the label in the reply gets probability 1. A reply that names no label, several labels,
    or a negated label ("not entailment") gives a row of zeros.

    Args:
        reader: The model that judges.
        prompt: A text or a template with the slots ``question``, ``premise`` and ``hypothesis``.
        max_tokens: Maximum length of a reply, in tokens.

    Attributes:
        judged: Number of replies so far.
        unparsed: Number of unusable replies so far.

    Raises:
        PromptError: If the prompt has other slots.
    """

    def __init__(
        self, reader: Reader, *, prompt: Template | str = ENTAILMENT_PROMPT, max_tokens: int = 8
    ) -> None:
        self._reader = as_reader(reader)
        check_at_least(1, max_tokens=max_tokens)
        self._prompt = as_template("entailment", prompt).require("question", "premise", "hypothesis")
        self._max_tokens = max_tokens
        self.judged = 0
        self.unparsed = 0

    @property
    def name(self) -> str:
        """Name that identifies the judge."""
        return f"judge:{self._reader.name}"

    @property
    def local(self) -> bool:
        """Whether the judge is a local model; then the pairs of several callers are judged in one batch."""
        return self._reader.capabilities.local

    def entail(self, pairs: Sequence[Pair]) -> Probabilities:
        """Return probabilities [pairs, 3]: contradiction, neutral, entailment; zeros for an unusable reply.

        Raises:
            ServiceError: If the reader fails.
        """
        return run_blocking(self._judged(pairs, BLOCKING))

    async def aentail(self, pairs: Sequence[Pair]) -> Probabilities:
        """Judge pairs without blocking the event loop; see :meth:`entail`."""
        if not self._reader.capabilities.native_async:
            return await in_thread(self.entail, pairs)
        return await self._judged(pairs, AWAITING)

    async def _judged(self, pairs: Sequence[Pair], calls: Blocking) -> Probabilities:
        prompts = [self._prompt.render(**pair._asdict()) for pair in pairs]
        trace: TraceKind = "optional" if self._reader.capabilities.logprobs else "none"
        sampling = SamplingParams(max_tokens=self._max_tokens, trace=trace)
        replies = await calls.call(self._reader, "generate", prompts, sampling)
        rows = np.array([self._row(reply) for [reply] in replies], dtype=np.float64).reshape(-1, len(LABELS))
        self.judged += len(rows)
        return rows

    def _row(self, reply: Generation) -> list[float]:
        label = parse_label(reply.text)
        if label is None:
            self.unparsed += 1
            logger.log(
                logging.WARNING if self.unparsed == 1 else logging.DEBUG,
                "a judge's reply does not name exactly one label and is ignored (further replies are only "
                "counted): %r",
                reply.text[:80],
            )
            return [0.0] * len(LABELS)
        trace = reply.trace
        probability = math.exp(math.fsum(_label_logprobs(trace))) if trace and len(trace) else 1.0
        # A part of the missing probability may belong to other spellings of the label in the reply. So each
        # other label gets at most half of the probability of the label in the reply.
        other = min(1 - probability, probability) / 2
        return [probability if at == label else other for at in range(len(LABELS))]


_WORDS = re.compile(r"\b(not|no|non)?[\s-]*(entail|contradict|neutral)\w*", re.IGNORECASE)
_COLUMNS = {"entail": ENTAILMENT, "contradict": CONTRADICTION, "neutral": NEUTRAL}


def parse_label(reply: str) -> int | None:
    """Return the index of the label that a reply names; None for no label, several, or a negated label.

    Example:
        >>> parse_label("**Entailment.**"), parse_label("It is not entailment"), parse_label("maybe")
        (2, None, None)
    """
    labels = {(_COLUMNS[stem.lower()], bool(denied)) for denied, stem in _WORDS.findall(reply)}
    if len(labels) != 1:
        return None
    label, denied = labels.pop()
    return None if denied else label


def _label_logprobs(trace: TokenTrace) -> Sequence[float]:
    word = _WORDS.search("".join(trace.tokens))
    if word is None:
        return list(trace.logprobs)
    label_logprobs, end = [], 0
    for token, logprob in zip(trace.tokens, trace.logprobs, strict=True):
        start, end = end, end + len(token)
        if start < word.end() and end > word.start():
            label_logprobs.append(float(logprob))
    return label_logprobs


DEFAULT_MODEL = "cross-encoder/nli-deberta-v3-small"
PAPER_MODEL = "microsoft/deberta-v2-xlarge-mnli"
_GPU_BATCH, _CPU_BATCH = 16_384, 2_048
"""Maximum number of tokens in a batch, with padding, on a GPU and on a CPU."""
_PAIRS_KEPT = 1 << 16
"""Maximum number of judgements in the cache."""


class NLIEntailer:
    """Judges pairs of statements with a classifier that was trained for natural language inference.

    The order of the labels is taken from the model's config. For a pair with a question, the texts "question
    premise" and "question hypothesis" are compared, as SePer's authors do; a question that does not fit the
    model's window is left out. Pairs are batched by length. Judgements are cached.

    The default model has 141 M parameters; SePer's appendix B.4 finds that models of this size agree with
    larger models. ``PAPER_MODEL`` is SePer's model with 900 M parameters.

    Args:
        model: A loaded classifier, already on its device and in its dtype.
        tokenizer: The classifier's tokenizer.
        name: Identity of the model; by default the model's id or path.
        max_batch_tokens: Maximum number of tokens in a batch, with padding; by default 16,384 on a GPU and
            2,048 on a CPU.

    Raises:
        ConfigurationError: If the model's labels are not entailment, neutral and contradiction.
    """

    local = True

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        max_batch_tokens: int | None = None,
    ) -> None:
        if max_batch_tokens is None:
            max_batch_tokens = _CPU_BATCH if model.device.type == "cpu" else _GPU_BATCH
        if max_batch_tokens < 1:
            raise ConfigurationError(f"max_batch_tokens must be at least 1, got {max_batch_tokens}")
        self._model = model.eval()
        self._tokenizer = tokenizer
        self.name = name or str(model.config.name_or_path or type(model).__name__)
        self._columns = _columns(model.config.id2label)
        self._batch_tokens = max_batch_tokens
        sizes = (getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length)
        self._window = min((s for s in sizes if isinstance(s, int) and 0 < s < 10**6), default=math.inf)
        self._lock = threading.Lock()
        self._cache: LRUDict[Probabilities] = LRUDict(_PAIRS_KEPT)

    @classmethod
    def from_pretrained(
        cls,
        id_or_path: str | Path = DEFAULT_MODEL,
        *,
        device: str | None = None,
        dtype: str | None = None,
        **settings: Any,
    ) -> NLIEntailer:
        """Load a classifier from safetensors weights, without running code of its repository.

        Args:
            id_or_path: Hugging Face id, or a folder.
            device: Device such as ``"cuda"``; by default a GPU if there is one, else the CPU.
            dtype: Number type such as ``"bfloat16"``; by default float16 on a GPU and float32 on a CPU.
            **settings: The argument ``max_batch_tokens`` of the class.

        Raises:
            MissingExtraError: If transformers is not installed.
            ServiceError: If the model cannot be loaded.
        """
        with extra("transformers"):
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = dtype or ("float16" if device.startswith("cuda") else "float32")
        try:
            tokenizer = AutoTokenizer.from_pretrained(id_or_path)
            model = AutoModelForSequenceClassification.from_pretrained(
                id_or_path, dtype=dtype, use_safetensors=True
            )
        except (OSError, ValueError) as error:
            raise ServiceError(
                f"the entailment model {str(id_or_path)!r} cannot be loaded: {error}",
                hint="give a Hugging Face id that can be reached, or a folder with safetensors weights",
            ) from error
        return cls(model.to(device), tokenizer, name=str(id_or_path), **settings)

    def entail(self, pairs: Sequence[Pair]) -> Probabilities:
        """Return probabilities [pairs, 3]: contradiction, neutral, entailment.

        Raises:
            ContextLengthError: If a pair does not fit the model's window, even without the question.
            ServiceError: If the device has too little memory for a single pair.
        """
        rows = {pair: self._cache.get(pair) for pair in pairs}
        new = [pair for pair, row in rows.items() if row is None]
        encoded = {pair: self._encode(pair) for pair in new}
        # The longest pairs come first, in batches of at most self._batch_tokens tokens with padding.
        order = sorted(new, key=lambda pair: -len(encoded[pair]["input_ids"]))
        with self._lock, model_call():
            done = 0
            while done < len(order):
                raise_if_cancelled()
                size = max(1, self._batch_tokens // len(encoded[order[done]]["input_ids"]))
                batch, done = order[done : done + size], done + size
                for pair, row in zip(batch, self._classify([encoded[pair] for pair in batch]), strict=True):
                    rows[pair] = row
                    self._cache.put(pair, row)
        return np.array([rows[pair] for pair in pairs], dtype=np.float64).reshape(-1, len(LABELS))

    def _encode(self, pair: Pair) -> dict[str, list[int]]:
        full = self._tokens(
            f"{pair.question} {pair.premise}".strip(), f"{pair.question} {pair.hypothesis}".strip()
        )
        if len(full["input_ids"]) <= self._window:
            return full
        bare = self._tokens(pair.premise, pair.hypothesis)
        if len(bare["input_ids"]) > self._window:
            raise ContextLengthError(
                f"two statements have {len(bare['input_ids'])} tokens together, "
                f"{len(bare['input_ids']) - int(self._window)} more than {self.name} can read",
                hint="compare shorter answers, or use a model with a larger window",
                inputs=[pair],
            )
        warnings.warn(f"a question is too long for {self.name} and was left out", stacklevel=3)
        return bare

    def _tokens(self, premise: str, hypothesis: str) -> dict[str, list[int]]:
        return dict(self._tokenizer(premise, hypothesis, truncation=False, verbose=False))

    def _classify(self, encoded: Sequence[dict[str, list[int]]]) -> Probabilities:
        """Classify a batch; if memory is too small, classify its halves."""
        import torch

        try:
            batch = self._tokenizer.pad(list(encoded), return_tensors="pt").to(self._model.device)
            with torch.inference_mode():
                logits = self._model(**batch).logits.float()
            rows: Probabilities = logits.softmax(-1).double().cpu().numpy()[:, self._columns]
            return rows
        except (torch.OutOfMemoryError, MemoryError) as error:
            if len(encoded) == 1:
                raise ServiceError(
                    "the device has too little memory for a single pair of statements",
                    hint="use a smaller model or dtype, or another device",
                ) from error
        half = len(encoded) // 2
        return np.concatenate([self._classify(encoded[:half]), self._classify(encoded[half:])])


def _columns(id2label: Mapping[Any, str] | None) -> list[int]:
    columns = {label.lower(): int(column) for column, label in (id2label or {}).items()}
    if set(columns) != set(LABELS):
        raise ConfigurationError(
            f"expected the labels {sorted(LABELS)}, the model's config names {sorted(columns)}",
            hint="use a model trained for natural language inference, with label names in config.id2label",
        )
    return [columns[label] for label in LABELS]
