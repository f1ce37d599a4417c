"""Learn which parameters a model rejects, and change later requests accordingly; no I/O.

Services reject different parameters, in their own words, and differently for each model: a reasoning model
takes no temperature, another model gives no log-probabilities, and a third model lists at most five
alternatives to a token. If answers are useful without a rejected parameter, requests omit the parameter.
Otherwise, the reader raises an error with the service's reason.

Many services quote the request in a refusal, so a user's words in the refusal may look like the name of a
parameter. Three rules prevent mistakes. A field that the refusal names in ``param`` or ``loc`` counts
more than the message. Words that the message quotes from the request are removed before the message is
searched. A change is kept only if the same request succeeds with the change.
"""

from __future__ import annotations

import html
import re
import time
import warnings
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from surerag.messages import SamplingParams

REMEMBERED = 15 * 60.0
"""Seconds for which a reader trusts a fact that it learned about its model."""

_RENAMED = {"max_tokens": "max_completion_tokens"}
_COUNTS = frozenset({"n", "logprobs", "top_logprobs", "max_tokens", "max_completion_tokens"})
"""Parameters whose value may be lowered."""
_OPENAI_NAMES = {
    "top_n_tokens": "top_logprobs",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "maxOutputTokens": "max_tokens",
    "num_predict": "max_tokens",
    "response_logprobs": "logprobs",
    "responseLogprobs": "logprobs",
    "stop_sequences": "stop",
    "stopSequences": "stop",
    "stream_usage": "stream_options",
}
"""Names that other services and clients have for OpenAI's parameters."""
_CONTENT = frozenset({"messages", "message", "prompt", "input", "inputs", "content", "contents", "text"})
"""Fields that hold the prompt, not a setting."""
_OUTER = frozenset({"body", "options", "parameters", "generation_config", "generationConfig", "config"})
"""Names of the outer objects of a request that may contain a parameter."""

_NOT_TAKEN = (
    r"(unsupported|unknown|unrecogni[sz]ed|unexpected|invalid|extra (inputs|fields?)|forbidden|deprecated"
    r"|not (\w+ )?(supported?|permitted|allowed|available|accepted|recogni[sz]ed|compatible|enabled)"
    r"|no such|no longer|cannot (both )?be|can't|can only|only the default|may only"
    r"|input should be|(does|do|is|are)(n't| not))"
)
_LIMIT = re.compile(
    r"(?i)(?:<=|≤|only \w+ ?=|at most|up to|less than or equal to|maximum(?: value)?(?: of| is|:)?"
    r"|max(?:imum)? allowed:?|between \d+ and|in the range \[?\d+,|supported range \[\d+,)\s*(\d+)"
)
_TOGETHER = re.compile(r"(?i)\bboth\b|at the same time|mutually exclusive")
"""Words of an error message which say that two parameters must not be sent together."""
_LOCATION = re.compile(r"['\"]loc['\"]: ?[(\[]([^)\]]*)[)\]]")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_RUN = 3
"""Minimum number of successive words that a message must share with a text of the request to count as a
quotation; fewer if the text has fewer words."""

TEMPERATURE_HINT = (
    "set temperature=1.0, or use a model that accepts a temperature; with thinking=False, this model may "
    "accept a temperature"
)


class LeftOutWarning(UserWarning):
    """Warns that requests omit a setting for some time, because the model rejects or ignores the setting."""


class Change(NamedTuple):
    """A change to parameter ``name``: ``to`` is the new name, the largest value, or None to omit it."""

    name: str
    to: str | int | None

    def __str__(self) -> str:
        if isinstance(self.to, str):
            return f"takes {self.to} in place of {self.name}"
        if self.to is not None:
            return f"takes a {self.name} of at most {self.to}"
        effect = ", and the service chooses the temperature" if self.name == "temperature" else ""
        return f"rejects {self.name}; requests now omit it{effect}"


