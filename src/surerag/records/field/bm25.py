"""BM25 by the library bm25s, as a retriever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from surerag.errors import InputError
from surerag.extras import extra
from surerag.retrieval.index import USUAL_K, top_places
from surerag.types import Passage


class BM25Index:
    """Finds passages by their words: Lucene's BM25, English stop words left out, no stemming.

    Args:
        passages: The corpus.

    Raises:
        InputError: If there is no passage.
        MissingExtraError: If bm25s is not installed.

    Example:
        >>> index = BM25Index([Passage("Ada was born in Velm."), Passage("Bo paints rivers.")])
        >>> index.retrieve("Where was Ada born?", 1)[0].text
        'Ada was born in Velm.'
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        with extra("field-test"):
            import bm25s
        self._passages = tuple(passages)
        if not self._passages:
            raise InputError("there is nothing to index", hint="give at least one passage")
        library: Any = bm25s
        # Digits and single letters are words, too: the library leaves them out as it comes.
        pattern = r"(?u)\b\w+\b"
        self._words = partial(library.tokenize, token_pattern=pattern, return_ids=False, show_progress=False)
        self._index = library.BM25()
        self._index.index(self._words([passage.text for passage in self._passages]), show_progress=False)

    def retrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Return the ``k`` best passages with their scores, best first; equal ones in the corpus' order."""
        [words] = self._words([query])
        known = [word for word in words if word in self._index.vocab_dict]
        scores = np.zeros(len(self._passages), np.float32)
        if known:
            scores = np.asarray(self._index.get_scores(known), np.float32)
        places = top_places(scores, USUAL_K if k is None else k)
        return [replace(self._passages[place], score=float(scores[place])) for place in places]

    def retrieve_many(self, queries: Sequence[str], k: int | None = None) -> list[list[Passage]]:
        """Return what :meth:`retrieve` returns for each query."""
        return [self.retrieve(query, k) for query in queries]
