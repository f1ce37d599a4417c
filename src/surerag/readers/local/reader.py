"""The reader for a model in this process: prompts in, answers with exact entropies out."""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surerag.errors import ConfigurationError, ContextLengthError, InputError, check_at_least
from surerag.messages import (
    ANSWER_TOKENS,
    Chunk,
    Generation,
    Prompt,
    SamplingParams,
    Usage,
)
from surerag.readers.calls import model_call, renew_after_fork
from surerag.readers.local.chat import PromptEncoder, describe_options
from surerag.readers.local.engine import Engine, Handle, PlainEngine
from surerag.readers.local.model import CausalModel, load
from surerag.readers.local.sequences import EncodedPrompt, GrowingAnswer, Vocabulary
from surerag.readers.pieces import THINKING_TOKENS, TrimmedPieces
from surerag.readers.protocol import BaseReader, BegunGeneration, Capabilities, UsageCounter, begun_from_whole

_readers: weakref.WeakSet[TransformersReader] = weakref.WeakSet()


class TransformersReader(BaseReader):
    """A causal language model in this process, with log-probabilities and exact entropies.

    All log-probabilities and entropies are computed in float32 from the raw logits. The model processes a
    prompt once for all its samples. If the prompts of one call begin with the same text (48 tokens or more),
    the model processes this text once. For equal sampling parameters, sample ``i`` of a prompt depends only
    on the prompt, the seed and ``i``. Calls from several threads run one after the other. Models whose state
    is not keys and values (Mamba, RWKV, hybrids) run through the library's ``generate``, which gives the same
    results, but more slowly.

    For a model that thinks, the text, the log-probabilities, stop texts and ``max_tokens`` concern only the
    answer, not the thoughts. If such a model ends its output inside the thoughts, the answer is empty.

    Args:
        model: Any causal language model of ``transformers``, with PEFT adapters or without; it is put into
            evaluation mode.
        tokenizer: The tokenizer that belongs to the model.
        chat_template: Whether to use the tokenizer's chat template, if it has one. Without a template,
            prompts are plain text, and the turns of a conversation are joined by empty lines.
        template_options: Further variables for the chat template, such as ``{"reasoning_effort": "low"}``:
            plain values, as JSON has them. They are part of the reader's name.
        max_batch_tokens: Maximum tokens of one batch, prompts and answers together. None means 32,768 or,
            with CUDA, the number that fits into half of the free memory, whichever is larger. A batch for
            which the memory does not suffice is halved.
        window: Maximum tokens of prompt and answer together; None takes the limit in the model's config.
        max_tokens: Maximum length of an answer [tokens] if neither the method nor the caller sets another.
        thinking: If the chat template has a switch for thinking, True switches thinking on, and False and
            None switch it off. Without a switch, True says that the model always thinks, and
            False raises an error.
        thinking_tokens: Maximum tokens of thoughts before an answer; fewer if the window has less space.

    Attributes:
        model: The model as it was passed in, for a framework's own pipeline over the same weights.
        tokenizer: The tokenizer as it was passed in.

    Raises:
        ConfigurationError: If a setting or the chat template cannot work, the model is no causal language
            model, or ``thinking`` is False and the chat template has no switch for thinking.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat_template: bool = True,
        template_options: Mapping[str, Any] | None = None,
        max_batch_tokens: int | None = None,
        window: int | None = None,
        max_tokens: int = ANSWER_TOKENS,
        thinking: bool | None = None,
        thinking_tokens: int = THINKING_TOKENS,
    ) -> None:
        check_at_least(1, max_batch_tokens=max_batch_tokens, window=window)
        check_at_least(1, max_tokens=max_tokens, thinking_tokens=thinking_tokens)
        self.model, self.tokenizer = model, tokenizer
        self._model = CausalModel(model, tokenizer, window)
        self._encoder = PromptEncoder(tokenizer, chat_template, template_options, thinking)
        kind = Engine if self._model.cacheable else PlainEngine
        vocabulary = Vocabulary.of(tokenizer, self._model.end_tokens)
        self._engine = kind(self._model, vocabulary, max_batch_tokens or self._model.batch_tokens)
        self._max_tokens, self._thinking_tokens = max_tokens, thinking_tokens
        self._usage = UsageCounter()
        self._settings: dict[str, Any] | None = None
        self._lock = threading.RLock()
        _readers.add(self)

    @classmethod
    def from_pretrained(
        cls,
        id_or_path: str,
        *,
        device: str | None = None,
        dtype: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        use_safetensors: bool = True,
        **options: Any,
    ) -> TransformersReader:
        """Load a model and its tokenizer from the Hugging Face hub or from a folder.

        Args:
            id_or_path: Hub id, or a folder.
            device: Device of the weights, such as ``"cuda:1"``; None takes an accelerator if there is one.
            dtype: Type of the weights, such as ``"bfloat16"``. On an accelerator, None keeps the weights' own
                type. On a CPU, None takes bfloat16 for 16-bit weights if the processor has instructions for
                bfloat16 (AVX512-BF16, AMX, ARM BF16), and float32 otherwise. bfloat16 needs half of the
                memory that float32 needs.
            revision: Branch, tag or commit of the hub.
            trust_remote_code: Whether code that comes with the model may run.
            use_safetensors: Whether to refuse weights in formats that can run code when they are loaded.
            **options: Options of :class:`TransformersReader`; all other options are passed to
                ``AutoModelForCausalLM.from_pretrained``.

        Raises:
            ConfigurationError: If the model cannot be loaded or has missing weights, or if a setting cannot
                work.
        """
        loading: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "use_safetensors": use_safetensors,
        }
        own = inspect.signature(cls).parameters
        reading = {name: value for name, value in options.items() if name in own}
        loading |= {name: value for name, value in options.items() if name not in own}
        reader = cls(*load(id_or_path, **loading), **reading)
        reader._settings = {"id_or_path": id_or_path, **loading, **reading}
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings, never the weights.

        Raises:
            ConfigurationError: If the model was built by the caller, so that no settings can rebuild it.
        """
        if self._settings is None:
            raise ConfigurationError(
                "a reader whose model was passed in as an object cannot be pickled",
                hint="make it with TransformersReader.from_pretrained, or pass a reader after unpickling",
            )
        return partial(type(self).from_pretrained, **self._settings), ()

    def __deepcopy__(self, memo: dict[int, Any]) -> TransformersReader:
        """Return this reader itself: its weights need no copy."""
        return self

    def __repr__(self) -> str:
        thinking = "" if self._encoder.thinking == "none" else f", thinking={self._encoder.thinking!r}"
        return f"TransformersReader({self.name!r}, device={str(self._model.device)!r}{thinking})"

    @property
    def name(self) -> str:
        """The model's id or the last part of its path, then a hash of its weights and template variables."""
        return self._model.name + describe_options(self._encoder.options)

    @property
    def capabilities(self) -> Capabilities:
        """What this model can do."""
        begins = self._engine.begins
        return Capabilities(
            logprobs=True,
            entropy="exact",
            energy=True,
            begin=begins,
            stream=begins == "native",
            local=True,
            thinking=self._encoder.thinking,
        )

    @property
    def max_tokens(self) -> int:
        """Default for the maximum length of an answer [tokens]."""
        return self._max_tokens

    @property
    def usage(self) -> Usage:
        """Numbers of prompts, prompt tokens, answer tokens and thinking tokens so far."""
        return self._usage.total

    @property
    def window(self) -> int | None:
        """Maximum tokens of prompt and answer together; None if neither caller nor config sets a limit."""
        return self._model.window

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has, not counting tokens that a chat template would add."""
        return self._encoder.count(text)

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` answers to each prompt, in order; see :meth:`generate_each`."""
        return self.generate_each(prompts, [sampling] * len(prompts))

    def generate_each(
        self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]
    ) -> list[list[Generation]]:
        """Return answers to each prompt, sampled with the prompt's own parameters, in shared batches.

        Raises:
            ContextLengthError: If a prompt and ``max_tokens`` do not fit the window together.
            ThinkingBudgetError: If the model was still thinking when it had used all its tokens for thoughts.
        """
        with self._lock, model_call():
            encoded = self._encode_prompts(prompts, samplings)
            grown = self._engine.generate(encoded)
            self._count(encoded, [sequence for row in grown for sequence in row])
            return [[sequence.generation() for sequence in row] for row in grown]

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[BegunGeneration]:
        """Generate the first ``n_tokens`` tokens (after thoughts) of each answer; see :meth:`begin_each`."""
        return self.begin_each(prompts, n_tokens, [sampling] * len(prompts))

    def begin_each(
        self, prompts: Sequence[Prompt], n_tokens: int, samplings: Sequence[SamplingParams]
    ) -> list[BegunGeneration]:
        """Generate the first ``n_tokens`` tokens (after thoughts) of an answer to each prompt.

        Each prompt has its own sampling parameters, and the prompts share batches. The memory of the answers
        is freed once all returned generations are completed, closed or dropped. This method raises the same
        errors as :meth:`generate_each`.
        """
        check_at_least(1, n_tokens=n_tokens)
        with self._lock, model_call():
            encoded = self._encode_prompts(prompts, [replace(sampling, n=1) for sampling in samplings])
            handles = self._engine.begin(encoded, n_tokens)
            self._count(encoded, [handle.answer for handle in handles])
            return [
                begun_from_whole(handle.answer.generation(), n_tokens)
                if handle.row is None
                else _BegunAnswer(self, handle)
                for handle in handles
            ]

    def _encode_prompts(
        self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]
    ) -> list[EncodedPrompt]:
        window = self._model.window or sys.maxsize
        samplings = [
            one if one.max_tokens else replace(one, max_tokens=self._max_tokens) for one in samplings
        ]
        encoded = [self._encoder.encode(prompt) for prompt in prompts]
        pairs = list(zip(encoded, samplings, strict=True))
        tokens_left = [window - len(ids) - sampling.limit for (ids, _), sampling in pairs]
        unfit = [place for place, left in enumerate(tokens_left) if left < 0]
        if unfit:
            (ids, _), sampling = pairs[unfit[0]]
            raise ContextLengthError(
                f"prompt {unfit[0]} has {len(ids)} tokens, {sampling.max_tokens} tokens may follow, and the "
                f"model's window holds {window}: {-tokens_left[unfit[0]]} too many",
                hint=f"shorten the context by {-tokens_left[unfit[0]]} tokens, or lower max_tokens",
                inputs=[prompts[place] for place in unfit],
            )
        thinks = self._encoder.expects_thoughts
        return [
            EncodedPrompt(
                tuple(ids), sampling, inside, thinks or bool(inside), min(self._thinking_tokens, left)
            )
            for ((ids, inside), sampling), left in zip(pairs, tokens_left, strict=True)
        ]

    def _count(self, encoded: Sequence[EncodedPrompt], sequences: Sequence[GrowingAnswer]) -> None:
        self._usage.add(Usage(len(encoded), sum(len(one.ids) for one in encoded)) + _written(sequences))


