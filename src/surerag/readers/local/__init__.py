"""Any causal language model of the ``transformers`` library, in this process, with exact entropies.

``model`` loads and runs a model, ``cache`` holds keys and values, ``sampling`` chooses tokens,
``sequences`` is one growing answer and ``engine`` many, ``chat`` encodes prompts, and ``reader`` is the
public class.
"""

from __future__ import annotations

from surerag.errors import extra

with extra("transformers"):
    from surerag.readers.local.reader import TransformersReader

__all__ = ["TransformersReader"]
