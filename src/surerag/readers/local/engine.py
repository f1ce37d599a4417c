"""From token ids to answers and scores: the model processes prompts in batches, and answers grow in batches.

The engine runs the model on all tokens of a prompt except the last. Prompts are padded on the right, so that
no mask is needed. The prompts' keys and values are copied into a batch whose rows are aligned at their ends;
then every row grows by one token a step. An answer that is to be continued later keeps a view of its row.
This row is later copied into another batch in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from surerag.errors import ServiceError
from surerag.readers.calls import raise_if_cancelled
from surerag.readers.local.cache import CachedRow, join_rows, new_cache, take_row
from surerag.readers.local.model import CausalModel, is_out_of_memory
from surerag.readers.local.sampling import choose, is_greedy
from surerag.readers.local.sequences import EncodedPrompt, GrowingAnswer, Vocabulary

T = TypeVar("T")
R = TypeVar("R")
Ids = tuple[int, ...]

# A common beginning of prompts is processed only once if the beginning has at least this many tokens.
_MIN_SHARED = 48
# Maximum padding in a batch of prompts: the larger of this many tokens and an eighth of all tokens.
_PADDING = 64
_SPARE_SLOTS = 64


@dataclass(eq=False)
class Handle:
    """A begun answer, and its row of the model's cache; the row is None if the answer has ended."""

    answer: GrowingAnswer
    row: CachedRow | None = None


class Batch:
    """Answers that grow together, one token a step.

    Ended answers are removed once they make up a quarter of the batch.
    """

    def __init__(
        self, model: CausalModel, answers: Sequence[GrowingAnswer], rows: Sequence[CachedRow]
    ) -> None:
        self.started = self._answers = list(answers)
        self._model = model
        self._slots = max(row.length for row in rows)
        self._starts = [self._slots - row.length for row in rows]
        self._cache = join_rows(rows, min(_SPARE_SLOTS, max(one.remaining for one in answers)))

    @torch.inference_mode()
    def step(self) -> None:
        """Add one token to every unfinished answer."""
        raise_if_cancelled()
        model = self._model
        tokens = model.tensor([[one.last_token] for one in self._answers])
        mask = model.padding_mask(self._starts, self._slots + 1)
        positions = model.tensor([[self._slots - start] for start in self._starts])
        logits = model.forward(tokens, self._cache, mask, positions)
        self._slots += 1
        for answer, scored in zip(
            self._answers, choose(logits, [one.draw for one in self._answers]), strict=True
        ):
            if answer.ended is None:
                answer.accept(scored)
        growing = [row for row, one in enumerate(self._answers) if one.ended is None]
        if len(growing) <= len(self._answers) * 3 // 4:
            self._keep(growing)

    def finish(self) -> list[GrowingAnswer]:
        """Grow the answers until all have ended, and return them."""
        while any(one.ended is None for one in self._answers):
            self.step()
        return self.started

    def begin(self, n_tokens: int) -> list[Handle]:
        """Grow until each answer has ``n_tokens`` tokens, or has ended."""
        handles: dict[int, Handle] = {}
        while any(one.ended is None for one in self._answers):
            self.step()
            growing = [row for row, one in enumerate(self._answers) if one.ended is None]
            begun = [row for row in growing if self._answers[row].has_begun(n_tokens)]
            for row in begun:
                view = take_row(self._cache, row, self._starts[row], self._slots)
                handles[id(self._answers[row])] = Handle(self._answers[row], view)
            if begun:
                self._keep([row for row in growing if row not in begun])
        return [handles.get(id(answer)) or Handle(answer) for answer in self.started]

    def _keep(self, rows: Sequence[int]) -> None:
        if rows:
            self._cache.batch_select_indices(torch.tensor(rows))
        self._answers = [self._answers[row] for row in rows]
        self._starts = [self._starts[row] for row in rows]


