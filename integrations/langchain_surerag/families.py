"""Families of LangChain's models: how a family takes settings, and where it returns log-probabilities."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable

from surerag.errors import ConfigurationError

Settings = Mapping[str, Any]
"""Settings of a request under the names of OpenAI's API: temperature, top_p, max_tokens, seed, stop, n,
logprobs, top_logprobs …"""

WAYS_OUT = (
    'pass gate="abstention" (L-RAG) or metric="semantic_entropy" (DynQR), which need text only; or '
    'surerag.OpenAIReader("model", base_url=…) or '
    "surerag.TransformersReader(model, tokenizer) in the model's place"
)
_LIMITS = (
    "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_tokens_to_sample",
    "num_predict",
)  # fmt: skip
"""Names of the fields of LangChain's model classes that limit the length of an answer, in tokens."""


@dataclass(frozen=True)
class ModelFamily:
    """LangChain's model classes that take the same settings and return log-probabilities in the same place.

    Attributes:
        classes: Full names of the classes; classes that derive from them also belong to the family.
        keywords: Function from settings and a model to keyword arguments of the model's ``invoke``.
        logprobs: Key of the log-probabilities in a message's metadata; None if the models return none.
        takes_n: Whether one request can ask for several answers.
        most_top: Maximum number of alternatives that a reply can list for each token.
        has_finish: Whether every answer has a finish reason, so that a stream without a finish reason was cut
            off.
        limits: Names of the fields that limit the length of an answer, in a model or its ``pipeline_kwargs``.
        advice: What to do if log-probabilities are needed and the models return none; a hint in errors.
    """

    classes: tuple[str, ...]
    keywords: Callable[[Settings, Any], dict[str, Any]]
    logprobs: str | None = None
    takes_n: bool = False
    most_top: int = 20
    has_finish: bool = False
    limits: tuple[str, ...] = _LIMITS
    advice: str = WAYS_OUT


def _openai_keywords(settings: Settings, model: Any) -> dict[str, Any]:
    keywords = dict(settings)
    if keywords.pop("stream_options", None):
        keywords["stream_usage"] = True
    return keywords


def _completions_keywords(settings: Settings, model: Any) -> dict[str, Any]:
    keywords = _openai_keywords(settings, model)
    if keywords.pop("logprobs", False):
        keywords["logprobs"] = keywords.pop("top_logprobs", 1)
    return keywords


_OLLAMA_OPTIONS = (
    "mirostat mirostat_eta mirostat_tau num_ctx num_gpu num_thread num_predict repeat_last_n repeat_penalty "
    "temperature seed stop tfs_z top_k top_p"
).split()


def _ollama_keywords(settings: Settings, model: Any) -> dict[str, Any]:
    # A call's options replace all options of the model, so the model's values are sent with the call.
    own = {name: getattr(model, name, None) for name in _OLLAMA_OPTIONS}
    requested = {name: settings[name] for name in ("logprobs", "top_logprobs") if name in settings}
    options = {name: value for name, value in own.items() if value is not None}
    for name in settings.keys() - {*requested, "n", "stream_options"}:
        options["num_predict" if name == "max_tokens" else name] = settings[name]
    return {**requested, "options": options}


def _gemini_keywords(settings: Settings, model: Any) -> dict[str, Any]:
    apart = ("n", "logprobs", "stream_options")
    keywords = {name: value for name, value in settings.items() if name not in apart}
    if "max_tokens" in keywords:
        keywords["max_output_tokens"] = keywords.pop("max_tokens")
    if settings.get("logprobs"):
        keywords["logprobs"] = keywords.pop("top_logprobs", 1)
        keywords["response_logprobs"] = True
    return keywords


def _pipeline_keywords(settings: Settings, model: Any) -> dict[str, Any]:
    # A call's keywords replace all keywords of the pipeline, so the pipeline's are sent with the call.
    keywords = dict(getattr(getattr(model, "llm", model), "pipeline_kwargs", None) or {})
    if drawn := settings.get("temperature"):
        keywords |= {"do_sample": True, "temperature": drawn}
    if "max_tokens" in settings:
        keywords["max_new_tokens"] = settings["max_tokens"]
    return {"pipeline_kwargs": keywords}


def _text_keywords(settings: Settings, model: Any) -> dict[str, Any]:
    keywords = {"temperature": settings["temperature"]} if settings.get("temperature") else {}
    if "max_tokens" in settings and (name := limit_name(model)):
        keywords[name] = settings["max_tokens"]
    return keywords | ({"stop": settings["stop"]} if "stop" in settings else {})


def limit_name(model: object) -> str:
    """Return the name of the field that limits the length of a model's answers; empty if there is none."""
    fields = getattr(type(model), "model_fields", {})
    return next((name for name in _LIMITS if name in fields), "")


