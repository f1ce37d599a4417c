"""Any causal language model of the ``transformers`` library, in this process, with exact entropies.

The module ``model`` loads and runs a model, ``cache`` holds keys and values, ``sampling`` chooses tokens,
``sequences`` keeps a growing answer, ``engine`` grows many answers, ``chat`` encodes prompts, and ``reader``
has the public class.
"""

from __future__ import annotations

from surerag.errors import extra

with extra("transformers"):
    from surerag.readers.local.reader import TransformersReader

__all__ = ["TransformersReader"]
