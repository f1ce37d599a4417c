"""The checks, one promise each; :mod:`surerag.readers.conformance` says how to run them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any

from surerag.errors import CapabilityError
from surerag.messages import Chunk, Generation, PartialGeneration, SamplingParams, TokenTrace, as_messages
from surerag.readers.conformance.trial import (
    BrokenPromiseError,
    NotApplicableError,
    Trial,
    applies,
    demand,
    in_new_loop,
)
from surerag.readers.protocol import BaseReader, close_iterator

Check = Callable[[BaseReader, Trial], None]


def capabilities_fit_together(reader: BaseReader, trial: Trial) -> None:
    """Entropies and energies need log-probabilities, and the model has a name."""
    claimed = reader.capabilities
    demand(bool(reader.name), "the reader has no name")
    demand(claimed.logprobs or claimed.entropy is None, "it claims entropies without log-probabilities")
    demand(claimed.logprobs or not claimed.energy, "it claims energies without log-probabilities")
    demand(claimed.entropy in ("exact", "bounded", None), f"its entropy is {claimed.entropy!r}")


def every_prompt_is_answered(reader: BaseReader, trial: Trial) -> None:
    """There is one list for each prompt, and nothing for no prompts."""
    answers = reader.generate(trial.prompts, trial.greedy)
    counts = [len(row) for row in answers]
    demand(counts == [1] * len(trial.prompts), f"{len(trial.prompts)} prompts got {counts} answers")
    demand(reader.generate([], trial.greedy) == [], "no prompts got answers")


def n_samples_are_n(reader: BaseReader, trial: Trial) -> None:
    """Every prompt gets exactly as many samples as asked for."""
    counts = [len(row) for row in reader.generate(trial.prompts, trial.sampled(3))]
    demand(counts == [3] * len(trial.prompts), f"asked for 3 samples each, got {counts}")


def text_is_stripped(reader: BaseReader, trial: Trial) -> None:
    """Answers have no white space around them."""
    for answer in _some_of_each(reader, trial):
        demand(answer.text == answer.text.strip(), f"there is white space around {answer.text!r}")


def traces_are_there_as_claimed(reader: BaseReader, trial: Trial) -> None:
    """Every generation has a trace of all its tokens; or none has one, and none is claimed."""
    for answer in _some_of_each(reader, trial):
        if not reader.capabilities.logprobs:
            demand(answer.trace is None, "it claims no log-probabilities and returns some")
            continue
        trace = _trace(answer)
        demand(bool(len(trace)) or not answer.text, f"the trace of {answer.text!r} is empty")
        demand(
            answer.completion_tokens == len(trace),
            f"{answer.completion_tokens} tokens are counted and {len(trace)} are in the trace",
        )


def logprobs_are_natural_logs(reader: BaseReader, trial: Trial) -> None:
    """Log-probabilities are finite and not above zero."""
    applies(reader.capabilities.logprobs, "it has no log-probabilities")
    for answer in _some_of_each(reader, trial):
        for value in _trace(answer).logprobs:
            demand(math.isfinite(value) and value <= 0, f"a log-probability is {value!r}")


def entropies_are_possible(reader: BaseReader, trial: Trial) -> None:
    """Entropies lie between 0 and log V, as an interval that is a point where they are exact."""
    kind = reader.capabilities.entropy
    applies(reader.capabilities.logprobs, "it has no log-probabilities")
    most = math.log(trial.vocabulary_size) + trial.tolerance if trial.vocabulary_size else math.inf
    for answer in _some_of_each(reader, trial):
        entropy = _trace(answer).entropy
        demand(
            (entropy is not None) == (kind is not None), f"it claims {kind} entropies, and found: {entropy}"
        )
        if entropy is None:
            continue
        demand(
            entropy.exact == (kind == "exact"), f"it claims {kind} entropies, and the trace says otherwise"
        )
        for low, high in zip(entropy.lower, entropy.upper, strict=True):
            demand(-1e-9 <= low <= high <= most, f"an entropy lies in [{low}, {high}], the most is {most}")
            demand(low == high or not entropy.exact, f"an exact entropy is an interval [{low}, {high}]")


def energies_are_there_as_claimed(reader: BaseReader, trial: Trial) -> None:
    """Traces carry log-sum-exp of the logits exactly if that is claimed."""
    applies(reader.capabilities.logprobs, "it has no log-probabilities")
    for answer in _some_of_each(reader, trial):
        has = _trace(answer).logsumexp is not None
        demand(has == reader.capabilities.energy, "energies are not there as claimed")


def max_tokens_is_kept(reader: BaseReader, trial: Trial) -> None:
    """A shorter limit gives the same tokens, fewer of them, and says that it cut."""
    short = replace(trial.greedy, max_tokens=trial.n_tokens)
    whole = trial.answers(reader)
    for cut, answer in zip(reader.generate(trial.prompts, short), whole, strict=True):
        if answer.completion_tokens:
            demand(
                cut[0].completion_tokens <= trial.n_tokens,
                f"asked for {trial.n_tokens} tokens at most, got {cut[0].completion_tokens}",
            )
        if answer.trace is not None and len(answer.trace) > trial.n_tokens:
            demand(cut[0].finish == "length", f"a cut answer ended by {cut[0].finish!r}")
            start = answer.trace.tokens[: trial.n_tokens]
            demand(_trace(cut[0]).tokens == start, f"cut, it said {_trace(cut[0]).tokens} and not {start}")


def stop_texts_end_an_answer(reader: BaseReader, trial: Trial) -> None:
    """An answer ends before a stop text, and is otherwise the same."""
    for prompt, answer in zip(trial.prompts, trial.answers(reader), strict=True):
        middle = answer.text[len(answer.text) // 2 :].strip()
        # A stop text with an end of its own: part of a character cannot stop anything.
        stop = next((word for word in middle.split() if word.isascii()), "")
        if not stop:
            continue
        before = answer.text.split(stop, 1)[0].strip()
        stopped = reader.generate([prompt], replace(trial.greedy, stop=(stop,)))[0][0]
        demand(stopped.text == before, f"stopped at {stop!r}, it said {stopped.text!r} and not {before!r}")
        demand(stopped.finish == "stop", f"stopped at {stop!r}, it ended by {stopped.finish!r}")
        return
    raise NotApplicableError("no greedy answer has a word to stop at")


def greedy_answers_repeat(reader: BaseReader, trial: Trial) -> None:
    """At temperature 0 the same request gives the same answer."""
    for one, other in zip(trial.answers(reader), trial.answers(reader), strict=True):
        trial.same("asked twice", one, other)


def seeds_repeat(reader: BaseReader, trial: Trial) -> None:
    """The same seed gives the same samples."""
    applies(trial.seeded, "it does not promise that seeds repeat")
    first, again = (reader.generate(trial.prompts, trial.sampled(3)) for _ in range(2))
    for one, other in zip(_flat(first), _flat(again), strict=True):
        trial.same("with one seed", one, other)


def alone_or_in_a_batch_is_the_same(reader: BaseReader, trial: Trial) -> None:
    """A prompt's answers do not depend on what else is asked with it, or in what order."""
    settings = [trial.greedy, *([trial.sampled(2)] if trial.seeded else [])]
    for sampling in settings:
        together = reader.generate(trial.prompts, sampling)
        backwards = reader.generate(trial.prompts[::-1], sampling)[::-1]
        alone = [reader.generate([prompt], sampling)[0] for prompt in trial.prompts]
        for rows in zip(together, backwards, alone, strict=True):
            for one, other, single in zip(*rows, strict=True):
                trial.same("in another order", one, other)
                trial.same("alone", one, single)


