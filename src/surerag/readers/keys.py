"""Keys of servers, from the environment of the process that asks them."""

from __future__ import annotations

import os

from surerag.errors import ConfigurationError

DEFAULT_KEY = "OPENAI_API_KEY"


def key_from(name: str) -> str | None:
    """Return the key that an environment variable holds; None where the usual one is not set.

    Raises:
        ConfigurationError: If another one than the usual is not set.
    """
    key = os.environ.get(name)
    if key is None and name != DEFAULT_KEY:
        raise ConfigurationError(
            f"the environment variable {name} is not set",
            hint="set it to the server's key, or leave the option out",
        )
    return key
