"""Judgements that a model has made before, kept between calls."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surerag.messages import Pair

Row = NDArray[np.float64]


class Judgements:
    """Rows of probabilities by pair, for a model as it is now. Thread-safe.

    They belong to the model object: entailers over the same one share them. Whatever changes the model's
    weights in place, or moves them to another device or dtype, makes all of them void.
    """

    def __init__(self, tokenizer: object) -> None:
        # Held, so that no other one comes to have its identity.
        self._tokenizer = tokenizer
        self._rows: OrderedDict[Pair, Row] = OrderedDict()
        self._state: Hashable = None
        self._lock = threading.Lock()

    def known(self, pairs: Iterable[Pair], state: Hashable) -> dict[Pair, Row]:
        """Return the rows of those pairs that were judged in this state of the model."""
        with self._lock:
            if state != self._state:
                self._rows.clear()
                self._state = state
            found = {pair: self._rows[pair] for pair in pairs if pair in self._rows}
            for pair in found:
                self._rows.move_to_end(pair)
            return found

    def keep(self, rows: Mapping[Pair, Row], state: Hashable, most: int) -> None:
        """Keep rows, if the model is still as it was; of more than ``most``, those that were used last."""
        with self._lock:
            if state != self._state:
                return
            self._rows.update(rows)
            while len(self._rows) > most:
                self._rows.popitem(last=False)


_judgements: weakref.WeakKeyDictionary[Any, dict[Hashable, Judgements]] = weakref.WeakKeyDictionary()


def judgements_of(model: Any, tokenizer: object) -> Judgements:
    """Return what a model has judged before, of texts that this tokenizer cut."""
    return _judgements.setdefault(model, {}).setdefault(id(tokenizer), Judgements(tokenizer))


def state_of(model: Any) -> Hashable:
    """Return what changes when a model's weights do: how often they were written to, and where they lie."""
    parameters = list(model.parameters())
    return (
        model.dtype,
        str(model.device),
        sum(parameter._version for parameter in parameters if not parameter.is_inference()),
        hash(tuple(parameter.data_ptr() for parameter in parameters)),
    )