class _BegunAnswer(BegunGeneration):
    """A begun answer that the model continues from its cache; several answers share a batch."""

    def __init__(self, reader: TransformersReader, handle: Handle) -> None:
        super().__init__(handle.answer.generation())
        self._reader, self._handle = reader, handle

    def rest(self) -> Generation:
        return self._rest_together([self])[0]

    def _rest_together(self, begun: Sequence[_BegunAnswer]) -> list[Generation]:
        reader, handles = self._reader, [item._handle for item in begun]
        if any(item._reader is not reader for item in begun):
            raise InputError("generations of different readers cannot be completed together")
        if len(set(map(id, begun))) < len(begun):
            raise InputError("the same generation cannot be completed twice")
        with reader._lock, model_call():
            for item in begun:
                item._check_open()
            before = _written([handle.answer for handle in handles])
            try:
                reader._engine.finish(handles)
            finally:
                reader._usage.add(_written([handle.answer for handle in handles], before))
            for item in begun:
                item._end("completed")
            return [handle.answer.generation() for handle in handles]

    def chunks(self) -> Iterator[Chunk]:
        reader, handle = self._reader, self._handle
        with reader._lock, model_call():
            self._check_open()
            batch = reader._engine.resume(handle)
            self._end("completed")
        sequence = handle.answer if batch is None else batch.started[0]
        before, trimmed, shown = _written([handle.answer]), TrimmedPieces(), 0
        try:
            while True:
                text = sequence.certain_text
                piece, shown = trimmed.feed(text[shown:]), len(text)
                if sequence.ended is not None or batch is None:
                    yield Chunk(piece, sequence.generation())
                    return
                if piece:
                    yield Chunk(piece)
                with reader._lock, model_call():
                    batch.step()
        finally:
            reader._usage.add(_written([sequence], before))

    def close(self) -> None:
        """Free the answer's memory; this does not stop an answer that is being completed."""
        # A lock would be wrong: the garbage collector may call ``close`` in a thread that must not wait.
        self._end("closed")

    async def aclose(self) -> None:
        self.close()

    def _end(self, fate: Literal["completed", "closed"]) -> None:
        super()._end(fate)
        self._handle.row = None


def _written(sequences: Sequence[GrowingAnswer], before: Usage | None = None) -> Usage:
    """Return the sequences' numbers of answer and thinking tokens, minus the numbers in ``before``."""
    before = before or Usage()
    return Usage(
        completion_tokens=sum(map(len, sequences)) - before.completion_tokens,
        thinking_tokens=sum(sequence.thinking_tokens for sequence in sequences) - before.thinking_tokens,
    )


def _renew_after_fork() -> None:
    # In a forked child, only the forking thread exists. A lock that another thread held would never be
    # released, and OpenMP would wait for ever for threads of the parent.
    for reader in list(_readers):
        reader._lock, reader._usage = threading.RLock(), UsageCounter(reader._usage.total)
        if reader._model.device.type == "cpu":
            torch.set_num_threads(1)


renew_after_fork(_renew_after_fork)
