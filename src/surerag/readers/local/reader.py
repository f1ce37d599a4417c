"""The reader itself: prompts in, answers with exact entropies out."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    ContextLengthError,
    InputError,
)
from surerag.messages import (
    ANSWER_TOKENS,
    Chunk,
    Generation,
    PartialGeneration,
    Prompt,
    SamplingParams,
    TokenTrace,
    Usage,
)
from surerag.readers.local.encoding import PromptEncoder
from surerag.readers.local.engine import Engine
from surerag.readers.local.growing import Asked, GrowingSequence, Wanted
from surerag.readers.local.loading import load
from surerag.readers.local.model import CausalModel
from surerag.readers.local.sequences import Handle, close
from surerag.readers.local.spared import Spared
from surerag.readers.local.templates import Render, variables
from surerag.readers.pieces import TrimmedPieces
from surerag.readers.protocol import BaseReader, Capabilities
from surerag.readers.thinking import THINKING_TOKENS
from surerag.readers.threads import CancelledWorkError, cancel_when

if TYPE_CHECKING:
    from surerag.readers.local.continuous import ContinuousEngine

_NOTHING = Usage()


class TransformersReader(BaseReader):
    """A causal language model in this process, with log-probabilities and exact entropies.

    Every number is computed in float32 from the raw logits, one step at a time, on the model's device.
    A prompt is read once, whatever the number of samples, and prompts of one call that share a prefix
    read it once. Sample ``i`` of a prompt depends on the prompt, the seed and ``i`` alone. Models whose
    state cannot be padded or shared (state-space models, hybrids) are read in batches of equal length.

    Calls from several threads are served one after the other, or with ``engine="continuous"`` side by side.

    Of a model that thinks before it answers, everything that is measured and counted is the answer's: text,
    trace, first tokens, stop texts and ``max_tokens``; its thoughts are counted apart. By default thinking is
    switched off where the chat template has a switch for it. Otherwise thoughts are told from the answer by
    their marks: an answer of any model that begins with such a mark, or whose prompt ends with one, begins
    after them. (Until an answer's first characters can no more become a mark, nothing of it is shown; most
    answers tell with their first token.) A model that stops inside its thoughts has given an empty answer.

    Args:
        model: Any causal language model of ``transformers``, on its device, in its dtype; it is put
            into evaluation mode.
        tokenizer: The tokenizer that belongs to it.
        chat_template: Whether to use the tokenizer's chat template, if it has one. Without one, prompts
            are plain text, and the turns of a conversation are joined by empty lines.
        template_options: Further variables for the chat template, such as ``{"reasoning_effort": "low"}``:
            plain values, as JSON has them. They are part of the reader's name.
        max_batch_tokens: Tokens, prompts and answers together, that one batch may hold. None is 32,768 on a
            CPU; on a GPU, what half of its free memory has room for. What does not fit after all is halved.
        min_shared_prefix: Shortest common prefix, in tokens, worth reading separately.
        window: Tokens that prompt and answer may have together; None takes it from the model's config.
        end_tokens: Tokens that end an answer besides those of the model's config: ids, or tokens of the
            vocabulary such as ``"<|eot_id|>"``.
        render: Writes a conversation (a plain prompt is one user turn) as one text in place of the chat
            template: markup and control tokens, up to where the answer begins. The tokenizer's begin token
            is put before it where it is missing. What looks like a control token *inside* a message stays
            text, as with templates.
        max_tokens: Length of an answer, at most, where nobody sets another.
        thinking: False to switch thinking off, True to have the model think, by the template's switch where
            there is one; None switches it off where that can be done.
        thinking_tokens: Tokens that may be thought before an answer, at most; fewer where the window leaves
            no more beside the prompt and ``max_tokens``.
        engine: ``"own"`` makes batches of what is asked together. ``"continuous"`` is the running batch of
            ``transformers``' own continuous batching, which requests join and leave at any time: it takes
            models of plain attention only, all memory for ``max_batch_tokens`` at once, and the model for
            itself. ``"auto"`` is ``"own"``, for as long as the other was not tried on a GPU.
        kept_prompt_bytes: Memory for prompts that were read, kept from call to call, those that were used
            last: to generate and then to score reads them once, and what begins as one of them (the same
            instructions, a conversation that goes on) is read from there. 0 keeps none.

    Raises:
        ConfigurationError: If a setting cannot work, an end token is not in the vocabulary, thinking shall be
            switched off and the chat template has no switch for it, or the engine cannot run this model.

    Example:
        >>> reader = TransformersReader(model, tokenizer)  # doctest: +SKIP
        >>> reader.generate(["Where was Ada born?"], SamplingParams())[0][0].trace.entropy.middle  # doctest: +SKIP
        (0.41, 0.02)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        chat_template: bool = True,
        template_options: Mapping[str, Any] | None = None,
        max_batch_tokens: int | None = None,
        min_shared_prefix: int = 48,
        window: int | None = None,
        end_tokens: Sequence[int | str] = (),
        render: Render | None = None,
        max_tokens: int = ANSWER_TOKENS,
        thinking: bool | None = None,
        thinking_tokens: int = THINKING_TOKENS,
        engine: Literal["auto", "own", "continuous"] = "auto",
        kept_prompt_bytes: int = 0,
    ) -> None:
        if thinking_tokens < 1:
            raise ConfigurationError(
                f"thinking_tokens must be at least 1, got {thinking_tokens}",
                hint="thinking=False switches thinking off, where the chat template can",
            )
        if min_shared_prefix < 1 or (max_batch_tokens is not None and max_batch_tokens < 1):
            raise ConfigurationError(
                "max_batch_tokens and min_shared_prefix must be at least 1, "
                f"got {max_batch_tokens} and {min_shared_prefix}"
            )
        if kept_prompt_bytes < 0:
            raise ConfigurationError(f"kept_prompt_bytes must be at least 0, got {kept_prompt_bytes}")
        if engine not in ("auto", "own", "continuous"):
            raise ConfigurationError(f"engine is {engine!r}", hint="use 'auto', 'own' or 'continuous'")
        self._model = CausalModel(model.eval(), tokenizer, window, end_tokens)
        self._encoder = PromptEncoder(tokenizer, chat_template, template_options, render, thinking)
        budget = self._model.batch_tokens if max_batch_tokens is None else max_batch_tokens
        # Calls of our own engine take turns; those of the other are all one batch.
        self._running = engine == "continuous"
        self._lock = nullcontext() if self._running else threading.RLock()
        self._guard = threading.Lock()
        kind = _continuous() if self._running else Engine
        self._engine = kind(self._model, tokenizer, budget, min_shared_prefix, kept_prompt_bytes)
        self._window = min(self._model.window or budget, budget) if self._running else self._model.window
        self._usage = Usage()
        self._max_tokens = max_tokens
        self._thinking_tokens = thinking_tokens
        self._spared = Spared()
        self._settings: dict[str, Any] | None = None

    @classmethod
    def from_pretrained(
        cls,
        id_or_path: str,
        *,
        device: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
        use_safetensors: bool = True,
        chat_template: bool = True,
        template_options: Mapping[str, Any] | None = None,
        max_batch_tokens: int | None = None,
        min_shared_prefix: int = 48,
        window: int | None = None,
        end_tokens: Sequence[int | str] = (),
        render: Render | None = None,
        max_tokens: int = ANSWER_TOKENS,
        thinking: bool | None = None,
        thinking_tokens: int = THINKING_TOKENS,
        engine: Literal["auto", "own", "continuous"] = "auto",
        kept_prompt_bytes: int = 0,
        **model_options: Any,
    ) -> TransformersReader:
        """Load a model and its tokenizer from a hub or a folder.

        Args:
            id_or_path: Hub id, or a folder.
            device: Such as ``"cuda:1"``; None takes an accelerator if there is one.
            dtype: Such as ``"bfloat16"``; None is the weights' own on an accelerator, float32 on a CPU.
            trust_remote_code: Whether code that comes with the model may run.
            use_safetensors: Whether to refuse weights in formats that can run code when they are loaded.
            chat_template: See :class:`TransformersReader`, as for all that follow.
            template_options: Variables for the chat template.
            max_batch_tokens: Tokens of one batch.
            min_shared_prefix: Shortest prefix worth sharing.
            window: Tokens of prompt and answer together.
            end_tokens: Further tokens that end an answer.
            render: Writes prompts in place of the chat template. To pickle the reader, it must pickle.
            max_tokens: Length of an answer, at most, where nobody sets another.
            thinking: Whether the model shall think.
            thinking_tokens: Tokens that may be thought before an answer.
            engine: What runs the model.
            kept_prompt_bytes: Memory for prompts between calls.
            **model_options: Passed to ``AutoModelForCausalLM.from_pretrained``.
        """
        reading: dict[str, Any] = {
            "chat_template": chat_template,
            "template_options": template_options,
            "max_batch_tokens": max_batch_tokens,
            "min_shared_prefix": min_shared_prefix,
            "window": window,
            "end_tokens": end_tokens,
            "render": render,
            "max_tokens": max_tokens,
            "thinking": thinking,
            "thinking_tokens": thinking_tokens,
            "engine": engine,
            "kept_prompt_bytes": kept_prompt_bytes,
        }
        loading: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "trust_remote_code": trust_remote_code,
            "use_safetensors": use_safetensors,
            **model_options,
        }
        loaded = load(id_or_path, **loading)
        reader = cls(loaded.model, loaded.tokenizer, **reading)
        reader._settings = {"id_or_path": id_or_path, **loading, **reading}
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings, never the weights.

        Raises:
            ConfigurationError: If the model was built by the caller, so that no settings can rebuild it.
        """
        if self._settings is None:
            raise ConfigurationError(
                "a reader around a model that was built in place cannot be pickled",
                hint="load it with TransformersReader.from_pretrained, or pass the reader in after loading",
            )
        return _rebuild, (type(self), self._settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> TransformersReader:
        """Return this reader itself: what holds a reader may be copied, the weights need not be."""
        return self

    def __repr__(self) -> str:
        """Name the model, its device, and what is done about thinking."""
        thinking = self._encoder.manner.thinking
        told = "" if thinking == "none" else f", thinking={thinking!r}"
        return f"TransformersReader({self.name!r}, device={str(self._model.device)!r}{told})"

    @cached_property
    def name(self) -> str:
        """The model's id or the last part of its path, a short hash of its weights, and template variables.

        The variables are those of ``template_options``, and the one that switches thinking: a calibration
        for one manner of answering is none for another.
        """
        return f"{self._model.origin}@{self._model.fingerprint}{variables(self._encoder.manner.options)}"

    @property
    def capabilities(self) -> Capabilities:
        """Everything that a local model can do.

        Of a model whose thoughts are told apart, given text is scored as an answer that nothing was thought
        before: as with thinking switched off, or behind the empty thought that the chat template writes
        before an answer. Where it knows neither, ``score`` is False.
        """
        manner = self._encoder.manner
        return Capabilities(
            logprobs=True,
            entropy="exact",
            energy=True,
            score=manner.scores,
            begin="native",
            stream=True,
            local=not self._running,
            thinking=manner.thinking,
        )

    @property
    def max_tokens(self) -> int:
        """Length of an answer, at most, where nobody sets another."""
        return self._max_tokens

    @property
    def usage(self) -> Usage:
        """Prompts asked, their tokens as the caller sees them, tokens of answers, and of thoughts."""
        return self._usage

    @property
    def tokens_read(self) -> int:
        """Prompt tokens that went through the model: samples and shared prefixes count once."""
        return self._engine.tokens_read

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has, without any that a template would add."""
        return self._encoder.count(text)

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` answers to each prompt, in order.

        Raises:
            ContextLengthError: If a prompt and ``max_tokens`` do not fit the window together.
            ThinkingBudgetError: If the model was still thinking when its budget for one of them was spent.
                The answers to the others are kept: asked for next, without it, they cost nothing.
        """
        return self.generate_each(prompts, [sampling] * len(prompts))

    def generate_each(
        self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]
    ) -> list[list[Generation]]:
        """Return answers to each prompt, sampled in its own way, in common batches; see :meth:`generate`."""
        with self._lock:
            wanted = self._wanted(prompts, samplings)
            grown = self._spared.rows(wanted)
            if grown is None:
                grown = self._engine.generate(wanted)
                self._count(wanted, [sequence for row in grown for sequence in row])
                overrun = any(sequence.ended == "thinking" for row in grown for sequence in row)
                if len(wanted) > 1 and overrun and not self._running:
                    self._spared.keep_rows(wanted, grown)
            return [[sequence.generation() for sequence in row] for row in grown]

    def score(self, prompts: Sequence[Prompt], continuations: Sequence[str]) -> list[TokenTrace]:
        """Return what the model thinks of each continuation after its prompt.

        A continuation is taken as it stands: begin it with a space where the model would. It is scored as
        an answer that nothing was thought before; see :attr:`capabilities`.

        Raises:
            CapabilityError: If the model thinks, and how an answer without thoughts begins is not known.
            InputError: If there is not one continuation for each prompt, or one is empty.
            ContextLengthError: If a prompt and its continuation do not fit the window together.
        """
        if len(prompts) != len(continuations):
            raise InputError(f"{len(prompts)} prompts came with {len(continuations)} continuations")
        if not self._encoder.manner.scores:
            raise CapabilityError(
                f"{self.name} thinks before it answers, and how an answer without thoughts begins is not "
                "known, so that given text cannot be scored",
                hint="score with a model that does not think, or whose thinking can be switched off",
            )
        with self._lock:
            with self._guard:
                before = [self._encoder.encode(prompt, unthought=True) for prompt in prompts]
                after = [
                    self._encoder.encode_with(prompt, continuation, unthought=True)
                    for prompt, continuation in zip(prompts, continuations, strict=True)
                ]
            for index, tail in enumerate(after):
                if not tail:
                    raise InputError(
                        f"continuation {index} has no tokens", hint="score a text that is not empty"
                    )
            self._check_lengths(prompts, list(zip(map(len, before), map(len, after), strict=True)))
            self._note(Usage(len(prompts), sum(map(len, before)) + sum(map(len, after))))
            return self._engine.score(before, after)

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Generate the first ``n_tokens`` tokens of each prompt's first answer, and keep the memory.

        A model that thinks does so here; the tokens are those after its thoughts. The memory is freed by
        ``finish`` or ``cancel``, or when the handles are dropped.

        Raises:
            ConfigurationError: If ``n_tokens`` is less than 1.
            ContextLengthError: If a prompt and ``max_tokens`` do not fit the window together.
            ThinkingBudgetError: If the model was still thinking when its budget for one of them was spent.
                The others are kept, with their memory, until something else is asked for.
        """
        return self.begin_each(prompts, n_tokens, [sampling] * len(prompts))

    def begin_each(
        self, prompts: Sequence[Prompt], n_tokens: int, samplings: Sequence[SamplingParams]
    ) -> list[PartialGeneration]:
        """Begin an answer to each prompt, sampled in its own way, in common batches; see :meth:`begin`."""
        if n_tokens < 1:
            raise ConfigurationError(f"n_tokens must be at least 1, got {n_tokens}")
        with self._lock:
            wanted = self._wanted(prompts, [replace(sampling, n=1) for sampling in samplings])
            handles = self._spared.handles(wanted, n_tokens)
            if handles is None:
                handles = self._engine.begin(wanted, n_tokens)
                self._count(wanted, [handle.sequence for handle in handles])
                overrun = any(handle.sequence.ended == "thinking" for handle in handles)
                if len(wanted) > 1 and overrun and not self._running:
                    self._spared.keep_handles(wanted, n_tokens, handles)
            return [
                PartialGeneration(
                    handle.sequence.generation(), done=handle.sequence.ended is not None, state=handle
                )
                for handle in handles
            ]

    def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Go on with what was begun, from whatever calls, in common batches.

        Raises:
            InputError: If one of them was finished or cancelled before, or begun by another reader, or if all
                were cancelled meanwhile.
            ServiceError: If the device has too little memory for one of them. Those that had ended by then
                keep their answers: finish them again, alone or with the others, and nothing is lost.
        """
        with self._lock:
            handles = [self._waiting(item) for item in begun]
            if len(set(map(id, handles))) < len(handles):
                raise InputError("the same generation is to be finished twice")
            started = _said([handle.sequence for handle in handles])
            try:
                with cancel_when(lambda: bool(handles) and all(handle.unwanted for handle in handles)):
                    finished = self._engine.finish(handles)
            except CancelledWorkError:
                if all(handle.unwanted for handle in handles):
                    self._engine.cancel(handles)
                    raise InputError("this generation was cancelled while it was finished") from None
                raise
            finally:
                self._note(_said([handle.sequence for handle in handles], since=started))
            return [sequence.generation() for sequence in finished]

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Free what was begun; doing so again, or after finishing, does nothing.

        What another thread is finishing ends at its next step, once all of that call are cancelled.
        """
        handles = [item.state for item in begun if isinstance(item.state, Handle)]
        for handle in handles:
            handle.unwanted = True
        with self._lock:
            self._engine.cancel([handle for handle in handles if handle.fate == "waiting"])

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield the first sample as it grows: whole characters, no part of a stop text.

        The model is free for other calls between two pieces. Closing the iterator frees the memory.

        Raises:
            ContextLengthError: If the prompt and ``max_tokens`` do not fit the window together.
        """
        yield from self.finish_stream(self.begin([prompt], 1, sampling)[0])

    def finish_stream(self, begun: PartialGeneration) -> Iterator[Chunk]:
        """Yield what was begun from its first token on; see :meth:`stream`.

        Raises:
            InputError: If it was finished or cancelled before, or begun by another reader.
        """
        with self._lock:
            handle = self._waiting(begun)
            sequence, flight = handle.sequence, None
            if sequence.ended is None:
                flight = self._engine.resume([handle])
            started = _said([sequence])
            close([handle], "finished")
        trimmed, shown = TrimmedPieces(), 0
        try:
            while True:
                if flight is not None:
                    sequence = flight.sequences[0]
                text = sequence.shown
                piece = trimmed.feed(text[shown:])
                shown = len(text)
                if flight is None or sequence.ended is not None:
                    yield Chunk(piece, sequence.generation())
                    return
                if piece:
                    yield Chunk(piece)
                with self._lock:
                    flight.step()
        finally:
            self._note(_said([sequence], since=started))

    def _wanted(self, prompts: Sequence[Prompt], samplings: Sequence[SamplingParams]) -> list[Wanted]:
        with self._guard:
            read = [self._encoder.read(prompt) for prompt in prompts]
        self._check_lengths(
            prompts,
            [(len(ids), sampling.max_tokens) for (ids, _), sampling in zip(read, samplings, strict=True)],
        )
        found: list[Wanted] = []
        for (ids, opened), sampling in zip(read, samplings, strict=True):
            thinks = bool(opened) or self._encoder.manner.expected
            limit, window = self._thinking_tokens, self._window
            left = limit if window is None else min(limit, window - len(ids) - sampling.max_tokens)
            found.append(Wanted(Asked(ids, opened, thinks, left, limit), sampling))
        return found

    def _check_lengths(self, prompts: Sequence[Prompt], lengths: Sequence[tuple[int, int]]) -> None:
        """Refuse prompts that do not fit the window, from their lengths and how many tokens are to follow."""
        window = self._window
        if window is None:
            return
        unfit = [index for index, (length, further) in enumerate(lengths) if length + further > window]
        if unfit:
            length, further = lengths[unfit[0]]
            others = f" ({len(unfit) - 1} more do not fit either)" if len(unfit) > 1 else ""
            place = "the model's window" if window == self._model.window else "the running batch"
            raise ContextLengthError(
                f"prompt {unfit[0]} has {length} tokens, {further} more are to follow, and {place} "
                f"holds {window}: {length + further - window} too many{others}",
                hint="shorten the context by that many tokens, or lower max_tokens"
                + ("" if window == self._model.window else "; max_batch_tokens is what it holds"),
                inputs=[prompts[index] for index in unfit],
            )

    def _count(self, wanted: Sequence[Wanted], sequences: Sequence[GrowingSequence]) -> None:
        self._note(Usage(len(wanted), sum(len(one.asked.ids) for one in wanted)) + _said(sequences))

    def _note(self, usage: Usage) -> None:
        with self._guard:
            self._usage += usage

    def _waiting(self, begun: PartialGeneration) -> Handle:
        handle = begun.state
        if not isinstance(handle, Handle) or handle.owner is not self._model:
            raise InputError(
                "what is to be finished was not begun by this reader",
                hint="finish it with the reader that began it",
            )
        if handle.fate != "waiting":
            raise InputError(f"this generation was {handle.fate} before", hint="begin it again")
        return handle


def _said(sequences: Sequence[GrowingSequence], since: Usage = _NOTHING) -> Usage:
    """Return how much of answers and of thoughts was generated, beyond what was before."""
    return Usage(
        completion_tokens=sum(map(len, sequences)) - since.completion_tokens,
        thinking_tokens=sum(sequence.thinking_tokens for sequence in sequences) - since.thinking_tokens,
    )


def _continuous() -> type[ContinuousEngine]:
    # Read when it is asked for: it touches parts of the library that may be missing elsewhere.
    from surerag.readers.local.continuous import ContinuousEngine

    return ContinuousEngine


def _rebuild(kind: type[TransformersReader], settings: dict[str, Any]) -> TransformersReader:
    return kind.from_pretrained(**settings)