OPENAI = ModelFamily(
    (
        "langchain_openai.chat_models.base.BaseChatOpenAI",
        "langchain_openai.ChatOpenAI",
        "langchain_openai.AzureChatOpenAI",
        "langchain_fireworks.ChatFireworks",
        "langchain_openrouter.ChatOpenRouter",
        "langchain_together.ChatTogether",
    ),
    _openai_keywords,
    "logprobs",
    takes_n=True,
    has_finish=True,
    advice="build the model with use_responses_api=False: the Responses API drops log-probabilities; or "
    f"{WAYS_OUT}",
)
COMPLETIONS = ModelFamily(
    ("langchain_openai.llms.base.BaseOpenAI",),
    _completions_keywords,
    "logprobs",
    takes_n=True,
    most_top=5,
    has_finish=True,
)
OLLAMA = ModelFamily(
    ("langchain_ollama.ChatOllama",),
    _ollama_keywords,
    "logprobs",
    has_finish=True,
    limits=("num_predict",),
    advice=f"update Ollama to 0.12.11 or later and langchain-ollama to 1.1 or later; or {WAYS_OUT}",
)
GEMINI = ModelFamily(
    ("langchain_google_genai.ChatGoogleGenerativeAI",),
    _gemini_keywords,
    "logprobs_result",
    has_finish=True,
    limits=("max_output_tokens", "max_tokens"),
)
PIPELINE = ModelFamily(
    ("langchain_huggingface.HuggingFacePipeline",),
    _pipeline_keywords,
    advice="LangChain returns only the text of a Hugging Face pipeline: pass "
    "surerag.TransformersReader(llm.pipeline.model, llm.pipeline.tokenizer) in its place (for a "
    'ChatHuggingFace, llm.llm.pipeline); or gate="abstention" or metric="semantic_entropy", which need '
    "only text",
)
TEXT = ModelFamily((), _text_keywords, advice=f"only the model's text can be used; {WAYS_OUT}")
FAMILIES = (OPENAI, COMPLETIONS, OLLAMA, GEMINI, PIPELINE)


_USUAL_RETRIES = 2
_find = lru_cache(find_spec)


def _is_a(kind: type, path: str) -> bool:
    """Whether a class derives from the class with the dotted path ``path``.

    If the package of ``path`` is not installed, only the names of classes are compared.
    """
    module, _, name = path.rpartition(".")
    if module not in sys.modules and _find(module.partition(".")[0]) is None:
        return name in {one.__name__ for one in kind.__mro__}
    base = getattr(sys.modules.get(module), name, None)
    return base is not None and issubclass(kind, base)


@lru_cache(maxsize=256)
def _family_of_class(kind: Any, later: str | None) -> ModelFamily:
    """Return the family of a class; ``later`` names the class that ``init_chat_model`` will create."""
    for family in FAMILIES:
        if any(_is_a(kind, path) or path.rpartition(".")[2] == later for path in family.classes):
            return family
    return TEXT


@dataclass(frozen=True)
class Leaf:
    """A model that was found inside wrappers.

    Attributes:
        model: The model.
        bound: Keyword arguments that the wrappers pass to the model.
        retried: Whether a wrapper repeats a failed call of the model.
    """

    model: Any
    bound: Mapping[str, Any]
    retried: bool = False

    @property
    def class_name(self) -> str:
        """Name of the model's class; for a model of ``init_chat_model``, the class of the default model."""
        if isinstance(self.model, BaseLanguageModel):
            return type(self.model).__name__
        names: list[str] = self.model.lc_id()
        return names[-1]

    @property
    def family(self) -> ModelFamily:
        """The family of the model; a ChatHuggingFace has the family of the LLM inside it."""
        family = self._family()
        responses = self.setting("use_responses_api") or self.setting("output_version") == "responses/v1"
        if family is OPENAI and responses:
            return replace(TEXT, advice=OPENAI.advice)
        if family is TEXT and self.bound.get("logprobs"):
            return OPENAI
        return family

    def _family(self) -> ModelFamily:
        model = self.model
        if _is_a(type(model), "langchain_huggingface.ChatHuggingFace"):
            model = getattr(model, "llm", None)
        kind: Any = type(model)
        later = None if isinstance(model, BaseLanguageModel) else self.class_name
        return _family_of_class(kind, later)

    def setting(self, *names: str) -> Any:
        """Return the user's value of a setting, or None; ``names`` are the setting's possible names."""
        own = getattr(self.model, "model_fields_set", ())
        for name in names:
            if self.bound.get(name) is not None:
                return self.bound[name]
            if name in own and getattr(self.model, name, None) is not None:
                return getattr(self.model, name)
        return None

    @property
    def limit(self) -> int | None:
        """The user's maximum length of an answer, in tokens; None if the user set none."""
        held = getattr(getattr(self.model, "llm", self.model), "pipeline_kwargs", None) or {}
        limit = self.setting(*self.family.limits) or held.get("max_new_tokens")
        return limit if isinstance(limit, int) and limit > 0 else None

    @property
    def retries(self) -> int:
        """How often the model's client repeats a failed request; ``max_retries=None`` means twice."""
        own = getattr(self.model, "max_retries", 0)
        return _USUAL_RETRIES if own is None else own if isinstance(own, int) else 0

    @property
    def name(self) -> str:
        """Identity of the model: its class, name and address, without credentials."""
        named = (getattr(self.model, one, None) for one in ("model_name", "model", "model_id", "repo_id"))
        model = next((name for name in named if isinstance(name, str) and name), "")
        addresses = (getattr(self.model, one, None) for one in ("openai_api_base", "base_url"))
        address = next((url for url in addresses if isinstance(url, str) and url), "")
        host = address.split("?")[0].split("//")[-1].split("@")[-1].rstrip("/")
        return f"{self.class_name}({model}{'@' if host else ''}{host})"