class Engine:
    """Processes prompts and generates answers with a model whose state is keys and values."""

    begins: Literal["native", "whole"] = "native"

    def __init__(self, model: CausalModel, vocabulary: Vocabulary, budget: int) -> None:
        self._model, self.vocabulary, self._budget = model, vocabulary, budget

    def generate(self, prompts: Sequence[EncodedPrompt]) -> list[list[GrowingAnswer]]:
        """Grow ``sampling.n`` answers to each prompt until they end."""
        # Greedy samples of a prompt are all the same, so only one sample is generated.
        counts = [1 if is_greedy(one.sampling) else one.sampling.n for one in prompts]
        samples = [(one, sample) for one, n in zip(prompts, counts, strict=True) for sample in range(n)]
        grown = iter(self._grow(samples))
        rows = [[next(grown) for _ in range(n)] for n in counts]
        return [row * (one.sampling.n // n) for one, n, row in zip(prompts, counts, rows, strict=True)]

    def begin(self, prompts: Sequence[EncodedPrompt], n_tokens: int) -> list[Handle]:
        """Generate the first ``n_tokens`` tokens of one answer to each prompt, and keep the cache."""
        return self._in_batches([(one, 0) for one in prompts], lambda batch: batch.begin(n_tokens))

    def _grow(self, samples: Sequence[tuple[EncodedPrompt, int]]) -> list[GrowingAnswer]:
        return self._in_batches(samples, Batch.finish)

    def finish(self, handles: Sequence[Handle]) -> None:
        """Complete begun answers; if a batch fails, the answers of earlier batches are complete."""

        def finish_some(some: Sequence[Handle]) -> None:
            pairs = [(handle, row) for handle in some if (row := handle.row) is not None]
            if pairs:
                answers = [handle.answer.copy() for handle, _ in pairs]
                Batch(self._model, answers, [row for _, row in pairs]).finish()
                for (handle, _), answer in zip(pairs, answers, strict=True):
                    handle.answer, handle.row = answer, None

        waiting = [(row.length, handle) for handle in handles if (row := handle.row) is not None]
        waiting.sort(key=lambda pair: -pair[0])
        for batch in pack([(n + one.answer.remaining, 1) for n, one in waiting], self._budget):
            in_halves([waiting[i][1] for i in batch], finish_some)

    def resume(self, handle: Handle) -> Batch | None:
        """Return a batch that continues a copy of one answer; None if the answer has ended."""
        row = handle.row
        return None if row is None else Batch(self._model, [handle.answer.copy()], [row])

    def _in_batches(
        self, samples: Sequence[tuple[EncodedPrompt, int]], grow: Callable[[Batch], Sequence[R]]
    ) -> list[R]:
        """Run the model once on each distinct prompt, and grow an answer for every sample, in batches."""
        members = _by_prompt(samples)
        order = _alike_together(members)
        lengths = [len(prompt.ids) + prompt.further for prompt, _ in samples]
        results: dict[int, R] = {}

        def read_and_grow(some: Sequence[Ids]) -> None:
            reads = dict(zip(some, self._read(some), strict=True))
            rows = [index for prompt in some for index in members[prompt] if index not in results]

            def attempt(part: Sequence[int]) -> None:
                answers = [GrowingAnswer(self.vocabulary, *samples[i]) for i in part]
                batch = Batch(self._model, answers, [reads[samples[i][0].ids] for i in part])
                results.update(zip(part, grow(batch), strict=True))

            for batch in pack([(lengths[i], 1) for i in rows], self._budget):
                in_halves([rows[place] for place in batch], attempt)

        costs = [(max(lengths[i] for i in members[p]), len(members[p])) for p in order]
        for group in pack(costs, self._budget):
            in_halves([order[place] for place in group], read_and_grow)
        return [results[index] for index in range(len(samples))]

    @torch.inference_mode()
    def _read(self, prompts: Sequence[Ids]) -> list[CachedRow]:
        groups: dict[Ids, list[Ids]] = {}
        for prompt in prompts:
            groups.setdefault(prompt[:_MIN_SHARED], []).append(prompt)
        rows: dict[Ids, CachedRow] = {}
        apart: list[Ids] = []
        for group in groups.values():
            shared = common_length(group)
            if len(group) == 1 or shared < _MIN_SHARED:
                apart += group
                continue
            prefix = self._read_after(None, [group[0][: shared + 1]])[group[0][: shared + 1]]
            rows |= self._read_after(prefix, group)
        rows |= self._read_after(None, apart)
        return [rows[prompt] for prompt in prompts]

    def _read_after(self, prefix: CachedRow | None, prompts: Sequence[Ids]) -> dict[Ids, CachedRow]:
        """Cache all but the last token of each prompt; ``prefix`` is the prompts' cached beginning."""
        done = 0 if prefix is None else prefix.length
        ordered = sorted(prompts, key=len, reverse=True)
        rows: dict[Ids, CachedRow] = {}
        for batch in _similar([len(prompt) - done for prompt in ordered]):
            raise_if_cancelled()
            some = [ordered[place] for place in batch]
            tokens = self._model.tensor([prompt[done:-1] or (0,) for prompt in some])
            cache = new_cache() if prefix is None else join_rows([prefix] * len(some), tokens.shape[1])
            self._model.forward(tokens, cache)
            rows.update((p, take_row(cache, row, 0, len(p) - 1)) for row, p in enumerate(some))
        return rows


def _by_prompt(samples: Sequence[tuple[EncodedPrompt, int]]) -> dict[Ids, list[int]]:
    members: dict[Ids, list[int]] = {}
    for index, (prompt, _) in enumerate(samples):
        members.setdefault(prompt.ids, []).append(index)
    return members


def _alike_together(prompts: Collection[Ids]) -> list[Ids]:
    """Sort prompts, the longest first, but keep prompts with a common beginning together."""
    longest: dict[Ids, int] = {}
    for prompt in prompts:
        longest[prompt[:_MIN_SHARED]] = max(len(prompt), longest.get(prompt[:_MIN_SHARED], 0))
    return sorted(prompts, key=lambda p: (-longest[p[:_MIN_SHARED]], p[:_MIN_SHARED], -len(p)))


class PlainEngine(Engine):
    """An engine for models whose state is not keys and values, such as Mamba.

    The engine cannot pause a generation, so it always generates whole answers. Prompts of the same length
    share a batch.
    """

    begins = "whole"

    def begin(self, prompts: Sequence[EncodedPrompt], n_tokens: int) -> list[Handle]:
        """Generate whole answers, whatever ``n_tokens`` is."""
        return [Handle(answer) for answer in self._grow([(one, 0) for one in prompts])]

    def _grow(self, samples: Sequence[tuple[EncodedPrompt, int]]) -> list[GrowingAnswer]:
        results: dict[int, GrowingAnswer] = {}

        def grow(some: Sequence[int]) -> None:
            answers = [GrowingAnswer(self.vocabulary, *samples[i]) for i in some]
            self._generate(answers)
            results.update(zip(some, answers, strict=True))

        groups: dict[int, list[int]] = {}
        for index, (prompt, _) in enumerate(samples):
            groups.setdefault(len(prompt.ids), []).append(index)
        for length, group in groups.items():
            for batch in pack([(length + samples[i][0].further, 1) for i in group], self._budget):
                in_halves([group[place] for place in batch], grow)
        return [results[index] for index in range(len(samples))]

    @torch.inference_mode()
    def _generate(self, answers: Sequence[GrowingAnswer]) -> None:
        """Answer prompts of equal length with ``model.generate``, but with our choice of tokens."""

        def take(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            raise_if_cancelled()
            only = torch.full_like(logits, -torch.inf)
            scored = choose(logits.float(), [one.draw for one in answers])
            for row, (answer, one) in enumerate(zip(answers, scored, strict=True)):
                only[row, one.token] = 0
                if answer.ended is None:
                    answer.accept(one)
            return only

        def ended(ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            done = all(one.ended is not None for one in answers)
            return torch.full((len(answers),), done, device=ids.device)

        tokens = self._model.tensor([one.prompt.ids for one in answers])
        longest = max(one.prompt.sampling.limit + one.prompt.thinking_tokens for one in answers)
        self._model.model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            generation_config=GenerationConfig(
                max_new_tokens=longest + 1,
                do_sample=False,
                num_beams=1,
                repetition_penalty=1.0,
                pad_token_id=0,
            ),
            logits_processor=LogitsProcessorList([take]),
            stopping_criteria=StoppingCriteriaList([ended]),
        )


def common_length(prompts: Sequence[Ids]) -> int:
    """Return how many leading tokens all prompts share; the last token of a prompt does not count."""
    first, last = min(prompts), max(prompts)
    most = min(map(len, prompts)) - 1
    return next((i for i in range(most) if first[i] != last[i]), most)


def pack(costs: Sequence[tuple[int, int]], budget: int) -> list[list[int]]:
    """Split items, in order, into batches within a token budget.

    An item that costs more than the budget gets a batch of its own. The cost of a batch is the length of its
    longest row times the number of its rows. ``costs`` holds, for each item, the tokens in a row and the
    number of rows.

    Example:
        >>> pack([(10, 1), (10, 2), (30, 1)], budget=40)
        [[0, 1], [2]]
    """
    batches: list[list[int]] = []
    longest = rows = 0
    for index, (length, count) in enumerate(costs):
        longest, rows = max(longest, length), rows + count
        if not batches or longest * rows > budget:
            batches.append([])
            longest, rows = length, count
        batches[-1].append(index)
    return batches


def _similar(lengths: Sequence[int]) -> list[list[int]]:
    """Divide rows into batches of similar length, and return the indices of the rows of each batch.

    The argument ``lengths`` contains the lengths of the rows, the longest row first.
    """
    batches: list[list[int]] = []
    total = 0
    for index, length in enumerate(lengths):
        total += length
        if not batches or lengths[batches[-1][0]] * (len(batches[-1]) + 1) > total + max(
            _PADDING, total // 8
        ):
            batches.append([])
            total = length
        batches[-1].append(index)
    return batches


def in_halves(items: Sequence[T], work: Callable[[Sequence[T]], None]) -> None:
    """Call ``work`` with all items; if the device lacks memory, call it with each half of them in turn.

    Raises:
        ServiceError: If the device has too little memory even for a single item.
    """
    try:
        work(items)
        return
    except Exception as error:
        if not is_out_of_memory(error) and not isinstance(error, _TooLittleMemoryError):
            raise
        if len(items) == 1:
            raise _TooLittleMemoryError(
                "the device has too little memory for a single sequence",
                hint="use a shorter prompt, a smaller max_tokens, a smaller dtype or another device",
            ) from error
    # The halves run outside the handler, so that no traceback keeps the failed attempt's tensors.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = len(items) // 2
    in_halves(items[:middle], work)
    in_halves(items[middle:], work)


class _TooLittleMemoryError(ServiceError):
    """A single sequence does not fit into the device's free memory."""
