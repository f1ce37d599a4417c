"""Turn errors of a model's client into errors of surerag, the same for every client and framework.

A method may fall back, for example keep all passages, after a temporary failure (overload, time-out, a lost
connection) and after a failure of one request alone (a prompt that is too long, a malformed reply). A method
must not fall back if a service refuses every request (wrong key, address, model or parameter): then every
answer would be worse, and only a log would say why.
"""

from __future__ import annotations

import base64
import json
import operator
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from html.entities import codepoint2name
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import BaseModel, SecretStr

from surerag.errors import (
    ContextLengthError,
    LogprobsError,
    RefusedError,
    ServiceError,
    SureragError,
    ThinkingBudgetError,
    TransientServiceError,
)
from surerag.readers.logprobs import without_surrogates

E = TypeVar("E", bound=BaseException)

_KEY = re.compile(r"Bearer\s+[^\s'\"]+|Basic\s+[\w+/=-]{8,}|\bsk-[\w-]{6,}")
_SECRET_NAME = re.compile(
    r"(?!(.*[_-])?(bos|eos|pad|sep|cls|unk|mask|image|special|stop|end|next|page)[_-]token)"
    r"(key|auth|(.*[_.-])?(token|secret|passw(or)?d|authorization|bearer|credentials?"
    r"|(api|access|auth|secret|private|session|subscription)[_-]?key))",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S+\Z", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/@]*@")
_SHORTEST_BEGINNING = 6
"""Minimum length of a secret's base64 text, or of a cut-off secret, that is searched for."""
_PASSING_STATUSES = frozenset({408, 409, 425, 429})
_PASSING_ERRORS = (
    "Timeout",
    "Connection",
    "TransportError",
    "RateLimit",
    "Throttl",
    "Overloaded",
    "ReadError",
)
_BROKEN = {
    "ReadError", "RemoteProtocolError", "ConnectionResetError", "IncompleteRead", "ClientPayloadError",
    "ChunkedEncodingError",
}  # fmt: skip
_LASTING_ERRORS = ("UnsupportedProtocol", "InvalidURL", "LocalProtocolError", "TooManyRedirects")
_TOO_LONG = re.compile(
    r"context[ _]?(length|window|size|overflow)|maximum context|exceed context"
    r"|tokens_limit_reached|(prompt|input|request)_too_(long|large)|expected maxlength"
    r"|超长|长度超|超过.{0,20}长度"
)
"""Types, codes or words of an error which say that the prompt is too long for the model."""
_TOO_LONG_CODE = "above_max_length"
"""Suffix of OpenAI's error codes which say that a text or a list is too long."""
_KEY_OF_REPLY = re.compile(r"['\"]\w+['\"]: ")
"""A JSON key, such as ``'message':``, in a reply that an error quotes. Such a key must not count
as a mention of the prompt."""
_INPUT = re.compile(r"\b(prompts?|inputs?(_ids)?|messages?|requests?|sequences?|conversation|documents?)\b")
_MEASURE = re.compile(r"\b(tokens?|length|max_(seq|model|input)_len(gth)?|too long)\b")
_EXCESS = re.compile(
    r"\b(exceed(s|ed|ing)?|too (long|large|many)|(longer|larger|greater|more|less|fewer) than"
    r"|maximum|token limit|reduce|overflow(s|ed)?)\b|must be <=|should be \["
)
_OF_RATE = re.compile(r"per (second|minute|hour|day)|rate[ _]limit|quota")
_NEVER_TOO_LONG = frozenset({401, 402, 403, 404, 429})
_POINTERS = ("param", "parameter", "field", "pointer", "instance_path")
"""Keys under which an error reply names the rejected field. (``loc`` is read apart, because
its value is a list.)"""
_QUOTED = frozenset({"input", "inputs", "request", "body", "messages", "prompt"})
"""Keys of a reply under which a service quotes the request."""
_WITHHELD = ("content_filter", "content filter", "content management policy", "invalid_prompt", "flagged")
_MISUSED = ("unexpected keyword argument", "authentication method", "unknown model", "api key", "api_key")
_HINTS = {
    ContextLengthError: "give the model fewer or shorter passages, or lower max_tokens",
    RefusedError: "check the reader's settings: model name, API key, address and parameters",
    TransientServiceError: "check that the server can be reached, try again, or raise max_retries or timeout",
    ServiceError: "the reply cannot be read; send a request to the server by hand, and look at the reply",
}


