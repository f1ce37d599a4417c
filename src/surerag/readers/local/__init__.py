"""Any causal language model of the ``transformers`` library, in this process, with exact entropies.

``model`` loads and runs a model, ``cache`` holds keys and values, ``sampling`` chooses tokens,
``sequences`` is one growing answer and ``engine`` many, ``chat`` encodes prompts, and ``reader`` is the
public class. The room is larger than most: thoughts are separated from answers, control tokens in documents
stay text, batches that do not fit are halved, callers can cancel, and models without keys and values have
an engine of their own.
"""

from __future__ import annotations

from surerag.errors import MissingExtraError

try:
    from surerag.readers.local.reader import TransformersReader
except ImportError as error:
    if (error.name or "").split(".")[0] not in {"torch", "transformers", "tokenizers", "jinja2"}:
        raise
    raise MissingExtraError(
        f"TransformersReader needs {error.name}, which is not installed",
        hint='install it with: pip install "surerag[transformers]"',
    ) from error

__all__ = ["TransformersReader"]
