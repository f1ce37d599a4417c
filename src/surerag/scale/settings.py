"""From plain settings to what they name: models, encoders, entailers, retrievers.

A setting is a word, or a mapping of texts and numbers. It is checked where it is given, which loads
nothing, and what it names is made where it is first needed: on a worker, with the keys of the worker's
environment.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from threading import RLock
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from surerag.encoders import HashingEncoder, SentenceTransformerEncoder, packaged_minilm
from surerag.entailment import ExactEntailer, JudgeEntailer, NLIEntailer
from surerag.errors import ConfigurationError, MissingServiceError
from surerag.factories import Factory
from surerag.options import check_among, plain
from surerag.readers.keys import DEFAULT_KEY, key_from
from surerag.readers.protocol import BaseReader
from surerag.services import Encoder, Entailer, Retriever, as_reader

Setting = str | Mapping[str, Any]
"""A word such as ``"embedded"``, or a mapping such as ``{"model": "Qwen/Qwen3-4B", "device": "cuda"}``."""

_LOCAL: Final = (
    "device", "dtype", "attn_implementation", "chat_template", "template_options", "max_batch_tokens",
    "min_shared_prefix", "window", "end_tokens", "max_tokens", "thinking", "thinking_tokens", "engine",
    "kept_prompt_bytes",
)  # fmt: skip
"""What ``TransformersReader.from_pretrained`` takes. Its module loads torch, which the machine that drives
workers need not have."""
_FORMS: Final[Mapping[str, str]] = {
    "reader": '"embedded", {"model": "a Hugging Face id or path"}, {"base_url": "http://…/v1", "model": "…"}',
    "encoder": '"minilm", "hashing", {"model": "a sentence-transformers id or path"}',
    "entailer": '"judge", "exact", "nli", {"model": "the id or path of a classifier"}',
    "retriever": '{"passages": "a Parquet file or folder"}, {"index": "a folder of DiskSummaryIndex"}',
}

Make = Callable[["Parts"], Any]

_SHARED: WeakValueDictionary[str, Any] = WeakValueDictionary()
_LOCK = RLock()


class Parts:
    """Services by their names; each is loaded when it is first asked for, and kept.

    Args:
        settings: A setting for each; None leaves a service out.

    Raises:
        ConfigurationError: If one names nothing that can be made, or holds a key.
    """

    def __init__(self, settings: Mapping[str, Setting | None]) -> None:
        self._settings = settings
        self._makers = {name: _maker(name, one) for name, one in settings.items() if one is not None}
        self._made: dict[str, Any] = {}
        for name in ("retriever", "summaries"):
            one = settings.get(name)
            if isinstance(one, Mapping) and ("passages" in one or "index" in one):
                self.require("encoder", f"{name}={next(iter(one))!r}")

    def __contains__(self, name: str) -> bool:
        return name in self._makers

    def require(self, name: str, owner: str) -> None:
        """Check that a service is there.

        Raises:
            MissingServiceError: Naming who needs it.
        """
        if name not in self:
            hint = f"pass {name}=…: {_FORMS[_like(name)]}"
            raise MissingServiceError(f"{owner} needs: {name}", hint=hint)

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._shared(name)
        return self._made[name]

    def _shared(self, name: str) -> Any:
        """Return what others in this process made of the same setting, while one of them is there."""
        key = json.dumps([_like(name), self._settings[name]], sort_keys=True)
        if _like(name) == "retriever" or self._settings[name] == "judge":  # made of other parts
            return self._makers[name](self)
        with _LOCK:
            found = _SHARED.get(key)
            if found is None:
                found = _SHARED[key] = self._makers[name](self)
            return found


def plain_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in terms of JSON, so that they can be shipped, shown and written down.

    Raises:
        ConfigurationError: If one of them is a living object or a function.
    """
    return {name: _plain(name, value) for name, value in given.items()}


def _plain(name: str, value: Any) -> Any:
    if callable(value) or (
        hasattr(value, "__dict__") and not is_dataclass(value) and not isinstance(value, Mapping)
    ):
        raise ConfigurationError(
            f"{name} must be plain values, and is {_article_of(value)}",
            hint="settings travel to workers, which build what they name; a function of your own that makes "
            f'it is named so: {name}={{"factory": "module:function"}}',
        )
    told = plain(value)
    if isinstance(told, Mapping):
        return {str(key): _plain(f"{name}.{key}", item) for key, item in told.items()}
    if isinstance(told, list):
        return [_plain(name, item) for item in told]
    try:
        json.dumps(told)
    except TypeError as error:
        raise ConfigurationError(f"{name} must be plain values: {error}") from error
    return told


def _article_of(value: Any) -> str:
    return "a function" if inspect.isroutine(value) else f"a {type(value).__name__}"


def _like(name: str) -> str:
    return {"rewriter": "reader", "summaries": "retriever"}.get(name, name)


def _maker(name: str, setting: Setting) -> Make:
    """Return who makes a service, having checked what is said of it."""
    given: Mapping[str, Any] = {"": setting} if isinstance(setting, str) else setting
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{name} must be {_FORMS[_like(name)]}, got {setting!r}")
    _refuse_secrets(name, given)
    if "factory" in given:
        return _from_factory(name, given)
    find = {"reader": _reader, "encoder": _encoder, "entailer": _entailer, "retriever": _retriever}[
        _like(name)
    ]
    found = find(name, given)
    if found is None:
        raise ConfigurationError(
            f"{name} must be one of {_FORMS[_like(name)]}; got {setting!r}",
            hint=f'{{"factory": "module:function"}} makes {name} by a function of your own',
        )
    return found


