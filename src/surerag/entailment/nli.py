"""Entailment by a sequence-pair classifier from Hugging Face, the fast and usual way."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from surerag.entailment.judgements import judgements_of, state_of
from surerag.entailment.labels import LABELS
from surerag.errors import ConfigurationError, ContextLengthError, ServiceError
from surerag.extras import extra
from surerag.messages import Pair

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_MODEL = "cross-encoder/nli-deberta-v3-small"
PAPER_MODEL = "microsoft/deberta-v2-xlarge-mnli"


_ON_A_GPU, _ON_A_CPU = 16_384, 2_048
"""Tokens of a batch."""
_CACHED_PAIRS = 1 << 16


class NLIEntailer:
    """Classifies pairs with any model of ``AutoModelForSequenceClassification`` trained for inference.

    The order of a model's labels is read from its config and never assumed. Each pair is judged as
    "question answer" against "question answer", where it comes with a question (SePer's authors prepend
    it). Identical pairs are judged once. Pairs are sorted by length and batched by tokens; where the
    device's memory does not suffice, batches are halved.

    The default is a small model: 141 M parameters, of the size that SePer's Appendix B.4 finds to agree
    with larger ones. ``PAPER_MODEL`` is the paper's own, 900 M parameters, several times slower.

    Args:
        model: A built classifier, on its device, in its dtype.
        tokenizer: The tokenizer that belongs to it.
        name: Identity of the model; by default its id or path.
        max_batch_tokens: Tokens that one batch may hold, padding included; by default 16,384 on a GPU, and
            2,048 on a CPU, which is slower where a batch falls out of its caches.
        cached_pairs: Judgements to keep between calls, those that were used last; 0 keeps none. They belong
            to the model object, and are void once its weights change.

    Raises:
        ConfigurationError: If the model's labels are not the three of natural language inference.
    """

    local = True

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        max_batch_tokens: int | None = None,
        cached_pairs: int = _CACHED_PAIRS,
    ) -> None:
        if cached_pairs < 0:
            raise ConfigurationError(f"cached_pairs must be at least 0, got {cached_pairs}")
        if max_batch_tokens is None:
            max_batch_tokens = _ON_A_CPU if model.device.type == "cpu" else _ON_A_GPU
        if max_batch_tokens < 1:
            raise ConfigurationError(f"max_batch_tokens must be at least 1, got {max_batch_tokens}")
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._name = name or str(model.config.name_or_path or type(model).__name__)
        self._columns = _columns(model.config.id2label)
        self._budget = max_batch_tokens
        self._window = _window(model, tokenizer)
        self._lock = threading.Lock()
        self._most = cached_pairs
        self._judgements = judgements_of(model, tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        id_or_path: str | Path = DEFAULT_MODEL,
        *,
        device: str | None = None,
        dtype: str | None = None,
        max_batch_tokens: int | None = None,
        cached_pairs: int = _CACHED_PAIRS,
    ) -> NLIEntailer:
        """Load a classifier; only safetensors weights are read, and no code of the repository is run.

        Args:
            id_or_path: Hugging Face id, or a folder.
            device: Such as ``"cuda"``; by default a GPU if there is one.
            dtype: Such as ``"bfloat16"``; by default float16 on a GPU, float32 on a CPU.
            max_batch_tokens: Tokens that one batch may hold; see the class.
            cached_pairs: Judgements to keep between calls; see the class.

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
        return cls(
            model.to(device),
            tokenizer,
            name=str(id_or_path),
            max_batch_tokens=max_batch_tokens,
            cached_pairs=cached_pairs,
        )

    def __repr__(self) -> str:
        return f"NLIEntailer({self._name!r})"

    @property
    def name(self) -> str:
        """Identity of the model."""
        return self._name

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return probabilities [pairs, 3]: contradiction, neutral, entailment.

        Raises:
            ContextLengthError: If two statements do not fit the model's window, even without the question.
            ServiceError: If the device's memory does not suffice for a single pair.
        """
        if not pairs:
            return np.empty((0, len(LABELS)))
        unique = list(dict.fromkeys(pairs))
        if not self._most:
            found = self._judge(unique)
        else:
            state = state_of(self._model)
            found = self._judgements.known(unique, state)
            fresh = self._judge([pair for pair in unique if pair not in found])
            self._judgements.keep(fresh, state, self._most)
            found |= fresh
        return np.stack([found[pair] for pair in pairs])

    def _judge(self, pairs: Sequence[Pair]) -> dict[Pair, NDArray[np.float64]]:
        """Ask the model about different pairs."""
        encoded = [self._encoded(pair) for pair in pairs]
        order = sorted(range(len(pairs)), key=lambda index: -len(encoded[index]["input_ids"]))
        found: dict[Pair, NDArray[np.float64]] = {}
        with self._lock:
            for batch in _batches(order, encoded, self._budget):
                rows = self._judged([encoded[index] for index in batch])
                found.update((pairs[index], row.copy()) for index, row in zip(batch, rows, strict=True))
        return found

    def _encoded(self, pair: Pair) -> dict[str, list[int]]:
        """Encode a pair; a question that does not fit is left out, an answer never is."""
        full = self._tokens(
            f"{pair.question} {pair.premise}".strip(), f"{pair.question} {pair.hypothesis}".strip()
        )
        if self._window is None or len(full["input_ids"]) <= self._window:
            return full
        bare = self._tokens(pair.premise, pair.hypothesis)
        if len(bare["input_ids"]) > self._window:
            raise ContextLengthError(
                f"two statements have {len(bare['input_ids'])} tokens together, "
                f"{len(bare['input_ids']) - self._window} more than {self._name} can read",
                hint="compare shorter answers, or use a model with a larger window",
                inputs=[pair],
            )
        if pair.question:
            warnings.warn(f"a question is too long for {self._name} and was left out", stacklevel=3)
        return bare

    def _tokens(self, premise: str, hypothesis: str) -> dict[str, list[int]]:
        return dict(self._tokenizer(premise, hypothesis, truncation=False, verbose=False))

    def _judged(self, encoded: Sequence[dict[str, list[int]]]) -> NDArray[np.float64]:
        import torch

        try:
            batch = self._tokenizer.pad(list(encoded), return_tensors="pt").to(self._model.device)
            with torch.inference_mode():
                logits = self._model(**batch).logits.float()
            probabilities: NDArray[np.float64] = logits.softmax(-1).double().cpu().numpy()
            return probabilities[:, self._columns]
        except (torch.OutOfMemoryError, MemoryError) as error:
            if len(encoded) == 1:
                raise ServiceError(
                    "the device has too little memory for a single pair of statements",
                    hint="use a smaller model or dtype, or another device",
                ) from error
        half = len(encoded) // 2
        return np.concatenate([self._judged(encoded[:half]), self._judged(encoded[half:])])


def _columns(id2label: Mapping[Any, str] | None) -> list[int]:
    """Find the column of each of our labels among the model's."""
    found = {label.lower(): int(index) for index, label in (id2label or {}).items()}
    if set(found) != set(LABELS):
        raise ConfigurationError(
            f"expected the labels {sorted(LABELS)}, the model's config names {sorted(found)}",
            hint="use a model trained on natural language inference, with its label names in config.id2label",
        )
    return [found[label] for label in LABELS]


def _window(model: Any, tokenizer: Any) -> int | None:
    sizes = (getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length)
    return min((size for size in sizes if isinstance(size, int) and 0 < size < 10**6), default=None)


def _batches(order: Sequence[int], encoded: Sequence[Mapping[str, Any]], budget: int) -> Iterator[list[int]]:
    """Cut an order of falling lengths into batches of at most ``budget`` tokens, padding included."""
    batch: list[int] = []
    longest = 0
    for index in order:
        longest = longest or len(encoded[index]["input_ids"])
        if batch and longest * (len(batch) + 1) > budget:
            yield batch
            batch, longest = [], len(encoded[index]["input_ids"])
        batch.append(index)
    if batch:
        yield batch
