"""From what the user named to a reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from surerag.errors import ConfigurationError, ServiceError
from surerag.extras import extra
from surerag.readers.keys import key_from
from surerag.readers.protocol import BaseReader

if TYPE_CHECKING:
    from surerag.readers.openai import OpenAIReader


@dataclass(frozen=True, slots=True)
class ReaderChoice:
    """Which reader the user asked for.

    Attributes:
        model: Hugging Face id or path; or the server's name for a model.
        base_url: An OpenAI-compatible server.
        api_key_env: Environment variable that holds its key.
        concurrency: Requests under way at the server, at most.
        template_options: Options of the model's chat template.
        extra_body: Further fields of every request to the server.
        thinking: False for answers without thinking; None as the model has it.
        api: What the server is asked by.
    """

    model: str | None
    base_url: str | None
    api_key_env: str
    concurrency: int = 16
    template_options: Mapping[str, Any] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    thinking: bool | None = None
    api: Literal["chat", "completions", "responses"] = "chat"

    @property
    def is_embedded(self) -> bool:
        """Whether nothing was named, so that the embedded reader is meant."""
        return self.model is None and self.base_url is None

    def build(self, *, probe: bool = True) -> BaseReader:
        """Load the model, or connect to the server and find out what it can do.

        Args:
            probe: Whether to ask a server for that; whoever needs nothing but texts need not.

        Raises:
            ConfigurationError: If there is no such model, or the server offers several and none was named.
            ServiceError: If the server does not answer.
            MissingExtraError: If the packages for it are not installed.
        """
        if self.base_url is not None:
            reader = self.connected(self.base_url)
            if probe:
                reader.probe()
            return reader
        if self.model is not None:
            return self._loaded(self.model)
        from surerag.world import embedded_reader

        return embedded_reader()

    def connected(self, base_url: str) -> OpenAIReader:
        """Return a reader at a server, which was asked nothing yet but which model it serves.

        Raises:
            ConfigurationError: If it offers several models and none was named.
            ServiceError: If it does not answer.
            MissingExtraError: If the packages for it are not installed.
        """
        from surerag.readers.openai import OpenAIReader

        key = key_from(self.api_key_env)
        template = {"chat_template_kwargs": dict(self.template_options)} if self.template_options else {}
        return OpenAIReader(
            self.model or _only_model(base_url, key),
            base_url=base_url,
            api_key=key,
            api=self.api,
            max_concurrency=self.concurrency,
            thinking=self.thinking,
            extra_body={**template, **self.extra_body},
        )

    def _loaded(self, id_or_path: str) -> BaseReader:
        from surerag.readers.transformers import TransformersReader

        options: dict[str, Any] = {}
        if self.template_options:
            options["template_options"] = self.template_options
        if self.thinking is not None:
            options["thinking"] = self.thinking
        return TransformersReader.from_pretrained(id_or_path, **options)


def _only_model(base_url: str, key: str | None) -> str:
    """Ask a server what it serves; if that is one model, it is the one that is meant."""
    with extra("openai"):
        import httpx
    try:
        answer = httpx.get(
            f"{base_url.rstrip('/')}/models",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=20,
        )
        names = [str(model["id"]) for model in answer.raise_for_status().json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise ServiceError(
            f"{base_url} does not say which models it serves: {str(error).splitlines()[0]}",
            hint="check that it runs and that its address ends in /v1, or name the model with --model",
        ) from error
    if len(names) != 1:
        raise ConfigurationError(
            f"{base_url} serves {len(names)} models: {', '.join(names[:10])}", hint="choose one with --model"
        )
    return names[0]