def service_error(
    error: BaseException, name: str, secrets: Iterable[str] = (), hints: Mapping[int, str] | None = None
) -> SureragError:
    """Return surerag's error for an error that a model's client raised.

    ``name``, the model or server, begins the message, and ``secrets`` are hidden in it. ``hints`` maps an
    HTTP status to the hint of its error. If ``error`` is one of surerag's errors, it is returned unchanged.

    Example:
        >>> print(service_error(IndexError("list index out of range"), "gpt").args[0][:52])
        gpt failed with IndexError: list index out of range.
    """
    if isinstance(error, SureragError):
        return error
    secrets = tuple(secrets)
    message = _message_of(error, secrets)
    kind, status = kind_of(error, f"{error} {message}"), status_of(error)
    happened = f"answered {status}" if status else _what_happened(error)
    # With a status, the server's own message says more than the general hint.
    hint = _HINTS[kind] if kind is not ServiceError or status is None else ""
    address = _address_of(error)
    where = "" if address in name.lower() else f" at {address}"
    text = without_surrogates(f"{name}{where} {happened}: {message}".removesuffix(": "))
    failure = kind(text, hint=(hints or {}).get(status or 0, hint))
    if isinstance(failure, RefusedError):
        failure.parameters = tuple(one for one in parameters_of(error) if masked(one, secrets) == one)
    elif isinstance(failure, TransientServiceError):
        failure.broken = status is None and _connection_broke(error)
    return failure


def _message_of(error: BaseException, secrets: Sequence[str]) -> str:
    message = shortened(masked(_words_of(getattr(error, "body", None)) or _text_of(error), secrets), 500)
    reply = reply_of(error)
    if reply and (sent := shortened(masked(reply, secrets), 300)) not in message:
        message += f"; the server sent {sent!r}"
    return message


def client_failure(error: Exception, name: str, secrets: Iterable[str]) -> SureragError:
    """Return surerag's error for a client's error, which is kept as the cause; neither shows a secret."""
    secrets = tuple(secrets)
    failure = service_error(error, name, secrets)
    if failure is not error:
        failure.__cause__ = error
    return without_secrets(failure, secrets)


def _what_happened(error: BaseException) -> str:
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if "Timeout" in names:
        return "did not answer in time"
    return "could not be reached" if "Connect" in names else f"failed with {type(error).__name__}"


def _connection_broke(error: BaseException) -> bool:
    """Whether a connection broke while a reply was read, and the client has not already tried again."""
    names = {kind.__name__ for cause in _causes(error) for kind in type(cause).__mro__}
    return not names.isdisjoint(_BROKEN) and names.isdisjoint({"APIConnectionError", "ConnectError"})


def _address_of(error: BaseException) -> str:
    for cause in _causes(error):
        with suppress(Exception):
            address: str = cast("Any", cause).request.url.netloc.decode()
            return address
    return ""


def _text_of(error: BaseException) -> str:
    text = str(error)
    causes = (str(one.__cause__) for one in _causes(error) if one.__cause__)
    other = next((cause for cause in causes if cause not in text), "")
    return f"{text} ({other})" if other else text


