"""Check the log-probabilities of an answer's tokens in servers' formats, and make a ``TokenTrace``; no I/O.

A missing or impossible log-probability is an error; it is never replaced by a guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

from surerag.errors import LogprobsError, kind_of
from surerag.measures import Interval, entropy_bounds
from surerag.messages import ROUNDED_UP, EntropyTrace, TokenTrace
from surerag.readers.pieces import CLOSING_MARKS

ANY_VOCABULARY = 300_000
"""Assumed size of an unknown vocabulary: larger than any in use, so no entropy interval is too narrow."""

NO_LOGPROBS_HINT = (
    "`surerag doctor` (in Python: reader.probe()) tests what the server and model return; a thinking model "
    'may return log-probabilities with thinking=False. gate="abstention" (L-RAG) and '
    'metric="semantic_entropy" (DynQR) need only the answers\' texts'
)

_LAST_MARK = re.compile("|".join(map(re.escape, CLOSING_MARKS)).encode())
_ESCAPED = re.compile(r"(?:bytes:)?((?:\\x[0-9a-fA-F]{2})+)")
_UNKNOWN = "\ufffd"
_UNKNOWN_BYTES = _UNKNOWN.encode()
_SPACE = b" \t\n\r\x0b\x0c"


def entries_of(logprobs: object) -> list[Mapping[str, Any]]:
    """Return log-probabilities as a list of entries, one for each token, in the format of OpenAI's chat API.

    The input may have the format of the chat API, of the completions API or of Gemini. The list is empty if
    the input contains no log-probabilities. An input in another format raises LogprobsError.
    """
    if isinstance(logprobs, Mapping):
        if "tokens" in logprobs or "token_logprobs" in logprobs:
            return _entries_of_columns(logprobs)
        if "chosen_candidates" in logprobs:
            return _entries_of_gemini(logprobs)
        logprobs = logprobs.get("content")
    if logprobs is None:
        return []
    if not isinstance(logprobs, list | tuple):
        raise _malformed("a list of log-probabilities", logprobs)
    return [entry if type(entry) is dict else _entry(entry, logprobs) for entry in logprobs]


def _entry(entry: object, logprobs: object) -> Mapping[str, Any]:
    """Return the fields of one token's entry, uncopied; ``logprobs`` is the reply's list, for the error."""
    fields = vars(entry) if hasattr(entry, "model_dump") else entry
    if not isinstance(fields, Mapping):
        raise _malformed("a mapping for each token's log-probability", logprobs)
    return fields


def _entries_of_gemini(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    chosen = result.get("chosen_candidates") or []
    tops = result.get("top_candidates") or [{}] * len(chosen)

    def entry(one: Mapping[str, Any]) -> dict[str, Any]:
        return {"token": one.get("token"), "logprob": one.get("log_probability")}

    return [
        {**entry(one), "top_logprobs": [entry(other) for other in (top or {}).get("candidates") or ()]}
        for one, top in zip(chosen, tops, strict=False)
    ]


def _entries_of_columns(columns: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the parallel lists of the completions API as a list of entries of the chat API."""
    tokens, values = columns.get("tokens"), columns.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list) or len(tokens) != len(values):
        raise _malformed("a log-probability (token_logprobs) for each token", values)
    listed = columns.get("top_logprobs") or [None] * len(tokens)
    if not isinstance(listed, list) or len(listed) != len(tokens):
        raise _malformed("a list of likeliest tokens (top_logprobs) for each token", listed)
    return [
        {
            "token": token,
            "logprob": value,
            "top_logprobs": [{"token": name, "logprob": other} for name, other in top.items()]
            if isinstance(top, Mapping)
            else top,
        }
        for token, value, top in zip(tokens, values, listed, strict=True)
    ]