def leaves(
    model: object,
    chosen: Mapping[str, Any] | None = None,
    bound: Mapping[str, Any] | None = None,
    *,
    retried: bool = False,
) -> Iterator[Leaf]:
    """Yield the models inside bindings, retries, fallbacks and configurable alternatives.

    Args:
        model: A model, or a runnable that contains models.
        chosen: Values of configurable fields, from the config.
        bound: Keywords that outer bindings set.
        retried: Whether an outer runnable repeats failed calls.
    """
    chosen, bound = chosen or {}, bound or {}
    match model:
        case BaseLanguageModel():
            yield Leaf(model, bound, retried)
        case RunnableBindingBase():
            again = retried or hasattr(model, "max_attempt_number")
            chosen = {**(model.config.get("configurable") or {}), **chosen}
            yield from leaves(model.bound, chosen, {**bound, **model.kwargs}, retried=again)
        case RunnableWithFallbacks() | DynamicRunnable():
            bound = {**bound, **_configured(model, chosen)}
            for one in inner_runnables(model):
                yield from leaves(one, chosen, bound, retried=retried)
        case Runnable() if type(model).__name__ == "_ConfigurableModel":
            # A configurable model of init_chat_model is treated as its default model.
            prefix: str = getattr(model, "_config_prefix", "")
            own = {name.removeprefix(prefix): value for name, value in chosen.items()}
            yield Leaf(model, {**bound, **own}, retried)
        case _:
            raise ConfigurationError(
                f"expected a chat model or an LLM, got {type(model).__name__}",
                hint="pass the model itself, without prompt or output parser; bind, with_config, with_retry, "
                "with_fallbacks and configurable_fields may be around it",
            )


def _configured(model: object, chosen: Mapping[str, Any]) -> dict[str, Any]:
    configured = {}
    for name, field in getattr(model, "fields", {}).items():
        if field.id in chosen:
            value, options = chosen[field.id], getattr(field, "options", None)
            configured[name] = options.get(value) if options and isinstance(value, str) else value
    return configured


def inner_runnables(runnable: object) -> list[Runnable[Any, Any]]:
    """Return the runnables inside a binding, fallbacks, or configurable fields and alternatives."""
    match runnable:
        case RunnableBindingBase():
            return [runnable.bound]
        case RunnableWithFallbacks():
            return [*runnable.runnables]
        case DynamicRunnable():
            others = getattr(runnable, "alternatives", {}).values()
            return [runnable.default, *(one for one in others if isinstance(one, Runnable))]
        case _:
            return []


def unbound(model: Any) -> tuple[Any, dict[str, Any], list[Any]]:
    """Return the model inside bindings, the keywords that the bindings add, and the bindings' configs.

    The config of the outermost binding is the last. A binding that computes its config is not unwrapped.
    """
    keywords: dict[str, Any] = {}
    configs: list[Any] = []
    while type(model).__name__ == "RunnableBinding" and not model.config_factories:
        keywords = {**model.kwargs, **keywords}
        configs.insert(0, model.config)
        model = model.bound
    return model, keywords, configs


def family_of(models: Sequence[Leaf], logprobs: bool | None) -> ModelFamily:
    """Return the family to which all models belong, or else a family that returns only text.

    If ``logprobs`` is True, OpenAI's family is returned instead of a family that returns only text.
    """
    families = list(dict.fromkeys(leaf.family for leaf in models))
    if len(families) == 1 and (families[0].logprobs is not None or not logprobs):
        return families[0]
    if logprobs:
        return OPENAI
    lacking = next((family for family in families if family.logprobs is None), TEXT)
    return replace(TEXT, advice=lacking.advice)
