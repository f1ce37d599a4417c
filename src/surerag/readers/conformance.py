"""The conformance suite that every reader must pass, including your own.

To print a report::

    from surerag.readers.conformance import check_reader
    print(check_reader(my_reader))

To run each check as a test of pytest::

    from surerag.readers.conformance import CHECKS, Trial

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_reader(check, my_reader):
        check(my_reader, Trial())
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple
from unittest import SkipTest

from surerag.errors import SureragError
from surerag.messages import (
    Chunk,
    Generation,
    Prompt,
    SamplingParams,
    TokenTrace,
    as_messages,
)
from surerag.readers.calls import start_in_thread
from surerag.readers.protocol import BaseReader, BegunGeneration, as_reader, close_iterator

__all__ = ["CHECKS", "ConformanceReport", "Outcome", "Trial", "check_reader"]

_PROMPTS: tuple[Prompt, ...] = (
    "Where does the river Orun begin?",
    "Context: Ada Tarn was born in Velm.\nQuestion: Where was Ada Tarn born?\nAnswer:",
    "Name three colours.",
)


class BrokenPromiseError(SureragError, AssertionError):
    """Raised if a reader fails a check; pytest reports this error as a failed assertion."""


class NotApplicableError(SkipTest):
    """Raised if a check does not apply to a reader; the message of the error gives the reason."""


@dataclass(frozen=True)
class Trial:
    """The questions that the checks ask a reader, and how exactly the answers must agree.

    Attributes:
        prompts: At least two questions; different answers to them make the checks stricter.
        max_tokens: Maximum length of answers [tokens], a few tokens more than ``n_tokens``.
        n_tokens: Number of tokens with which answers are begun, or to which answers are cut short.
        tolerance: Log-probabilities and entropies [nats] that differ by at most this number count as equal.
        vocabulary_size: Number of tokens that the model can emit, if known: entropies cannot exceed its
            logarithm.
        seeded: Whether the reader returns the same samples for the same seed; many servers do not.
    """

    prompts: Sequence[Prompt] = _PROMPTS
    max_tokens: int = 12
    n_tokens: int = 3
    tolerance: float = 1e-4
    vocabulary_size: int | None = None
    seeded: bool = True

    @property
    def greedy(self) -> SamplingParams:
        """Sampling parameters for one greedy answer to each prompt."""
        return SamplingParams(max_tokens=self.max_tokens)

    def sampled(self, n: int) -> SamplingParams:
        """Sampling parameters for ``n`` random answers to each prompt."""
        return SamplingParams(n=n, temperature=1.0, max_tokens=self.max_tokens, seed=1)

    @property
    def repeatable(self) -> list[SamplingParams]:
        """Sampling parameters with which the same request has the same answers each time."""
        return [self.greedy, *([self.sampled(2)] if self.seeded else [])]

    def answers(self, reader: BaseReader) -> list[Generation]:
        """Return the greedy answer to each prompt."""
        return [row[0] for row in reader.generate(self.prompts, self.greedy)]

    def same(self, what: str, one: Generation, other: Generation) -> None:
        """Raise BrokenPromiseError unless two generations agree; ``what`` begins the error's message."""
        _demand(one.text == other.text, f"{what}: the texts differ: {one.text!r}, {other.text!r}")
        _demand(one.finish == other.finish, f"{what}: the finishes differ: {one.finish!r}, {other.finish!r}")
        _demand(
            (one.trace is None) == (other.trace is None),
            f"{what}: only one of two answers has log-probabilities",
        )
        if one.trace is not None and other.trace is not None:
            self._same_trace(what, one.trace, other.trace)

    def _same_trace(self, what: str, one: TokenTrace, other: TokenTrace) -> None:
        _demand(one.tokens == other.tokens, f"{what}: the tokens differ: {one.tokens}, {other.tokens}")
        self.check_close(f"{what}: log-probabilities", one.logprobs, other.logprobs)
        _demand(
            (one.entropy is None) == (other.entropy is None), f"{what}: only one of two answers has entropies"
        )
        if one.entropy is not None and other.entropy is not None:
            self.check_close(f"{what}: entropies", one.entropy.lower, other.entropy.lower)
            self.check_close(f"{what}: entropies", one.entropy.upper, other.entropy.upper)

    def check_close(self, what: str, one: Sequence[float], other: Sequence[float]) -> None:
        """Raise BrokenPromiseError if numbers in two lists differ by more than ``tolerance``.

        ``what`` says what the numbers are, and begins the error's message.
        """
        worst = max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)
        _demand(worst <= self.tolerance, f"{what} differ by {worst:.2g} nats, more than {self.tolerance:g}")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenPromiseError(otherwise)