def a_text_is_one_user_turn(reader: BaseReader, trial: Trial) -> None:
    """A prompt that is a string equals a conversation of one user turn."""
    prompts = [as_messages(prompt) for prompt in trial.prompts]
    for row, answer in zip(reader.generate(prompts, trial.greedy), trial.answers(reader), strict=True):
        trial.same("as a conversation", row[0], answer)


def odd_text_is_only_text(reader: BaseReader, trial: Trial) -> None:
    """Braces, markup, other scripts and line breaks in a prompt are read, not obeyed."""
    odd = ["{question} {0} %s \\n", "<|im_end|></s> [INST]", "¿Dónde? 河はどこ 🌊", "a\n\n\tb\r\n"]
    demand(len(reader.generate(odd, trial.greedy)) == len(odd), "odd prompts were not all answered")


def begin_shows_the_first_tokens(reader: BaseReader, trial: Trial) -> None:
    """What is begun shows the first n tokens of the answer, with their log-probabilities."""
    with _begun(reader, trial) as begun:
        demand(
            len(begun) == len(trial.prompts), f"{len(trial.prompts)} prompts were begun {len(begun)} times"
        )
        for item, whole in zip(begun, trial.answers(reader), strict=True):
            demand(
                (item.partial.finish == "partial") != item.done,
                f"it is done: {item.done}, and ended by {item.partial.finish!r}",
            )
            if item.done:
                trial.same("begun and done", item.partial, whole)
            elif whole.trace is not None:
                shown = _trace(item.partial)
                demand(len(shown) == trial.n_tokens, f"{len(shown)} tokens are shown, not {trial.n_tokens}")
                demand(
                    whole.trace.tokens[: len(shown)] == shown.tokens, "other tokens are shown than are said"
                )
                trial.close("begun: log-probabilities", shown.logprobs, whole.trace.logprobs[: len(shown)])


