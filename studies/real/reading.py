"""A reader that caches greedy replies and measures the log-probability of a reference after a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from surerag import SamplingParams, TransformersReader
from surerag.lru import LRUDict
from surerag.messages import Generation, Prompt
from surerag.readers.local.cache import CachedRow, join_rows
from surerag.readers.local.engine import Engine, Ids, common_length
from surerag.readers.local.sampling import is_greedy
from surerag.readers.protocol import BaseReader, Capabilities

_ALIKE, _LONG, _KEPT = 64, 256, 24
"""Shared first tokens of similar prompts, tokens of a cached prompt, and number of cached prompts."""


class ReaderAround(BaseReader):
    """A reader that answers with another reader, whose name and capabilities it has."""

    def __init__(self, reader: BaseReader) -> None:
        self._reader = reader

    @property
    def name(self) -> str:
        """Name of the reader."""
        return self._reader.name

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the reader."""
        return self._reader.capabilities


class KeepingReader(ReaderAround):
    """A reader that processes a prompt once, even if several systems of a table send it.

    It caches greedy replies, so that systems that judge the same passages share the judgements. A local
    reader also measures the log-probability of a reference after a prompt, from the same computation as the
    answer.

    Args:
        reader: The reader.
        decodes: Whether to generate the answer where a reference is measured; if not, it ends after a token.
    """

    def __init__(self, reader: BaseReader, decodes: bool = True) -> None:
        super().__init__(reader)
        self._decodes = decodes
        self._replies: dict[tuple[Prompt, SamplingParams], list[Generation]] = {}
        self._engine: _ReferenceEngine | None = None
        if isinstance(reader, TransformersReader) and type(reader._engine) is Engine:
            reader._engine = self._engine = _ReferenceEngine(reader._engine)

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has."""
        return self._reader.count_tokens(text)

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return answers to each prompt; cached greedy answers are not generated again."""
        return self.generate_each(prompts, [sampling] * len(prompts))

    def generate_each(
        self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]
    ) -> list[list[Generation]]:
        """Return answers to each prompt with its own sampling parameters; see :meth:`generate`."""
        asked = list(zip(prompts, samplings, strict=True))
        missing = [one for one in dict.fromkeys(asked) if one not in self._replies or self._is_due(one[0])]
        ways = [
            sampling if self._decodes or not self._is_due(prompt) else replace(sampling, max_tokens=1)
            for prompt, sampling in missing
        ]
        rows = self._reader.generate_each([prompt for prompt, _ in missing], ways)
        found = dict(zip(missing, rows, strict=True))
        self._replies |= {one: row for one, row in found.items() if is_greedy(one[1])}
        return [found.get(one) or self._replies[one] for one in asked]

    def expect(self, prompt: Prompt, reference: str) -> None:
        """Set the reference to measure when a prompt is processed."""
        if self._engine is not None and reference:
            self._engine.references[self._ids(prompt)] = tuple(self._encoder._encode_plain(reference))

    def likelihood(self, prompt: Prompt) -> float | None:
        """Return the mean log-probability of the expected reference's tokens after a prompt, in nats."""
        return None if self._engine is None else self._engine.found.get(self._ids(prompt))

    def _is_due(self, prompt: Prompt) -> bool:
        """Whether a reference is expected after a prompt and not measured yet."""
        if self._engine is None:
            return False
        ids = self._ids(prompt)
        return ids in self._engine.references and ids not in self._engine.found

    @property
    def _encoder(self) -> Any:
        local: Any = self._reader
        return local._encoder

    def _ids(self, prompt: Prompt) -> Ids:
        return tuple(self._encoder.encode(prompt)[0])


class _ReferenceEngine(Engine):
    """An engine that measures a reference after it has processed a prompt, and then generates the answer.

    It caches the longest of several prompts with the same beginning. So a context that several systems show
    before different instructions is processed once.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine._model, engine.vocabulary, engine._budget)
        self.references: dict[Ids, Ids] = {}
        self.found: dict[Ids, float] = {}
        self._kept: LRUDict[tuple[Ids, CachedRow]] = LRUDict(_KEPT)

    @torch.inference_mode()
    def _read(self, prompts: Sequence[Ids]) -> list[CachedRow]:
        families: dict[Ids, list[Ids]] = {}
        for prompt in prompts:
            families.setdefault(prompt[:_ALIKE], []).append(prompt)
        read: dict[Ids, CachedRow] = {}
        for key, family in families.items():
            kept, row = self._kept.get(key) or ((), None)
            shared = common_length([kept, *family]) if row else 0
            if row and shared >= _ALIKE:
                prefix = _beginning(row, shared)
                start = family[0][: common_length(family) + 1] if len(family) > 1 else ()
                if len(start) > shared + _ALIKE:  # their shared beginning is processed once
                    prefix = self._read_after(prefix, [start])[start]
                read |= self._read_after(prefix, family)
        rest = [prompt for prompt in prompts if prompt not in read]
        read |= zip(rest, super()._read(rest), strict=True)
        for prompt in prompts:
            if prompt in self.references and prompt not in self.found:
                self.found[prompt] = self._measure(read[prompt], prompt[-1], self.references[prompt])
        for key, family in families.items():
            longest = max(family, key=len)
            before = self._kept.get(key)
            if len(longest) >= _LONG and (before is None or len(before[0]) < len(longest)):
                self._kept.put(key, (longest, _beginning(read[longest], len(longest) - 1, copy=True)))
        return [read[prompt] for prompt in prompts]

    def _measure(self, row: CachedRow, last: int, reference: Ids) -> float:
        tokens = self._model.tensor([[last, *reference[:-1]]])
        logits = self._model.model(tokens, past_key_values=join_rows([row], len(reference))).logits[0]
        said = torch.log_softmax(logits.float(), -1).gather(-1, self._model.tensor([reference])[0][:, None])
        return float(said.mean())


def _beginning(row: CachedRow, length: int, *, copy: bool = False) -> CachedRow:
    """Return the first tokens of a cached row as a view or as a copy."""
    layers = (tuple(part[:, :length] for part in layer) for layer in row.layers)
    if copy:
        layers = (tuple(part.clone() for part in layer) for layer in layers)
    kept: Any = tuple(layers)
    return CachedRow(kept, length)