def trace_of_entries(
    entries: Sequence[Mapping[str, Any]], *, top_logprobs: int, vocabulary_size: int = ANY_VOCABULARY
) -> TokenTrace:
    """Return the trace of an answer: the log-probabilities and entropies of its tokens.

    Args:
        entries: One entry for each token of the answer, in the format of OpenAI's chat API.
        top_logprobs: Number of likeliest tokens that were requested for each token; 0 for no entropies.
        vocabulary_size: Number of tokens in the model's vocabulary, or any larger number.

    Returns:
        Natural logarithms of the sampled tokens' probabilities, and entropies as intervals [nats].

    Raises:
        LogprobsError: If a log-probability is missing or invalid.

    Example:
        >>> trace_of_entries([{"token": "Velm", "logprob": -0.1}], top_logprobs=0).logprobs
        (-0.1,)
    """
    tokens = tuple(map(_text, entries))
    values = tuple(_number(token, entry.get("logprob")) for token, entry in zip(tokens, entries, strict=True))
    if not top_logprobs or not tokens:
        return TokenTrace(tokens, values)
    bounds = [
        _bounds(token, value, entry.get("top_logprobs"), top_logprobs, vocabulary_size)
        for token, value, entry in zip(tokens, values, entries, strict=True)
    ]
    lower, upper = zip(*bounds, strict=True)
    return TokenTrace(tokens, values, EntropyTrace(lower, upper, exact=False))


def trace_of_answer(
    entries: Sequence[Mapping[str, Any]],
    answer: str,
    *,
    top_logprobs: int | None = None,
    thought: bool = False,
) -> TokenTrace:
    """Return the trace of an answer from the entries of a reply that surerag did not request itself.

    Args:
        entries: All entries of the reply; some servers also list the tokens of thoughts and stop texts.
        answer: The answer's text, without thoughts.
        top_logprobs: Number of likeliest tokens that were requested for each token; None takes the length of
            the shortest list of likeliest tokens in ``entries``. If an entry has no such list, the trace has
            no entropies.
        thought: Whether the model thought before it answered.

    Raises:
        LogprobsError: If the tokens do not spell the answer, or a log-probability is missing or invalid.

    Example:
        >>> reply = [{"token": token, "logprob": -0.5} for token in ("<think>", "Hm", "</think>", "Velm")]
        >>> trace_of_answer(reply, "Velm", thought=True).tokens
        ('Velm',)
    """
    own, texts = entries, list(map(_text, entries))
    # In nearly all replies the tokens spell only the answer; the search for the answer is much slower.
    if (
        thought
        or not texts
        or not all(texts)
        or texts[-1].isspace()
        or "".join(texts).strip() != answer.strip()
    ):
        inside = answer_tokens(map(token_of, entries), answer, thought=thought)
        own = entries[inside.start : inside.stop]
    fewest = min((len(entry.get("top_logprobs") or ()) for entry in own), default=0)
    return trace_of_entries(own, top_logprobs=(top_logprobs or fewest) if fewest else 0)


def end_logprob(behind: Sequence[Mapping[str, Any]], stop: Sequence[str] = ()) -> float | None:
    r"""Return the log-probability [nats] of the end token of an answer that ended by itself.

    ``behind`` has the entries after the answer's own entries, and ``stop`` the stop texts. If ``behind`` has
    exactly one token, and this token is neither white space nor part of a stop text, the token is the end
    token. Otherwise, return None.

    Example:
        >>> end_logprob([{"token": "<|im_end|>", "logprob": -0.5}], ["\n"])
        -0.5
        >>> end_logprob([{"token": "\n\n", "logprob": -0.5}], ["\n"]), end_logprob([])
        (None, None)
    """
    if len(behind) != 1 or (token := _text(behind[0])).isspace():
        return None
    if token and any(token in text or text in token for text in stop):
        return None
    with suppress(LogprobsError):
        return _number(token, behind[0].get("logprob"))
    return None