def begin_and_finish_is_generate(reader: BaseReader, trial: Trial) -> None:
    """To begin and finish gives what generating gives, in order."""
    finished = reader.finish(reader.begin(trial.prompts, trial.n_tokens, trial.greedy))
    for one, other in zip(finished, trial.answers(reader), strict=True):
        trial.same("begun and finished", one, other)


def begin_past_the_end_is_the_whole(reader: BaseReader, trial: Trial) -> None:
    """To begin more tokens than there are shows the whole answer, which can be finished."""
    begun = reader.begin(trial.prompts, trial.max_tokens + 1, trial.greedy)
    for item, one, other in zip(begun, reader.finish(begun), trial.answers(reader), strict=True):
        trial.same("begun to its end", one, other)
        demand(item.partial.text == other.text, f"it shows {item.partial.text!r} of {other.text!r}")


def cancel_frees(reader: BaseReader, trial: Trial) -> None:
    """What was begun can be cancelled, again and again, also after it was finished."""
    begun = reader.begin(trial.prompts, 1, trial.greedy)
    reader.cancel(begun[:1])
    reader.finish(begun[1:])
    reader.cancel(begun)
    reader.cancel(begun)
    reader.cancel([])
    every_prompt_is_answered(reader, trial)


def streams_join_to_the_text(reader: BaseReader, trial: Trial) -> None:
    """Pieces join to the answer, and the last one carries the generation."""
    for prompt, answer in zip(trial.prompts, trial.answers(reader), strict=True):
        _check_chunks(trial, list(reader.stream(prompt, trial.greedy)), answer)


def streams_come_in_pieces_as_claimed(reader: BaseReader, trial: Trial) -> None:
    """An answer of several words comes in more than one piece, if streaming is claimed."""
    applies(reader.capabilities.stream, "it does not claim to stream")
    for prompt, answer in zip(trial.prompts, trial.answers(reader), strict=True):
        if len(answer.text.split()) > 1:
            pieces = [chunk.text for chunk in reader.stream(prompt, trial.greedy) if chunk.text]
            demand(len(pieces) > 1, f"{answer.text!r} came in one piece")
            return
    raise NotApplicableError("no greedy answer has two words")


def what_was_begun_streams_from_its_start(reader: BaseReader, trial: Trial) -> None:
    """To finish as a stream shows the held-back tokens, too."""
    with _begun(reader, trial) as begun:
        for item, answer in zip(begun, trial.answers(reader), strict=True):
            _check_chunks(trial, list(reader.finish_stream(item)), answer)


def streams_can_be_abandoned(reader: BaseReader, trial: Trial) -> None:
    """A stream that is closed early leaves the reader usable."""
    chunks = reader.stream(trial.prompts[0], trial.greedy)
    next(chunks)
    close_iterator(chunks)
    every_prompt_is_answered(reader, trial)


def scores_are_the_models(reader: BaseReader, trial: Trial) -> None:
    """Reading its own greedy answer, the model thinks of each token what it thought when it wrote it."""
    _demand_scores(reader, trial, trial.greedy)


def logprobs_are_those_of_temperature_one(reader: BaseReader, trial: Trial) -> None:
    """At another temperature, log-probabilities are still the model's own, of the sampled token."""
    hot = SamplingParams(n=4, temperature=1.7, max_tokens=trial.n_tokens + 1, seed=1)
    _demand_scores(reader, trial, hot)


def scoring_is_refused_unless_claimed(reader: BaseReader, trial: Trial) -> None:
    """A reader that does not claim to score raises CapabilityError."""
    applies(not reader.capabilities.score, "it claims to score")
    try:
        reader.score(trial.prompts[:1], ["text"])
    except CapabilityError:
        return
    raise BrokenPromiseError("it scores without claiming to")


def async_twins_do_the_same(reader: BaseReader, trial: Trial) -> None:
    """Every verb gives the same over its async twin."""

    async def ask() -> list[list[Generation]]:
        generated = [row[0] for row in await reader.agenerate(trial.prompts, trial.greedy)]
        begun = await reader.abegin(trial.prompts, trial.n_tokens, trial.greedy)
        try:
            finished = await reader.afinish(begun)
        finally:
            await reader.acancel(begun)
        return [generated, finished]

    for answers in in_new_loop(reader, ask):
        for one, other in zip(answers, trial.answers(reader), strict=True):
            trial.same("async", one, other)