def _words_of(body: object) -> str:
    """Return a server's error message; for OpenRouter, add the message of the server that it called."""
    inner = body.get("error") if isinstance(body, Mapping) else None
    detail = inner if isinstance(inner, Mapping) else body
    if not isinstance(detail, Mapping):
        return str(body or "")
    words = [str(detail[key]) for key in ("code", "message", "detail") if detail.get(key)]
    if detail.get("param"):
        words.append(f"parameter '{detail['param']}'")
    metadata = detail.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("raw"):
        words.append(str(metadata["raw"]))
    return ": ".join(words) or str(body)


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text with ``[key]`` in place of the given secrets, and of anything that looks like a key.

    A secret of eight or more characters is found in any letter case, percent-encoded (once or twice), as HTML
    entities, escaped as in JSON, in hex, over several lines, and if the text is cut off within the secret.
    In plain text, a shorter secret is found only as a whole word in its own letter case. A secret of five or
    more bytes is also found in base64, even after a user's name, as in Basic authorization.

    Example:
        >>> masked("Invalid key 9f8e7d6c; sent with Bearer abc", ["9f8e7d6c"])
        'Invalid key [key]; sent with [key]'
        >>> masked("no user dXNlcjo5ZjhlN2Q2Yw==, key 9F8E7D6C, 9f8e7d…", ["9f8e7d6c"])
        'no user [key], key [key], [key]…'
    """
    for secret in sorted(filter(None, set(secrets)), key=len, reverse=True):
        escaped = (quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1])
        for spelling in dict.fromkeys((secret, *escaped)):
            if len(secret) < 8:
                # Some servers' key is "EMPTY", so a short secret must not hide "empty" or parts of words.
                text = re.sub(rf"(?<![\w-]){re.escape(spelling)}(?![\w-])", "[key]", text)
            else:
                text = _without_beginning(text, spelling)
        if len(secret) >= 8:
            text = _spellings(secret).sub("[key]", text)
        for core in _in_base64(secret):
            if core in text:
                text = re.sub(rf"[\w+/=-]{{0,200}}{re.escape(core)}[\w+/=-]{{0,200}}", "[key]", text)
    return _KEY.sub("[key]", text)


@lru_cache(maxsize=64)
def _spellings(secret: str) -> re.Pattern[str]:
    """Return a pattern that finds a secret, also if characters are escaped or lines are broken in it."""
    characters = []
    for character in secret:
        code, data = ord(character), character.encode("utf-8", "replace")
        percent = "".join(rf"%(?:25)*{byte:02x}" for byte in data)
        name = codepoint2name.get(code)
        entity = rf"&(?:#0*{code}|#x0*{code:x}{f'|{name}' if name else ''});"
        escape = rf"\\+(?:x{code:02x}|u0*{code:x}|u\{{0*{code:x}\}})"
        characters.append(rf"\\*(?:{re.escape(character)}|{percent}|{entity}|{escape})")
    wrap = r"(?:\s|\\+[nrt]|%0[ad]|=\n)*?"
    in_hex = r"[\s:]*".join(f"{byte:02x}" for byte in secret.encode("utf-8", "replace"))
    return re.compile(f"{wrap.join(characters)}|{in_hex}", re.IGNORECASE)


def _in_base64(secret: str) -> Iterator[str]:
    """Yield texts by which a secret is found in base64, whatever other bytes were encoded with it."""
    data = secret.encode("utf-8", "replace")
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        core = encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        if len(core) >= _SHORTEST_BEGINNING:
            yield from {core, core.translate(str.maketrans("+/", "-_"))}


def _without_beginning(text: str, secret: str) -> str:
    """Return a text with ``[key]`` in place of a secret that was cut off after its beginning.

    The cut is at the end of the text, or before an ellipsis (``…`` or ``...``).
    """
    ends = [len(text.rstrip("'\" \n")), *(dots.start() for dots in re.finditer(r"…|\.\.\.", text))]
    for end in sorted(set(ends), reverse=True):
        before = text[max(end - len(secret), 0) : end].lower()
        sizes = range(len(before), _SHORTEST_BEGINNING - 1, -1)
        size = next((size for size in sizes if before.endswith(secret[:size].lower())), 0)
        if size:
            text = f"{text[: end - size]}[key]{text[end:]}"
    return text


def without_secrets(error: E, secrets: Iterable[str]) -> E:
    """Return an error without secrets, also in its causes and in the members of an exception group.

    An error that shows a secret is replaced by a copy without the secret. The copy has the same class and
    notes. If the class is not one of surerag's, the copy keeps only those attributes that are texts or
    numbers. If the class cannot be copied, an ``Exception`` is made, whose text begins with the class's name.

    Example:
        >>> without_secrets(ValueError("Invalid key 9f8e7d6c"), ["9f8e7d6c"])
        ValueError('Invalid key [key]')
    """
    secrets = tuple(secrets)
    copies: dict[int, Any] = {}

    def hide(text: str) -> str:
        return masked(text, secrets)

    def copied(one: BaseException | None) -> Any:
        if one is None or id(one) in copies:
            return copies.get(id(one))
        copies[id(one)] = copy = one
        grouped = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        members = tuple(map(copied, grouped))
        if _shows_secret(one, hide) or any(map(operator.is_not, members, grouped)):
            copies[id(one)] = copy = _stand_in(one, hide, members)
        behind = copied(one.__cause__), copied(one.__context__), one.__suppress_context__
        copy.__cause__, copy.__context__, copy.__suppress_context__ = behind
        return copy

    safe: E = copied(error)
    return safe


def _shows_secret(error: BaseException, hide: Callable[[str], str]) -> bool:
    # Each text is checked separately, because a cut-off secret is recognised at a text's end.
    carried = [str(error), *_texts_in(error.args), *_texts_in(vars(error))]
    with suppress(Exception):
        # The text of a response that is not read yet cannot be accessed.
        carried.append(vars(error)["response"].text)
    return any(hide(text) != text for text in carried)


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple):
        for one in value.items() if isinstance(value, Mapping) else value:
            yield from _texts_in(one)
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    else:
        yield value if isinstance(value, str) else repr(value)


def _stand_in(error: BaseException, hide: Callable[[str], str], members: Sequence[Any]) -> BaseException:
    carried = {name: hide(one) if isinstance(one, str) else one for name, one in vars(error).items()}
    if isinstance(error, BaseExceptionGroup):
        copy: BaseException = BaseExceptionGroup(hide(error.message), members)
    elif isinstance(error, SureragError):
        copy = _rebuilt(type(error), [hide(str(one)) for one in error.args], carried)
    else:
        # The copy does not keep the request, the response and its body.
        carried = {name: one for name, one in carried.items() if isinstance(one, str | float | int | None)}
        if status := status_of(error):
            carried["status_code"] = status
        text = hide(str(error))
        copy = _rebuilt(Exception, [f"{type(error).__name__}: {text}"], carried)
        with suppress(Exception):
            same_class = _rebuilt(type(error), [text], carried)
            copy = same_class if str(same_class) == text else copy
    if notes := getattr(error, "__notes__", None):
        copy.__notes__ = [hide(str(note)) for note in notes]
    return copy.with_traceback(error.__traceback__)


def _rebuilt(
    kind: type[BaseException], arguments: Iterable[str], carried: Mapping[str, Any]
) -> BaseException:
    copy = kind.__new__(kind, *arguments)
    copy.__dict__.update(carried)
    return copy


def is_secret_name(name: object) -> bool:
    """Tell whether a setting, field or header of this name holds a secret.

    Example:
        >>> [is_secret_name(name) for name in ("x-api-key", "hf_token", "eos_token", "max_tokens", "id_key")]
        [True, True, False, False, False]
    """
    return isinstance(name, str) and _SECRET_NAME.fullmatch(name) is not None


def without_credentials(text: str) -> str:
    """Return a URL without its user, password, and keys in its query; return any other text unchanged.

    Example:
        >>> without_credentials("https://ada:pw@host/v1?api_key=abc&api-version=2")
        'https://host/v1?api-version=2'
    """
    if not _ADDRESS.match(text):
        return text
    address, _, query = text.partition("?")
    public = [field for field in query.split("&") if not is_secret_name(field.partition("=")[0])]
    return "?".join(filter(None, (_USER.sub("", address), "&".join(public))))


def secrets_in(value: object, name: str = "") -> Iterator[str]:
    """Yield the secrets in ``value``, which is a client's setting or a mapping of settings.

    Secrets are texts of the type ``SecretStr``, texts whose setting has the name of a secret (see
    :func:`is_secret_name`), and the users, passwords and query values of URLs, as written and decoded. The
    word before a key, such as ``Bearer``, is left out. ``name`` is the name of the setting ``value``.

    Example:
        >>> settings = {"headers": {"Authorization": "Bearer abc"}, "base_url": "http://ada:p%40ss@host/v1"}
        >>> list(secrets_in(settings))
        ['abc', 'p@ss', 'p%40ss', 'ada']
    """
    if isinstance(value, SecretStr):
        value, name = value.get_secret_value(), "secret"
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from secrets_in(one, name if is_secret_name(name) else str(key))
    elif isinstance(value, BaseModel):
        yield from secrets_in({**vars(value), **(value.model_extra or {})})
    elif isinstance(value, str) and is_secret_name(name):
        # In a header, the secret follows the scheme, such as "Bearer".
        yield from value.split()[-1:]
    elif isinstance(value, str) and "://" in value[:12]:
        with suppress(ValueError):
            parts = urlsplit(value)
            for part in filter(None, (parts.password, parts.username)):
                yield from dict.fromkeys((unquote(part), part))
            yield from (one for _, one in parse_qsl(parts.query))


def shortened(text: str, size: int) -> str:
    """Return a text; if it has more than ``size`` characters, return its beginning and an ellipsis."""
    return text if len(text) <= size else f"{text[:size]}…"


def described(error: BaseException) -> str:
    """Return an error's class and text, with keys masked, for logs and result files.

    Example:
        >>> described(ValueError("no key sk-12345678 at https://ada:secret@host/"))
        'ValueError: no key [key] at https://[key]@host/'
    """
    return f"{type(error).__name__}: {_USER.sub('[key]@', masked(str(error)))}"


_PLAIN_WORDS = (
    (ContextLengthError, "the text is too long for the model"),
    (ThinkingBudgetError, "the model was still thinking when its tokens were spent"),
    (TransientServiceError, "a service is busy, or cannot be reached"),
    (LogprobsError, "the model gave no usable log-probabilities"),
    (ServiceError, "a service sent a reply that cannot be used"),
)


def in_plain_words(error: BaseException) -> str:
    """Return a description of an error for end users, who must see no address, key or hint.

    Example:
        >>> in_plain_words(TransientServiceError("10.0.0.7:8000 answered 503", hint="raise max_retries"))
        'TransientServiceError: a service is busy, or cannot be reached'
    """
    words = next((words for kind, words in _PLAIN_WORDS if isinstance(error, kind)), "")
    if getattr(error, "broken", False):
        words = "the answer of a service was cut off"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def reason_of(error: BaseException) -> str:
    r"""Return an error's text on one line; transformers often names the cause on the second line.

    Example:
        >>> reason_of(OSError("The tokenizer cannot be made:\nsentencepiece is not installed.\n"))
        'The tokenizer cannot be made: sentencepiece is not installed.'
    """
    return shortened(" ".join(str(error).split()), 500) or repr(error)


def reply_of(error: BaseException) -> str:
    """Return the text of the server's reply that an error or its cause carries; empty if neither does."""
    for cause in _causes(error):
        with suppress(Exception):
            response = getattr(getattr(cause, "response", None), "text", None)
            if words := _words_of(getattr(cause, "body", None)):
                return words
            for text in (getattr(cause, "doc", None), getattr(cause, "obj", None), response):
                if text and isinstance(text, str | bytes):
                    return str(text)
    return ""