def _refuse_secrets(name: str, given: Mapping[str, Any]) -> None:
    from surerag.readers.openai.secrets import secrets_of_body, secrets_of_url

    if any(secrets_of_body(given)) or any(secrets_of_url(str(given.get("base_url", "")))):
        raise ConfigurationError(
            f"the settings of {name} hold a key or a password, and settings are shipped and shown",
            hint="leave it out, and name the environment variable of the workers that holds it: api_key_env",
        )


def _rest(name: str, given: Mapping[str, Any], kind: str, known: Iterable[str]) -> dict[str, Any]:
    """Return what a mapping says besides its kind, names checked."""
    check_among([kind, *known], given, name)
    return {key: value for key, value in given.items() if key != kind}


def _takes(function: Callable[..., Any]) -> set[str]:
    """Return what a function can be told in plain values."""
    living = {"api_key", "client", "async_client", "model", "id_or_path"}
    return set(inspect.signature(function).parameters) - living


def _reader(name: str, given: Mapping[str, Any]) -> Make | None:
    if given.get("") in ("embedded", "embedded:small"):
        size: Any = "small" if given[""] == "embedded:small" else "default"
        return lambda _: _embedded(size)
    if "base_url" in given:
        return _server(name, given)
    if "model" in given:
        options = _rest(name, given, "model", _LOCAL)
        return lambda _: _local(given["model"], options)
    return None


def _embedded(size: Any) -> BaseReader:
    from surerag.world import embedded_reader

    return embedded_reader(size)


def _local(model: str, options: Mapping[str, Any]) -> BaseReader:
    from surerag.readers.transformers import TransformersReader

    return TransformersReader.from_pretrained(model, **options)


def _server(name: str, given: Mapping[str, Any]) -> Make:
    from surerag.readers.openai import OpenAIReader

    own = {"api_key_env": DEFAULT_KEY, "probe": True}
    options = _rest(name, given, "model", {*_takes(OpenAIReader), *own})
    if not isinstance(given.get("model"), str):
        raise ConfigurationError(
            f"{name} names the server {given['base_url']} and no model",
            hint='add "model": the name by which the server knows it',
        )
    told = {key: options.pop(key, value) for key, value in own.items()}

    def connected(_: Parts) -> BaseReader:
        reader = OpenAIReader(given["model"], api_key=key_from(str(told["api_key_env"])), **options)
        if told["probe"]:
            reader.probe()
        return reader

    return connected


def _encoder(name: str, given: Mapping[str, Any]) -> Make | None:
    if given.get("") in ("minilm", "hashing"):
        return lambda _: packaged_minilm() if given[""] == "minilm" else HashingEncoder()
    if "model" in given:
        options = _rest(name, given, "model", _takes(SentenceTransformerEncoder))
        return lambda _: SentenceTransformerEncoder(given["model"], **options)
    return None


def _entailer(name: str, given: Mapping[str, Any]) -> Make | None:
    if given.get("") in ("judge", "exact"):
        return lambda parts: JudgeEntailer(parts["reader"]) if given[""] == "judge" else ExactEntailer()
    if given.get("") == "nli" or "model" in given:
        options = {} if "" in given else _rest(name, given, "model", _takes(NLIEntailer.from_pretrained))
        model = () if "" in given else (given["model"],)
        # What was judged in another batch would be known to one worker and not to another; the last digits of
        # a judgement differ with the batch.
        return lambda _: NLIEntailer.from_pretrained(*model, **{"cached_pairs": 0, **options})
    return None


def _retriever(name: str, given: Mapping[str, Any]) -> Make | None:
    if name == "summaries" and "text" in given:
        options = _rest(name, given, "text", ())
        return lambda _: given["text"]
    if "index" in given:
        from surerag.retrieval import DiskSummaryIndex

        options = _rest(name, given, "index", _takes(DiskSummaryIndex) - {"folder", "encoder"})
        return lambda parts: DiskSummaryIndex(given["index"], parts["encoder"], **options)
    if "passages" in given:
        from surerag.scale.batch_passages import FIELDS, passage_index

        options = _rest(name, given, "passages", ("k", "columns"))
        check_among(FIELDS, options.get("columns", {}), f"{name}'s columns")
        return lambda parts: passage_index(given["passages"], parts["encoder"], **options)
    return None


class _Kind(NamedTuple):
    protocol: type
    takes: Callable[[Any], Any]


def _itself(made: Any) -> Any:
    return made


_KINDS: Final[Mapping[str, _Kind]] = {
    "reader": _Kind(object, as_reader),
    "encoder": _Kind(Encoder, _itself),
    "entailer": _Kind(Entailer, _itself),
    "retriever": _Kind(Retriever, _itself),
}


def _from_factory(name: str, given: Mapping[str, Any]) -> Make:
    factory = Factory.parsed(f"the factory of {name}", str(given["factory"]))
    arguments = {key: value for key, value in given.items() if key != "factory"}
    kind = _KINDS[_like(name)]
    hint = (
        'its module has to be importable on every worker; Ray ships one with runtime_env={"working_dir": "."}'
    )
    return lambda _: kind.takes(factory.make(kind.protocol, hint=hint, **arguments))
