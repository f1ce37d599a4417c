"""Any causal language model of the ``transformers`` library, in this process, with exact entropies."""

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