def kind_of(error: BaseException, message: str = "") -> type[ServiceError]:
    """Return the class of surerag's errors that fits a client's error.

    ``message`` is searched in place of the error's own text.

    Example:
        >>> kind_of(TimeoutError()).__name__, kind_of(ValueError("no JSON")).__name__
        ('TransientServiceError', 'ServiceError')
    """
    text = (message or str(error)).lower()
    if "insufficient_quota" in text:
        # An exhausted quota has status 429, like an overload, but waiting does not help.
        return RefusedError
    status = status_of(error)
    if _is_too_long(error, text, status):
        return ContextLengthError
    if status is None and any(map(_is_permanent, _causes(error))):
        return RefusedError
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if any(sign in names for sign in _PASSING_ERRORS):
        return TransientServiceError
    if status is None:
        return RefusedError if _is_misuse(error, text) else ServiceError
    return _kind_of_status(status, text)


def _is_too_long(error: BaseException, text: str, status: int | None) -> bool:
    codes = [str(value) for name, value in _fields_of(error) if name in ("type", "code", "status")]
    names = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__) for kind in type(error).__mro__]
    if any(_TOO_LONG.search(sign.lower()) for sign in (*codes, *names)):
        return True
    if status in _NEVER_TOO_LONG or _OF_RATE.search(text):
        return False
    if _TOO_LONG.search(text):
        return True
    if _is_temporary_status(status) or _is_about_a_setting(error):
        return False
    if any(code.endswith(_TOO_LONG_CODE) for code in codes):
        return True
    text = _KEY_OF_REPLY.sub("", text)
    return all(sign.search(text) for sign in (_INPUT, _MEASURE, _EXCESS))


