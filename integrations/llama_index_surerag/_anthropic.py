"""LlamaIndex's ``Anthropic``: text alone; of the parameters that it would send, refused ones are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_index_surerag._lent import standing_in
from llama_index_surerag.dialects import LLMDialect
from surerag.readers.hosted.loops import client_of_this_loop

_SAMPLING = frozenset({"temperature", "top_p", "top_k"})
_PATH = ("messages", "create")


class AnthropicDialect(LLMDialect):
    """Claude: how it samples can be said; how long it may answer is the LLM's own ``max_tokens``.

    That limit holds thoughts as well, and has to exceed their budget, so that none of a method's is sent.
    """

    takes = _SAMPLING

    def built(self, llm: Any) -> Mapping[str, Any]:
        """Return the LLM's temperature, where it is not the class's, and its ``additional_kwargs``."""
        given = {name: value for name, value in llm.additional_kwargs.items() if name in _SAMPLING}
        return {**super().built(llm), **given}

    def view(self, llm: Any, parameters: Mapping[str, Any]) -> Any:
        """Return a copy whose client sends the parameters, and none in their place."""
        copy = llm.model_copy()

        def wrapped(target: Any) -> Any:
            return lambda **body: target.create(**_edited(body, parameters))

        copy._client = standing_in(llm._client, _PATH, wrapped)
        return copy

    async def aview(self, llm: Any, parameters: Mapping[str, Any]) -> Any:
        """Like ``view``, with connections of the running event loop's own."""
        copy = llm.model_copy()

        def wrapped(target: Any) -> Any:
            async def create(**body: Any) -> Any:
                return await target.create(**_edited(body, parameters))

            return create

        copy._aclient = standing_in(_here(llm._aclient), _PATH, wrapped)
        return copy


def _here(client: Any) -> Any:
    """Return a client of the running loop's own; the newest SDK brings an HTTP client of another kind."""
    kinds = type(client._client).__mro__
    return client_of_this_loop(client) if any(kind.__module__ == "httpx" for kind in kinds) else client


def _edited(body: dict[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    ours = dict(parameters)
    if ours.get("top_p") == 1:
        # The service's default; from Opus 4.1 on it is refused beside a temperature.
        del ours["top_p"]
    if "temperature" not in body and "temperature" in ours and ours["temperature"] == 0:
        # The LLM knows that this model takes none.
        del ours["temperature"]
    return {**{name: value for name, value in body.items() if name not in _SAMPLING}, **ours}
