"""Pickles components without the API keys of the models, retrievers and stores inside them.

When a pickle is loaded, clients read their keys from environment variables, as LlamaIndex's own classes do.
"""

from __future__ import annotations

import copyreg
import pickle
from copy import copy
from functools import partial
from io import BytesIO
from typing import Any, Self

from llama_index.core.data_structs.data_structs import IndexStruct
from llama_index.core.schema import BaseComponent, BaseNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.vector_stores.simple import SimpleVectorStoreData
from pydantic import SecretStr

from surerag.options import Options
from surerag.readers import is_secret_name, without_credentials

_DATA = (BaseNode, IndexStruct, SimpleKVStore, SimpleVectorStoreData)
"""Classes whose objects hold data and no client; they may be large, and are pickled as usual."""
_OWN_PACKAGES = {"llama_index", "llama_index_surerag", "surerag"}


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type):
            return NotImplemented
        if isinstance(value, partial):
            reduced: Any = value.__reduce__()
            return *reduced[:2], _without_keys(reduced[2])
        own: Any = type(value)
        if isinstance(value, WithoutKeys) and isinstance(value, Options):
            # The object is built again from its options, without callbacks, which belong to this process.
            names = value.model_fields_set - {"callback_manager"}
            return partial(own, **{name: getattr(value, name) for name in names}), ()
        if isinstance(value, _DATA) or own.__reduce_ex__ is not object.__reduce_ex__:
            return NotImplemented
        is_plain = own.__reduce__ in (object.__reduce__, WithoutKeys.__reduce__)
        modules = {kind.__module__.split(".")[0] for kind in own.__mro__}
        if not is_plain or (modules.isdisjoint(_OWN_PACKAGES) and not isinstance(value, BaseComponent)):
            return NotImplemented
        # A value such as a named tuple has no separate state.
        if isinstance(value, tuple) or not hasattr(value, "__dict__"):
            return NotImplemented
        # A copy, because __getstate__ of LlamaIndex's components deletes fields that cannot be pickled.
        state = (copy(value) if isinstance(value, BaseComponent) else value).__getstate__()
        return copyreg.__newobj__, (own,), _without_keys(state)  # type: ignore[attr-defined]  # of copyreg


def _without_keys(value: Any, name: object = "") -> Any:
    """Return a copy of an object's state in which API keys are None and URLs have no passwords."""
    if isinstance(value, str | SecretStr) and value and name != "key" and is_secret_name(name):
        return None  # a field called "key" is no API key: it names the metadata field of a filter
    if isinstance(value, str):
        return without_credentials(value)
    if type(value) is dict:
        return {name: _without_keys(item, name) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_without_keys, value))
    return value


class WithoutKeys:
    """A mixin that keeps API keys out of the pickles of an object.

    In a class statement, list the mixin before other bases, because its ``__reduce__`` must be used.
    """

    def __reduce__(self) -> Any:
        written = BytesIO()
        _Pickler(written).dump(self)
        return pickle.loads, (written.getvalue(),)


class Shareable(WithoutKeys):
    """A mixin for classes whose copies share the models of the original, and so the models' API keys.

    Pickles hold no API keys.
    """

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: object) -> Self:
        return self.__copy__()