def _bounds(token: str, value: float, listed: object, top: int, vocabulary_size: int) -> Interval:
    """Return the interval [nats] of the entropy at one step, computed from the step's likeliest tokens."""
    if not isinstance(listed, list) or not listed:
        raise LogprobsError(
            f"expected a list of alternatives to the token {token!r} from the server, got {excerpt(listed)}",
            hint="pass top_logprobs=0 if you need no entropies, or use another server or api",
        )
    # This runs for every alternative to every token, and isinstance with an abstract class is slow.
    raw = [one["logprob"] if type(one) is dict and "logprob" in one else _logprob_of(one) for one in listed]
    values = [one if type(one) is float and one <= 0.0 else _number(token, one, listed=True) for one in raw]
    values.sort(reverse=True)
    # A server may add the sampled token to the list. If an unlikely sampled token counted as one of the
    # likeliest, every unlisted token would wrongly count as even less likely.
    likeliest, sampled = values[:top], values[-1] if len(values) > top else None
    if len(values) == top and value < values[-1] - ROUNDED_UP:
        sampled = value
    try:
        bounds = entropy_bounds(likeliest, vocabulary_size, sampled_logprob=sampled)
        if len(likeliest) < top:
            # Alternatives with equal text are listed once, so a likely alternative may be missing. The lower
            # bound is then the entropy with all the remaining probability on one unlisted token.
            together = entropy_bounds(likeliest, len(likeliest) + 1)
            bounds = Interval(min(bounds.lower, together.upper), bounds.upper)
    except ValueError as error:
        raise LogprobsError(
            f"the values of the alternatives to the token {token!r} are not log-probabilities: {error}",
            hint="the server may return logits or probabilities instead; use another server or api",
        ) from None
    return bounds


def _logprob_of(alternative: Any) -> object:
    if isinstance(alternative, Mapping):
        return alternative.get("logprob")
    return getattr(alternative, "logprob", alternative)


def _number(token: str, value: object, *, listed: bool = False) -> float:
    """Return a checked log-probability; minus infinity is valid only for a token that was not sampled."""
    if type(value) is float and -math.inf < value <= 0:
        return value  # nearly all values are valid floats, and the checks below are slow
    number = math.nan
    if hasattr(value, "__float__") and not isinstance(value, bool):
        with suppress(OverflowError, TypeError, ValueError):
            number = float(value)
    if math.isnan(number) or number > ROUNDED_UP or (number == -math.inf and not listed):
        raise LogprobsError(
            f"the log-probability of the token {token!r} is {excerpt(value)}, which is no natural logarithm "
            "of a probability",
            hint=NO_LOGPROBS_HINT,
        )
    return min(number, 0.0)


def _text(entry: Mapping[str, Any]) -> str:
    token = entry.get("token")
    return without_surrogates(token) if isinstance(token, str) else ""


def token_of(entry: Mapping[str, Any]) -> str | bytes:
    """Return a token's bytes if the server lists them, else its text."""
    token_bytes: Any = entry.get("bytes")
    if isinstance(token_bytes, list) and token_bytes:
        with suppress(TypeError, ValueError):  # the list may hold values that are not bytes
            if _UNKNOWN_BYTES not in (token := bytes(token_bytes)):
                return token
    return _text(entry)


def without_surrogates(text: str) -> str:
    r"""Return a text that can be encoded: UTF-16 surrogate pairs are joined, single surrogates replaced.

    Example:
        >>> without_surrogates("\ud83d\ude00"), without_surrogates("a\ud83d")
        ('😀', 'a�')
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def excerpt(value: object, size: int = 120) -> str:
    """Return the beginning of a value's ``repr`` for an error's message."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):
        return f"{kind_of(value)} too large to show"
    # The dots are needed: the masking of secrets looks before dots for a secret that was cut off.
    return without_surrogates(shown if len(shown) <= size else f"{shown[:size]}…")


def _malformed(what: str, value: object) -> LogprobsError:
    return LogprobsError(f"expected {what} from the server, got {excerpt(value)}", hint=NO_LOGPROBS_HINT)