class Refusal(NamedTuple):
    """A service's refusal of a request; parameters have OpenAI's names.

    Attributes:
        message: The service's message, without words that it quotes from the request.
        parameters: The fields of the request that the refusal names as wrong; empty if it names none.
    """

    message: str
    parameters: tuple[str, ...] = ()

    @classmethod
    def of(cls, message: str, parameters: Iterable[str], texts: Iterable[str]) -> Refusal:
        """Return the refusal that a server's message reports.

        Args:
            message: The message.
            parameters: Names of the parameters that the server's reply names in a field of its own.
            texts: Texts of the request; if the message quotes them, the quotations are ignored.
        """
        message = _without_quotations(message, texts)
        places = [*parameters, *(_LOCATION.findall(message))]
        for name, usual in _OPENAI_NAMES.items():
            message = re.sub(rf"\b{name}\b", usual, message)
        names = (_parameter_at(place) for place in places)
        return cls(message, tuple(dict.fromkeys(filter(None, names))))

    def concerns(self, name: str) -> bool:
        """Return whether the name of a refused parameter contains ``name``.

        If the refusal names no parameter, return whether its message contains ``name``.
        """
        return any(name in one for one in self.parameters or (self.message.lower(),))

    def changes(self, body: Mapping[str, Any], needed: Collection[str] = ()) -> list[Change]:
        """Return the changes to the request's body that the refusal suggests; empty if it suggests none.

        Parameters in ``needed`` are never omitted. Their values may be lowered, but not to 0.
        """
        if not _CONTENT.isdisjoint(self.parameters):
            return []
        for old, new in _RENAMED.items():
            if old in body and not re.search(rf"\b{old}\b", self.message):  # the client renamed ``old``
                names = tuple(old if name == new else name for name in self.parameters)
                self = Refusal(re.sub(rf"\b{new}\b", old, self.message), names)
        changes = self._of_pointed(body) or self._of_named(body)
        if _TOGETHER.search(self.message):
            changes = [one for one in changes if one.to is not None or one.name not in needed][-1:]
        return [one for one in changes if one.to is not None or one.name not in needed]

    def _of_pointed(self, body: Mapping[str, Any]) -> list[Change]:
        anywhere = _LIMIT.search(self.message)
        changes = []
        for name in self.parameters:
            if name == "logprobs" and body.get(name) is True and "top_logprobs" in body and anywhere:
                changes.append(Change("top_logprobs", int(anywhere[1]) or None))
            elif name in body:
                limit = _limit_of(self.message, name, body) or (int(anywhere[1]) if anywhere else None)
                change = _change_of(self.message, name, body[name], limit) or (None,)
                changes.append(Change(name, change[0]))
        return changes

    def _of_named(self, body: Mapping[str, Any]) -> list[Change]:
        """Return changes of those parameters whose names stand beside a word of refusal, or a limit."""
        changes = [
            Change(name, change[0])
            for name, value in body.items()
            if (change := _change_of(self.message, name, value, _limit_of(self.message, name, body)))
        ]
        # If a name is in quotes, other names are ordinary words, such as "stop" or "model".
        quoted = [one for one in changes if re.search(rf"['\"`]{re.escape(one.name)}['\"`]", self.message)]
        return quoted or changes


class Learned:
    """What a reader learned about its model, above all the parameters that requests omit, limit or rename.

    Each fact is forgotten :data:`REMEMBERED` seconds after it was last observed.
    """

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def __reduce__(self) -> tuple[type[Learned], tuple[()]]:
        return Learned, ()

    def __contains__(self, fact: Hashable) -> bool:
        return self._until.get(fact, 0.0) > time.monotonic()

    def note(self, fact: Hashable) -> bool:
        """Remember a fact, and return whether it is new."""
        first = fact not in self._until
        self._until[fact] = time.monotonic() + REMEMBERED
        return first

    def forget(self, fact: Hashable) -> None:
        """Forget a fact, such as a change, at once instead of after 15 minutes."""
        if fact in self._until:
            self._until[fact] = 0.0

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that are made to requests now."""
        facts = tuple(self._until)
        return tuple([fact for fact in facts if isinstance(fact, Change) and fact in self]) if facts else ()

    @property
    def drop(self) -> set[str]:
        """Parameters that requests omit, because the model rejects them."""
        return _dropped(self.changes)

    @property
    def cap(self) -> dict[str, int]:
        """The largest accepted value of each limited parameter."""
        return _limits(self.changes)

    def apply(self, body: Mapping[str, Any], trial: Sequence[Change] = ()) -> dict[str, Any]:
        """Apply the learned changes and the changes in ``trial`` to a request's body; return the new body."""
        if not (changes := (*self.changes, *trial)):
            return {**body}
        dropped, limits, names = _dropped(changes), _limits(changes), _new_names(changes)
        return {
            names.get(name, name): min(value, limits[name]) if name in limits else value
            for name, value in body.items()
            if name not in dropped
        }

    def suggested(
        self,
        refusal: Refusal,
        body: Mapping[str, Any],
        trial: Sequence[Change] = (),
        needed: Collection[str] = (),
    ) -> list[Change]:
        """Return further changes that a refusal suggests.

        ``name`` of a change is the parameter's name in ``body``. The refusal may use another name for the
        parameter, if an earlier change renamed it.
        """
        originals = {new: old for old, new in _new_names((*self.changes, *trial)).items()}
        changes = refusal.changes(self.apply(body, trial), needed)
        return [one._replace(name=originals.get(one.name, one.name)) for one in changes]

    def confirm(self, trial: Sequence[Change], model: str) -> None:
        """Remember changes that made a refused request succeed, and warn of each change once."""
        for change in trial:
            if self.note(change):
                warn(f"{model} {change}")


def _dropped(changes: Sequence[Change]) -> set[str]:
    return {name for name, to in changes if to is None} if changes else set()