def async_streams_do_the_same(reader: BaseReader, trial: Trial) -> None:
    """Streams give the same over their async twins."""
    prompt = trial.prompts[0]

    async def ask() -> list[list[Chunk]]:
        streams: list[Any] = [reader.astream(prompt, trial.greedy)]
        begun = await reader.abegin([prompt], trial.n_tokens, trial.greedy)
        streams.append(reader.afinish_stream(begun[0]))
        found = []
        try:
            for stream in streams:
                async with aclosing(stream):
                    found.append([chunk async for chunk in stream])
        finally:
            await reader.acancel(begun)
        return found

    for chunks in in_new_loop(reader, ask):
        _check_chunks(trial, chunks, trial.answers(reader)[0])


def async_scores_do_the_same(reader: BaseReader, trial: Trial) -> None:
    """Scores are the same over their async twin."""
    applies(reader.capabilities.score, "it does not claim to score")
    texts = ["The river."] * len(trial.prompts)
    scored = in_new_loop(reader, lambda: reader.ascore(trial.prompts, texts))
    for one, other in zip(scored, reader.score(trial.prompts, texts), strict=True):
        trial.same_trace("scored async", one, other)


CHECKS: tuple[Check, ...] = (
    capabilities_fit_together,
    every_prompt_is_answered,
    n_samples_are_n,
    text_is_stripped,
    traces_are_there_as_claimed,
    logprobs_are_natural_logs,
    entropies_are_possible,
    energies_are_there_as_claimed,
    max_tokens_is_kept,
    stop_texts_end_an_answer,
    greedy_answers_repeat,
    seeds_repeat,
    alone_or_in_a_batch_is_the_same,
    a_text_is_one_user_turn,
    odd_text_is_only_text,
    begin_shows_the_first_tokens,
    begin_and_finish_is_generate,
    begin_past_the_end_is_the_whole,
    cancel_frees,
    streams_join_to_the_text,
    streams_come_in_pieces_as_claimed,
    what_was_begun_streams_from_its_start,
    streams_can_be_abandoned,
    scores_are_the_models,
    logprobs_are_those_of_temperature_one,
    scoring_is_refused_unless_claimed,
    async_twins_do_the_same,
    async_streams_do_the_same,
    async_scores_do_the_same,
)


@contextmanager
def _begun(reader: BaseReader, trial: Trial) -> Iterator[list[PartialGeneration]]:
    """Begin every prompt; whatever a check finds, nothing stays open behind it."""
    begun = reader.begin(trial.prompts, trial.n_tokens, trial.greedy)
    try:
        yield begun
    finally:
        reader.cancel(begun)


def _some_of_each(reader: BaseReader, trial: Trial) -> list[Generation]:
    return trial.answers(reader) + _flat(reader.generate(trial.prompts, trial.sampled(2)))


def _flat(rows: Iterable[Iterable[Generation]]) -> list[Generation]:
    return [answer for row in rows for answer in row]


def _trace(answer: Generation) -> TokenTrace:
    if answer.trace is None:
        raise BrokenPromiseError(f"it claims log-probabilities, and {answer.text!r} has no trace")
    return answer.trace


def _check_chunks(trial: Trial, chunks: list[Chunk], answer: Generation) -> None:
    demand(bool(chunks) and chunks[-1].generation is not None, "the last piece carries no generation")
    early = [chunk for chunk in chunks[:-1] if chunk.generation is not None]
    demand(not early, "a piece that is not the last carries a generation")
    joined = "".join(chunk.text for chunk in chunks)
    demand(joined == answer.text, f"pieces join to {joined!r} and not to {answer.text!r}")
    if chunks[-1].generation is not None:
        trial.same("streamed", chunks[-1].generation, answer)


def _demand_scores(reader: BaseReader, trial: Trial, sampling: SamplingParams) -> None:
    """Compare traces of what was said with traces of reading it again, wherever tokens agree.

    An answer after thoughts is left out: it is read as one that nothing was thought before.
    """
    applies(reader.capabilities.score, "it does not claim to score")
    applies(reader.capabilities.logprobs, "it has no log-probabilities")
    compared = 0
    for prompt, row in zip(trial.prompts, reader.generate(trial.prompts, sampling), strict=True):
        for said in (_trace(answer) for answer in row if not answer.thinking_tokens):
            if not len(said):
                continue
            (read,) = reader.score([prompt], ["".join(said.tokens)])
            if read.tokens == said.tokens:
                trial.close("reading what it said: log-probabilities", read.logprobs, said.logprobs)
                compared += 1
    applies(compared > 0, "read again, its answers split into other tokens, or follow thoughts")