def answer_tokens(
    tokens: Iterable[str | bytes], answer: str, *, whole: bool = True, thought: bool = False
) -> range:
    r"""Return the range of tokens that spell the answer: the tokens between the thoughts and the end token.

    Args:
        tokens: All tokens, as text or bytes; some servers also list the tokens of thoughts and stop texts.
        answer: The answer's text; surrounding white space is ignored.
        whole: Whether the answer is complete; otherwise tokens at its end may be missing.
        thought: Whether the model thought before it answered.

    Raises:
        LogprobsError: If the tokens do not spell the answer.

    Example:
        >>> answer_tokens(["<think>", "Hm", "</think>", "\n", "Ve", "lm", "<|im_end|>"], "Velm")
        range(4, 6)
        >>> answer_tokens(["Vel", "m"], "Velm"), answer_tokens(["am", " Flu", "\\xc3", "\ufffd"], "am Fluß")
        (range(0, 2), range(0, 4))
    """
    tokens, target = list(tokens), answer.encode("utf-8", "replace").strip(_SPACE)
    texts = [token if isinstance(token, bytes) else token.encode("utf-8", "replace") for token in tokens]
    # In nearly all replies the tokens spell only the answer; the search for the answer is much slower.
    if not thought and _spell_only(texts, target):
        return range(len(texts))
    parts = [_token_parts(token) for token in tokens]
    for start in _starts(parts, thought=thought) if target else ():
        end = _end_of_match(target, parts, start, whole=whole)
        if end is not None:
            return range(start, end)
    if target:
        text = b"".join(part or b"" for token in parts for part in token).decode("utf-8", "replace")
        raise LogprobsError(
            f"the server's tokens {text[-60:]!r} do not spell its answer {answer.strip()[:60]!r}",
            hint="use another server or model, or a method that needs no log-probabilities",
        )
    return range(len(parts), len(parts))


def _spell_only(texts: Sequence[bytes], target: bytes) -> bool:
    ends_in_text = bool(texts) and all(texts) and not texts[-1].isspace()
    return ends_in_text and b"".join(texts).strip(_SPACE) == target


def _starts(parts: Sequence[list[bytes | None]], *, thought: bool) -> Iterable[int]:
    """Yield token indices at which the answer may begin, the likeliest first."""
    texts = [b"".join(part or b"" for part in token) for token in parts]
    offsets, joined = list(accumulate(map(len, texts), initial=0)), b"".join(texts)
    marks = [mark.end() for mark in _LAST_MARK.finditer(joined)]
    if marks:
        start = next(place for place, offset in enumerate(offsets) if offset >= marks[-1])
        while start < len(parts) and texts[start].isspace():
            start += 1
        yield start
    if not thought:
        yield 0
    if thought or marks:
        yield from range(len(parts) - 1, -1, -1)


def _end_of_match(
    target: bytes, parts: Sequence[list[bytes | None]], start: int, *, whole: bool
) -> int | None:
    """Return the index behind the tokens that spell ``target``, of which the first has index ``start``.

    Return None if the tokens do not spell ``target``. ``parts`` has the parts of each token, None for a part
    with unknown bytes. If ``whole`` is False, ``target`` may go on behind the last token.
    """
    places = {0}
    for position in range(start, len(parts)):
        reached = places
        for part in parts[position]:
            reached = {end for place in reached for end in _ends(target, place, part)}
        if len(target) in places and (len(target) not in reached or parts[position] != [None]):
            return position
        if not reached:
            return None
        places = reached
    return len(parts) if len(target) in places or not whole else None


def _ends(target: bytes, place: int, part: bytes | None) -> Iterable[int]:
    """Return where ``part``, a part of a token or None if unknown, may end if it begins at ``place``."""
    if part is None:
        # The server's text does not show this part. The part may be up to three bytes of a character beyond
        # ASCII, or a special token, which has no bytes in the answer.
        most = place
        while most < min(place + 3, len(target)) and target[most] >= 0x80:
            most += 1
        return range(place, most + 1)
    if place == 0:
        part = part.lstrip(_SPACE)
    if target.startswith(part, place):
        return (place + len(part),)
    # The last token may reach beyond the text's end, into white space or a stop text.
    return (len(target),) if part.startswith(target[place:]) else ()


def _token_parts(token: str | bytes) -> list[bytes | None]:
    """Return the parts of a token as bytes; a part that the server's text does not show is None."""
    if isinstance(token, bytes):
        return [token]
    if escaped := _ESCAPED.fullmatch(token):
        return [bytes.fromhex(escaped[1].replace("\\x", ""))]
    if not token:
        return [b"", None]  # part of a character, or a special token whose text is not listed
    known_parts = [text.encode("utf-8", "replace") for text in token.split(_UNKNOWN)]
    parts: list[bytes | None] = [known_parts[0]]
    for part in known_parts[1:]:
        parts += [None, part]
    return [part for part in parts if part != b""] or [None]