def _limits(changes: Iterable[Change]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for name, to in changes:
        if isinstance(to, int):
            limits[name] = min(to, limits.get(name, to))
    return limits


def _new_names(changes: Iterable[Change]) -> dict[str, str]:
    return {name: to for name, to in changes if isinstance(to, str)}


def needed_parameters(sampling: SamplingParams) -> frozenset[str]:
    """Return the parameters without which an answer is useless.

    A temperature is needed only if it is not 1 and several answers are sampled. The number of answers, stop
    texts and seeds are never needed: the reader can request answers one by one, and cut them at stop texts
    itself.
    """
    needed = {"model", "messages", "prompt"}
    if sampling.trace != "none":
        needed.add("logprobs")
    if sampling.trace in ("entropy", "expected_entropy"):
        needed.add("top_logprobs")
    if sampling.n > 1 and sampling.temperature != 1:
        needed.add("temperature")
    return frozenset(needed)


def warn(sentence: str) -> None:
    """Warn of a fact that a reader learned about its model."""
    warnings.warn(f"{sentence} (for {REMEMBERED / 60:g} minutes)", LeftOutWarning, stacklevel=2)


def warn_of_missing_logprobs(model: str) -> None:
    """Warn that an answer has no log-probabilities, and that uncertainty is measured without them."""
    warnings.warn(
        f"{model} returned no usable log-probabilities: uncertainty is measured by the texts of answers "
        "alone, or not at all",
        LeftOutWarning,
        stacklevel=2,
    )


def _change_of(message: str, name: str, value: object, limit: int | None) -> tuple[str | int | None] | None:
    """Return how a message wants a parameter to be changed; None if it wants no change.

    The tuple holds the parameter's new name or its largest allowed value; ``(None,)`` means that the
    parameter must be omitted.
    """
    if name in _RENAMED and _RENAMED[name] in message and re.search(rf"\b{name}\b", message):
        return (_RENAMED[name],)
    if limit is not None and name in _COUNTS:
        above = isinstance(value, int) and not isinstance(value, bool) and value > limit
        return (limit or None,) if above else None
    return (None,) if _rejects(message, name) else None


def _limit_of(message: str, name: str, body: Mapping[str, Any]) -> int | None:
    at = re.search(rf"\b{re.escape(name)}\b", message)
    if at is None and name == "top_logprobs" and body.get("logprobs") is True:
        return _limit_of(message, "logprobs", {})  # vLLM's name for top_logprobs
    limit = _LIMIT.search(message[max(at.start() - 5, 0) : at.end() + 120]) if at else None
    return int(limit[1]) if limit else None


def _rejects(message: str, name: str) -> bool:
    """Whether a message has words of refusal close to a parameter's name."""
    parameter = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
    return bool(
        re.search(
            rf"(?i){_NOT_TAKEN}[^.;]{{0,60}}?{parameter}|{parameter}[^.;]{{0,80}}?{_NOT_TAKEN}", message
        )
    )


def _parameter_at(place: str) -> str:
    """Return OpenAI's name of the parameter that a location in a request belongs to.

    Example:
        >>> _parameter_at("body.max_new_tokens"), _parameter_at("'messages', 0, 'content'")
        ('max_tokens', 'messages')
    """
    steps = [step for step in _WORD.findall(place) if step not in _OUTER and not step.isdigit()]
    return _OPENAI_NAMES.get(steps[0], steps[0]) if steps else ""


def _without_quotations(message: str, texts: Iterable[str]) -> str:
    r"""Return a message with ``;`` in place of long runs of words that also occur in one of the texts.

    Example:
        >>> _without_quotations("bad: 'is max_tokens\\n at most 3'", ["Is max_tokens\n at most 3?"])
        "bad: ';'"
    """
    message = _unescaped(message)
    words = list(_WORD.finditer(message))
    message_words = [word[0].lower() for word in words]
    quoted: set[int] = set()
    for text in texts:
        text_words = _WORD.findall(_unescaped(text).lower())
        size, joined = min(_RUN, len(text_words)), f" {' '.join(text_words)} "
        for start in range(len(message_words) - size + 1 if size else 0):
            if f" {' '.join(message_words[start : start + size])} " in joined:
                quoted.update(range(start, start + size))
    pieces, end = [], 0
    for place in sorted(quoted):
        if place - 1 not in quoted:
            pieces += [message[end : words[place].start()], ";"]
        end = words[place].end()
    return "".join([*pieces, message[end:]])


def _unescaped(text: str) -> str:
    """Decode the escapes of JSON, Python, HTML and URLs: services quote requests with such escapes."""
    for _ in range(2):
        text = re.sub(
            r"\\+u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), unquote_plus(html.unescape(text))
        )
        text = re.sub(r"\\+x([0-9a-fA-F]{2})", lambda code: chr(int(code[1], 16)), text)
        text = re.sub(r"\\+[nrtbf0]", " ", text)
    return text
