"""Base classes of the LangChain components: options as fields, surerag's method, and serialisation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, cast

from langchain_core.load import dumpd
from langchain_core.load.serializable import Serializable, SerializedConstructor, SerializedNotImplemented
from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import ConfigurableFieldSpec, get_unique_config_specs
from pydantic import Field, InstanceOf, PrivateAttr, field_serializer, field_validator, model_validator

from langchain_surerag.prompts import plain_prompt, prompt_of
from surerag.errors import MissingServiceError
from surerag.options import Options
from surerag.readers import ClientReader, is_secret_name, without_credentials
from surerag.signatures import INTERNAL


def service_field(description: str) -> Any:
    """Return a pydantic field for a model, retriever or encoder; ``repr`` and ``model_dump`` omit it."""
    return Field(None, exclude=True, repr=False, description=description)


class Part(Options, ABC):
    """A LangChain class whose fields are a method's options; it builds the method from these fields."""

    learned: Annotated[InstanceOf[dict[str, Any]], INTERNAL] = Field(
        default_factory=dict, exclude=True, repr=False
    )
    """What the reader has learned about its model's API, such as rejected settings; all copies share it."""
    _core: Any = PrivateAttr(None)

    @property
    def core(self) -> Any:
        """The surerag method of this component, with options and services (model, retriever, encoder …)."""
        return self._core

    @abstractmethod
    def _make_core(self) -> Any:
        """Build the method from its options and services, and check them."""

    @model_validator(mode="after")
    def _build_core(self) -> Self:
        self._core = None if getattr(self, "detached", ()) else self._make_core()
        reader = getattr(getattr(self._core, "services", None), "reader", None)
        if isinstance(reader, ClientReader) and reader is not getattr(self, "llm", None):
            reader.learned = self.learned.setdefault(reader.name, reader.learned)
        return self

    @field_validator("prompts", mode="before", check_fields=False)
    @classmethod
    def _replace_prompts(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            value = {name: prompt_of(name, prompt) for name, prompt in value.items()}
        return super()._replace_prompts(value)

    @field_validator("threshold", mode="before", check_fields=False)
    @classmethod
    def _policy_from_settings(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        from surerag import ThresholdPolicy

        return ThresholdPolicy.from_dict(value)

    @field_serializer("prompts", check_fields=False)
    def _prompt_texts(self, value: Mapping[str, Any]) -> dict[str, Any]:
        return {name: plain_prompt(prompt) for name, prompt in value.items()}


class SerializablePart(Part, Serializable):
    """A component that LangChain can serialise; a service that LangChain cannot serialise is left out."""

    SERVICES: ClassVar[tuple[str, ...]] = ()

    detached: Annotated[tuple[str, ...], INTERNAL] = ()
    """Names of the models and retrievers that serialisation left out."""

    @property
    def core(self) -> Any:
        """The surerag method of this component, with options and services (model, retriever, encoder …).

        Raises:
            MissingServiceError: If serialisation left a service out, and :meth:`attach` has not added it.
        """
        for name in self.detached:
            raise MissingServiceError(
                f"this {type(self).__name__} was loaded without its {name}", hint=f"call attach({name}=…)"
            )
        return self._core

    def attach(self, **services: Any) -> Self:
        """Return a copy that uses these models and retrievers, for example after serialisation left them out.

        Raises:
            ConfigurationError: If a name is unknown.
            MissingServiceError: If a model or retriever is still missing.
        """
        missing = tuple(name for name in self.detached if name not in services)
        return self.with_options(detached=missing, **services)

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """The configurable fields of the models and retrievers of this component."""
        services = [getattr(self, name) for name in self.SERVICES]
        return get_unique_config_specs(
            spec for service in services if isinstance(service, Runnable) for spec in service.config_specs
        )

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Return True, because ``dumps`` and ``loads`` support this class."""
        return True

    def to_json(self) -> SerializedConstructor | SerializedNotImplemented:
        """Return LangChain's serialised form; its entry ``detached`` names omitted services."""
        services = {name: getattr(self, name) for name in self.SERVICES if getattr(self, name) is not None}
        loadable = {name: _without_keys(one) for name, one in services.items() if _loads_again(one)}
        left = [name for name in services if name not in loadable]
        detached = tuple(dict.fromkeys([*self.detached, *left]))
        options = self.model_dump(mode="json", include=set(self.option_names()) & self.model_fields_set)
        written: Any = super().to_json()
        others = {name: value for name, value in written["kwargs"].items() if name not in self.option_names()}
        written["kwargs"] = {**others, **options, **loadable, **({"detached": detached} if detached else {})}
        return cast("SerializedConstructor", written)


def _loads_again(service: object) -> bool:
    if isinstance(service, str):
        return True
    return isinstance(service, Serializable) and not _is_lossy(dumpd(service))


def _without_keys(value: Any) -> Any:
    """Return a service without the secrets that LangChain would serialise, such as API keys in headers."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        values = {name: _without_keys(one) for name, one in value.items()}
        return {
            name: one for name, one in values.items() if not (isinstance(one, str) and is_secret_name(name))
        }
    if isinstance(value, list):
        return [_without_keys(one) for one in value]
    if isinstance(value, Serializable):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        changed = {name: _without_keys(one) for name, one in fields.items()}
        changed = {name: one for name, one in changed.items() if one is not fields[name]}
        return value.model_copy(update=changed) if changed else value
    return value


def _is_lossy(dumped: Any) -> bool:
    if isinstance(dumped, dict):
        return dumped.get("type") == "not_implemented" or any(map(_is_lossy, dumped.values()))
    return isinstance(dumped, list) and any(map(_is_lossy, dumped))
