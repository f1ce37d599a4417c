"""Pickles without keys: those of models, retrievers and stores inside a part are left out.

Where a pickle is loaded, clients read their keys from the environment, as LlamaIndex's own classes do.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from types import MethodType
from typing import Any, Self
from weakref import WeakValueDictionary

from llama_index.core.data_structs.data_structs import IndexStruct
from llama_index.core.schema import BaseComponent, BaseNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.vector_stores.simple import SimpleVectorStoreData
from pydantic import SecretStr

from surerag.readers.failures import is_secret_name

_DATA = (BaseNode, IndexStruct, SimpleKVStore, SimpleVectorStoreData, Enum)
"""What holds no client; it may be large."""


_COPIES = WeakValueDictionary[int, Any]()
"""Copies without keys, by their own identity: they are pickled as they are."""


class WithoutKeys:
    """A mixin whose pickles hold no key; it stands before the classes that have states of their own."""

    def __getstate__(self) -> Any:
        if _COPIES.get(id(self)) is self:
            return super().__getstate__()
        return without_keys(self, {}).__getstate__()


class Shareable(WithoutKeys):
    """A mixin for plain classes: copies share the models, with their keys."""

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: object) -> Self:
        return self.__copy__()


def without_keys(value: Any, copies: dict[int, Any]) -> Any:
    """Return a copy in which every key is None.

    Args:
        value: Mappings, lists, bound methods, and objects of LlamaIndex and surerag are looked through; all
            else stays.
        copies: Those that have been made, by the identity of what they are of.

    Example:
        >>> without_keys({"model": "toy", "headers": [{"Authorization": "Bearer x", "max_tokens": 3}]}, {})
        {'model': 'toy', 'headers': [{'Authorization': None, 'max_tokens': 3}]}
    """
    if id(value) in copies:
        return copies[id(value)]
    if type(value) is dict:
        copied: Any = copies.setdefault(id(value), {})
        for name, one in value.items():
            copied[name] = None if _is_secret(name, one) else without_keys(one, copies)
    elif type(value) is list:
        copied = copies.setdefault(id(value), [])
        copied += [without_keys(one, copies) for one in value]
    elif type(value) is tuple:
        copied = tuple(without_keys(one, copies) for one in value)
    elif isinstance(value, MethodType):
        copied = MethodType(value.__func__, without_keys(value.__self__, copies))
    elif isinstance(value, partial):
        arguments = without_keys([value.args, value.keywords], {})
        copied = partial(value.func, *arguments[0], **arguments[1])
    elif _is_looked_through(value):
        copied = copies.setdefault(id(value), object.__new__(type(value)))
        if isinstance(value, WithoutKeys):
            _COPIES[id(copied)] = copied
        copied.__dict__.update(without_keys(vars(value), copies))
        if hasattr(value, "__pydantic_fields_set__"):
            for name in ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
                object.__setattr__(copied, name, without_keys(getattr(value, name), copies))
    else:
        copied = value
    return copied


def _is_secret(name: object, value: object) -> bool:
    is_text = isinstance(value, SecretStr) or (isinstance(value, str) and value != "")
    # The key of a filter names a field of metadata.
    return is_text and name != "key" and is_secret_name(name)


def _is_looked_through(value: object) -> bool:
    if isinstance(value, _DATA) or not hasattr(value, "__dict__"):
        return False
    modules = {kind.__module__.split(".")[0] for kind in type(value).__mro__}
    return isinstance(value, BaseComponent) or not modules.isdisjoint(
        {"llama_index", "llama_index_surerag", "surerag"}
    )