Check = Callable[[BaseReader, Trial], None]
CHECKS: list[Check] = []


def _check(check: Check) -> Check:
    CHECKS.append(check)
    return check


@_check
def every_prompt_is_answered(reader: BaseReader, trial: Trial) -> None:
    """Each prompt gets the requested number of samples; an empty list of prompts gives an empty list."""
    for sampling in (trial.greedy, trial.sampled(3)):
        counts = [len(row) for row in reader.generate(trial.prompts, sampling)]
        _demand(
            counts == [sampling.n] * len(trial.prompts),
            f"expected {sampling.n} samples for each prompt, got {counts}",
        )
    _demand(reader.generate([], trial.greedy) == [], "an empty list of prompts got answers")


@_check
def text_is_stripped(reader: BaseReader, trial: Trial) -> None:
    """Answers have no white space around them."""
    for answer in _some_of_each(reader, trial):
        _demand(answer.text == answer.text.strip(), f"there is white space around {answer.text!r}")


@_check
def traces_are_there_as_claimed(reader: BaseReader, trial: Trial) -> None:
    """Answers have log-probabilities, and energies (log-sum-exp of logits), exactly as the reader claims."""
    claimed = reader.capabilities
    for answer in _some_of_each(reader, trial):
        if not claimed.logprobs:
            _demand(answer.trace is None, "the reader claims no log-probabilities, but returns some")
            continue
        trace = _trace(answer)
        _demand(bool(len(trace)) or not answer.text, f"the trace of {answer.text!r} is empty")
        counted = answer.completion_tokens
        _demand(
            counted == len(trace), f"completion_tokens is {counted}, but the trace has {len(trace)} tokens"
        )
        for value in trace.logprobs:
            _demand(
                math.isfinite(value) and value <= 0, f"expected a log-probability of 0 or less, got {value!r}"
            )
        given = trace.logsumexp is not None
        _demand(
            given == claimed.energy,
            f"the reader claims energy={claimed.energy}, but the trace has {'' if given else 'no '}energies",
        )


@_check
def entropies_are_possible(reader: BaseReader, trial: Trial) -> None:
    """Entropies are intervals between 0 and the log of the vocabulary's size; exact ones have width zero."""
    kind = reader.capabilities.entropy
    if not reader.capabilities.logprobs:
        raise NotApplicableError("the reader has no log-probabilities")
    most = math.log(trial.vocabulary_size) + trial.tolerance if trial.vocabulary_size else math.inf
    for answer in _some_of_each(reader, trial):
        entropy = _trace(answer).entropy
        _demand(
            (entropy is None) == (kind is None),
            f"the reader claims entropy={kind!r}, the trace has {entropy}",
        )
        if entropy is None:
            continue
        _demand(
            entropy.exact == (kind == "exact"),
            f"the reader claims entropy={kind!r}, but the trace has exact={entropy.exact}",
        )
        for low, high in zip(entropy.lower, entropy.upper, strict=True):
            _demand(
                -1e-9 <= low <= high <= most, f"expected an entropy between 0 and {most}, got [{low}, {high}]"
            )
            _demand(
                low == high or not entropy.exact, f"an exact entropy must be one number, got [{low}, {high}]"
            )


@_check
def optional_log_probabilities_come_where_there_are_any(reader: BaseReader, trial: Trial) -> None:
    """With ``trace="optional"``, no error is raised, and a reader with log-probabilities returns them."""
    for [answer] in reader.generate(trial.prompts, replace(trial.greedy, trace="optional")):
        traced = answer.trace is not None
        _demand(
            traced == reader.capabilities.logprobs,
            f"the reader claims logprobs={reader.capabilities.logprobs}, but with trace='optional' "
            f"the answer has {'' if traced else 'no '}log-probabilities",
        )


