"""Scripts: replies, their words, and how limits cut them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from surerag.errors import ConfigurationError
from surerag.messages import EntropyTrace, Generation, Prompt, SamplingParams, TokenTrace, as_messages
from surerag.readers.pieces import cut_at_stop

Answer = str | Generation | BaseException | type[BaseException]
Reply = Answer | Callable[[str], Answer]
"""What a script may hold: a text, a generation, an error to raise, or a function of the prompt's text."""


def reply(
    text: str,
    *,
    entropy: float | Sequence[float] | EntropyTrace | None = 0.1,
    logprobs: float | Sequence[float] | None = -0.1,
) -> Generation:
    """Write one generation by hand; a token is a word with the white space before it.

    Args:
        text: The answer.
        entropy: Nats, one value for every token or one for all; an :class:`EntropyTrace` for intervals;
            None for no entropies.
        logprobs: Natural logs, likewise; None for no trace at all.

    Returns:
        The generation, as a reader would give it.

    Raises:
        ConfigurationError: If there are neither one value nor as many values as tokens.

    Example:
        >>> reply("In Velm.", entropy=[0.2, 2.1]).trace.entropy.lower
        (0.2, 2.1)
    """
    tokens = words(text)
    trace = None
    if logprobs is not None:
        given = _column("logprobs", logprobs, tokens)
        if entropy is None or isinstance(entropy, EntropyTrace):
            trace = TokenTrace(tokens, given, entropy)
        else:
            values = _column("entropy", entropy, tokens)
            trace = TokenTrace(tokens, given, EntropyTrace(values, values, exact=True))
    return Generation(text.strip(), trace=trace, completion_tokens=len(tokens))


def prompt_text(prompt: Prompt) -> str:
    """Return what a prompt says, its turns joined by line breaks."""
    return "\n".join(message.content for message in as_messages(prompt))


def words(text: str) -> tuple[str, ...]:
    """Split a text into words, each with the white space before it."""
    return tuple(re.findall(r"\s*\S+", text))


def tokens_of(generation: Generation) -> tuple[str, ...]:
    """Return a generation's tokens; its words, if it has no trace."""
    return generation.trace.tokens if generation.trace is not None else words(generation.text)


def head(generation: Generation, count: int) -> Generation:
    """Return a generation that ends after its first ``count`` tokens."""
    text = "".join(tokens_of(generation)[:count]).strip()
    trace = generation.trace
    if trace is not None:
        entropy = trace.entropy and EntropyTrace(
            trace.entropy.lower[:count], trace.entropy.upper[:count], trace.entropy.exact
        )
        energy = trace.logsumexp and trace.logsumexp[:count]
        trace = TokenTrace(trace.tokens[:count], trace.logprobs[:count], entropy, energy)
    return replace(generation, text=text, trace=trace, completion_tokens=count)


def limited(generation: Generation, sampling: SamplingParams) -> Generation:
    """Apply stop texts and the limit on tokens, as a model server would."""
    tokens = tokens_of(generation)
    text = ""
    for count, token in enumerate(tokens[: sampling.max_tokens], start=1):
        text += token
        before = cut_at_stop(text, sampling.stop)
        if before is not None:
            return replace(head(generation, count), text=before.strip(), finish="stop")
    if len(tokens) > sampling.max_tokens:
        return replace(head(generation, sampling.max_tokens), finish="length")
    return replace(generation, completion_tokens=len(tokens))


def _column(name: str, values: float | Sequence[float], tokens: tuple[str, ...]) -> tuple[float, ...]:
    if isinstance(values, int | float):
        return (float(values),) * len(tokens)
    if len(values) != len(tokens):
        raise ConfigurationError(
            f"{name} has {len(values)} values for {len(tokens)} tokens {list(tokens)}",
            hint="give one value for each word, or a single number for all",
        )
    return tuple(float(value) for value in values)