def _is_temporary_status(status: int | None) -> bool:
    return status is not None and (status in _PASSING_STATUSES or status >= 500)


def _is_about_a_setting(error: BaseException) -> bool:
    """Whether an error names parameters of the request, and none of them holds the prompt."""
    places = parameters_of(error)
    return bool(places) and not any(_INPUT.search(place.replace("_", " ")) for place in places)


def _fields_of(error: BaseException) -> Iterator[tuple[str, object]]:
    for cause in _causes(error):
        held = [getattr(cause, "body", None), getattr(cause, "details", None)]
        with suppress(Exception):
            held.append(json.loads(cast("Any", cause).response.text))
        for one in held:
            yield from _fields_in(one)


def _fields_in(value: object, depth: int = 8) -> Iterator[tuple[str, object]]:
    if depth and isinstance(value, Mapping):
        for name, one in value.items():
            yield str(name), one
            # A quoted request is not part of the reply's own fields.
            yield from () if name in _QUOTED else _fields_in(one, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for one in value:
            yield from _fields_in(one, depth - 1)


def parameters_of(error: BaseException) -> list[str]:
    """Return the names of the fields of a request that an error reports as wrong.

    Example:
        >>> parameters_of(TypeError("create() got an unexpected keyword argument 'seed'"))
        ['seed']
    """
    keyword = re.search(r"unexpected keyword argument '(\w+)'\Z", str(error))
    places = [keyword[1]] if keyword and isinstance(error, TypeError) else []
    for name, value in _fields_of(error):
        if name in _POINTERS and isinstance(value, str):
            places.append(value)
        elif name == "loc" and isinstance(value, list | tuple):
            places.append(".".join(map(str, value)))
    return [place for place in dict.fromkeys(places) if re.fullmatch(r"[\w./\[\]-]{1,80}", place)]


def _kind_of_status(status: int, text: str) -> type[ServiceError]:
    if _is_temporary_status(status):
        return TransientServiceError
    if status == 413:
        return ContextLengthError
    if status < 400 or any(sign in text for sign in _WITHHELD):
        return ServiceError
    return RefusedError


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a client's error, or of the error that caused it; None without a status."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        aws = response.get("ResponseMetadata", {}) if isinstance(response, Mapping) else {}
        body = getattr(cause, "body", None)
        places = (
            getattr(cause, "status_code", None),
            getattr(cause, "code", None),
            getattr(response, "status_code", None),
            aws.get("HTTPStatusCode"),
            body.get("code") if isinstance(body, Mapping) else None,
        )
        for status in places:
            if isinstance(status, int | str) and str(status).isdigit() and 100 <= int(status) < 600:
                return int(status)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()  # ``raise error from error`` makes a cycle
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        # A client may suppress the cause of its error; the context still has it.
        error = error.__cause__ or error.__context__


def _is_permanent(error: BaseException) -> bool:
    """Whether a connection error is permanent: wrong address, unknown host, or TLS to a port without TLS."""
    if isinstance(error, socket.gaierror):
        return error.errno != socket.EAI_AGAIN
    if isinstance(error, ssl.SSLError):
        return "EOF" not in str(error)
    if isinstance(error, UnicodeError) and "idna" in str(error):
        return True
    return any(sign in kind.__name__ for kind in type(error).__mro__ for sign in _LASTING_ERRORS)


def _is_misuse(error: BaseException, text: str) -> bool:
    """Whether a client failed before it sent a request: unknown option, no key, or a missing library."""
    if isinstance(error, ImportError) or type(error).__name__ == "OpenAIError":
        return True
    return isinstance(error, TypeError | ValueError) and any(sign in text for sign in _MISUSED)