@_check
def max_tokens_is_kept(reader: BaseReader, trial: Trial) -> None:
    """A lower ``max_tokens`` cuts the same answer short; the answer's finish is then ``"length"``."""
    short = replace(trial.greedy, max_tokens=trial.n_tokens)
    whole = trial.answers(reader)
    for cut, answer in zip(reader.generate(trial.prompts, short), whole, strict=True):
        if answer.completion_tokens:
            length = cut[0].completion_tokens
            _demand(length <= trial.n_tokens, f"got {length} tokens, the limit is {trial.n_tokens}")
        if answer.trace is not None and len(answer.trace) > trial.n_tokens:
            _demand(
                cut[0].finish == "length", f"expected finish 'length' for a cut answer, got {cut[0].finish!r}"
            )
            start = answer.trace.tokens[: trial.n_tokens]
            tokens = _trace(cut[0]).tokens
            _demand(tokens == start, f"the cut answer has the tokens {tokens}, expected {start}")


@_check
def stop_texts_end_an_answer(reader: BaseReader, trial: Trial) -> None:
    """An answer ends before a stop text, and is otherwise unchanged."""
    for prompt, answer in zip(trial.prompts, trial.answers(reader), strict=True):
        middle = answer.text[len(answer.text) // 2 :].strip()
        # The stop text is ASCII, because a text that ends inside a character would never match.
        stop = next((word for word in middle.split() if word.isascii()), "")
        if not stop:
            continue
        before = answer.text.split(stop, 1)[0].strip()
        stopped = reader.generate([prompt], replace(trial.greedy, stop=(stop,)))[0][0]
        _demand(stopped.text == before, f"stopped at {stop!r}, got {stopped.text!r}, expected {before!r}")
        finish = "stop" if before else "empty"
        _demand(
            stopped.finish == finish,
            f"stopped at {stop!r}: expected finish {finish!r}, got {stopped.finish!r}",
        )
        return
    raise NotApplicableError(
        "no greedy answer has an ASCII word in its second half to use as a stop text; pass other prompts"
    )


@_check
def answers_repeat(reader: BaseReader, trial: Trial) -> None:
    """A repeated request has the same answers at temperature 0, and for seeded readers also at 1."""
    for sampling in trial.repeatable:
        first, again = (reader.generate(trial.prompts, sampling) for _ in range(2))
        for one, other in zip(_flat(first), _flat(again), strict=True):
            trial.same(f"requested twice at temperature {sampling.temperature:g}", one, other)


@_check
def alone_or_in_a_batch_is_the_same(reader: BaseReader, trial: Trial) -> None:
    """A prompt's answers do not depend on other prompts in the same call, or on their order."""
    for sampling in trial.repeatable:
        together = reader.generate(trial.prompts, sampling)
        backwards = reader.generate(trial.prompts[::-1], sampling)[::-1]
        alone = [reader.generate([prompt], sampling)[0] for prompt in trial.prompts]
        for rows in zip(together, backwards, alone, strict=True):
            for one, other, single in zip(*rows, strict=True):
                trial.same("in another order", one, other)
                trial.same("alone", one, single)


@_check
def a_text_is_one_user_turn(reader: BaseReader, trial: Trial) -> None:
    """A string as a prompt gets the same answer as a conversation of one user turn with this string."""
    prompts = [as_messages(prompt) for prompt in trial.prompts]
    for row, answer in zip(reader.generate(prompts, trial.greedy), trial.answers(reader), strict=True):
        trial.same("as a conversation", row[0], answer)


@_check
def begin_shows_the_first_tokens(reader: BaseReader, trial: Trial) -> None:
    """A begun answer holds its first n tokens, with their log-probabilities."""
    with _begun(reader, trial) as begun:
        _demand(
            len(begun) == len(trial.prompts), f"{len(trial.prompts)} prompts got {len(begun)} begun answers"
        )
        for item, whole in zip(begun, trial.answers(reader), strict=True):
            ended = item.partial.finish
            _demand((ended == "partial") != item.done, f"done is {item.done}, but the finish is {ended!r}")
            if item.done:
                trial.same("begun and done", item.partial, whole)
            elif whole.trace is not None:
                head = _trace(item.partial)
                _demand(
                    len(head) == trial.n_tokens, f"got {len(head)} begun tokens, expected {trial.n_tokens}"
                )
                start = whole.trace.tokens[: len(head)]
                _demand(start == head.tokens, f"got the begun tokens {head.tokens}, expected {start}")
                trial.check_close(
                    "begun tokens: log-probabilities", head.logprobs, whole.trace.logprobs[: len(head)]
                )


@_check
def begin_and_rest_is_generate(reader: BaseReader, trial: Trial) -> None:
    """A begun answer, once complete, is the answer of ``generate``.

    If an answer has fewer tokens than ``n_tokens``, ``begin`` returns the whole answer.
    """
    for n_tokens in (trial.n_tokens, trial.max_tokens + 1):
        begun = reader.begin(trial.prompts, n_tokens, trial.greedy)
        together = BegunGeneration.rest_of(begun)
        alone = [item.rest() for item in reader.begin(trial.prompts, n_tokens, trial.greedy)]
        for item, one, single, other in zip(begun, together, alone, trial.answers(reader), strict=True):
            trial.same("begun and completed", one, other)
            trial.same("begun and completed alone", single, other)
            if n_tokens > trial.max_tokens:
                _demand(
                    item.partial.text == other.text,
                    f"got the begun text {item.partial.text!r}, expected {other.text!r}",
                )


@_check
def close_frees(reader: BaseReader, trial: Trial) -> None:
    """A begun answer can be closed repeatedly, also after its end; the reader can still answer then."""
    begun = reader.begin(trial.prompts, 1, trial.greedy)
    begun[0].close()
    BegunGeneration.rest_of(begun[1:])
    for item in [*begun, *begun]:
        item.close()
    every_prompt_is_answered(reader, trial)


@_check
def streams_join_to_the_text(reader: BaseReader, trial: Trial) -> None:
    """The pieces of a stream join to the answer, and the last piece holds the generation.

    There are several pieces if the reader claims that it can stream.
    """
    for prompt, answer in zip(trial.prompts, trial.answers(reader), strict=True):
        chunks = list(reader.stream(prompt, trial.greedy))
        _check_chunks(trial, chunks, answer)
        if reader.capabilities.stream and len(answer.text.split()) > 1:
            pieces = [chunk.text for chunk in chunks if chunk.text]
            _demand(len(pieces) > 1, f"expected several pieces, but {answer.text!r} came in one piece")


@_check
def what_was_begun_streams_from_its_start(reader: BaseReader, trial: Trial) -> None:
    """``chunks`` yields the whole answer, including the first tokens that ``begin`` returned."""
    with _begun(reader, trial) as begun:
        for item, answer in zip(begun, trial.answers(reader), strict=True):
            _check_chunks(trial, list(item.chunks()), answer)


@_check
def streams_can_be_abandoned(reader: BaseReader, trial: Trial) -> None:
    """A stream that is closed early leaves the reader usable."""
    chunks = reader.stream(trial.prompts[0], trial.greedy)
    next(chunks)
    close_iterator(chunks)
    every_prompt_is_answered(reader, trial)


@_check
def logprobs_are_those_of_temperature_one(reader: BaseReader, trial: Trial) -> None:
    """Tokens have the same log-probabilities at any temperature if the tokens before them are equal."""
    if not reader.capabilities.logprobs:
        raise NotApplicableError("the reader has no log-probabilities")
    hot = SamplingParams(n=4, temperature=1.7, max_tokens=trial.max_tokens, seed=1)
    for row, answer in zip(reader.generate(trial.prompts, hot), trial.answers(reader), strict=True):
        cold = _trace(answer)
        # Answers after thoughts are not compared, because they depend on the thoughts, too.
        for sampled in (_trace(one) for one in row if not one.thinking_tokens + answer.thinking_tokens):
            pairs = enumerate(zip(sampled.tokens, cold.tokens, strict=False))
            shared = next((at for at, (one, other) in pairs if one != other), min(len(sampled), len(cold)))
            trial.check_close(
                "at temperature 1.7: log-probabilities", sampled.logprobs[:shared], cold.logprobs[:shared]
            )


@_check
def async_twins_do_the_same(reader: BaseReader, trial: Trial) -> None:
    """Every method returns the same result as its async variant."""
    prompt = trial.prompts[0]

    async def call_twins() -> tuple[list[list[Generation]], list[list[Chunk]]]:
        generated = [row[0] for row in await reader.agenerate(trial.prompts, trial.greedy)]
        begun = await reader.abegin([*trial.prompts, prompt], trial.n_tokens, trial.greedy)
        streams: list[Any] = [reader.astream(prompt, trial.greedy), begun[-1].achunks()]
        try:
            answers = [generated, [await item.arest() for item in begun[:-1]]]
            return answers, [[chunk async for chunk in stream] for stream in streams]
        finally:
            for item in begun:
                await item.aclose()

    expected = trial.answers(reader)
    # The call runs in a new thread, because an event loop may be running in this thread.
    answers, streamed = start_in_thread(lambda: asyncio.run(call_twins())).result()
    for row in answers:
        for one, other in zip(row, expected, strict=True):
            trial.same("async", one, other)
    for chunks in streamed:
        _check_chunks(trial, chunks, expected[0])


@contextmanager
def _begun(reader: BaseReader, trial: Trial) -> Iterator[list[BegunGeneration]]:
    begun = reader.begin(trial.prompts, trial.n_tokens, trial.greedy)
    try:
        yield begun
    finally:
        for item in begun:
            item.close()


def _some_of_each(reader: BaseReader, trial: Trial) -> list[Generation]:
    return trial.answers(reader) + _flat(reader.generate(trial.prompts, trial.sampled(2)))


def _flat(rows: Iterable[Iterable[Generation]]) -> list[Generation]:
    return [answer for row in rows for answer in row]


def _trace(answer: Generation) -> TokenTrace:
    if answer.trace is None:
        raise BrokenPromiseError(
            f"the reader claims log-probabilities, but the answer {answer.text!r} has none"
        )
    return answer.trace


def _check_chunks(trial: Trial, chunks: list[Chunk], answer: Generation) -> None:
    _demand(
        bool(chunks) and chunks[-1].generation is not None,
        "the last piece of a stream must hold the generation",
    )
    early = [chunk for chunk in chunks[:-1] if chunk.generation is not None]
    _demand(not early, "only the last piece of a stream may hold the generation, but an earlier piece does")
    joined = "".join(chunk.text for chunk in chunks)
    _demand(joined == answer.text, f"expected pieces that join to {answer.text!r}, got {joined!r}")
    if chunks[-1].generation is not None:
        trial.same("streamed", chunks[-1].generation, answer)


class Outcome(NamedTuple):
    """The result of one check; ``detail`` is the failure, or the reason why the check does not apply."""

    check: str
    status: Literal["passed", "failed", "skipped"]
    detail: str = ""


def _outcome(check: Check, reader: BaseReader, trial: Trial) -> Outcome:
    name = check.__name__.replace("_", " ")
    try:
        check(reader, trial)
    except NotApplicableError as reason:
        return Outcome(name, "skipped", str(reason))
    except SureragError as error:
        return Outcome(name, "failed", str(error))
    except Exception as error:
        return Outcome(name, "failed", f"{type(error).__name__}: {error}")
    return Outcome(name, "passed")


@dataclass(frozen=True)
class ConformanceReport:
    """A reader's name, and the outcome of each check; prints as text."""

    reader: str
    outcomes: tuple[Outcome, ...]

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The checks that failed."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "failed")

    @property
    def passed(self) -> bool:
        """Whether every check passed or was skipped."""
        return not self.failures

    def __str__(self) -> str:
        counts = Counter(outcome.status for outcome in self.outcomes)
        ended = ", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "skipped"))
        lines = [f"  {o.status:<8}{o.check}{': ' if o.detail else ''}{o.detail}" for o in self.outcomes]
        return "\n".join([f"{self.reader}: {ended}", *lines])


def check_reader(reader: object, trial: Trial | None = None, **settings: Any) -> ConformanceReport:
    """Run every check on a reader.

    Args:
        reader: Anything with the methods of :class:`surerag.readers.Reader`. The same prompt must get
            the same answer at temperature 0.
        trial: The questions for the reader, and how exactly its answers must agree; None for the defaults.
        **settings: Fields of :class:`Trial` that replace the fields of ``trial``.

    Example:
        >>> from surerag.readers.fake import FakeReader
        >>> check_reader(FakeReader(lambda prompt: f"It is {prompt.split()[-1]}")).passed
        True
    """
    trial, whole = replace(trial or Trial(), **settings), as_reader(reader)
    return ConformanceReport(whole.name, tuple(_outcome(check, whole, trial) for check in CHECKS))
