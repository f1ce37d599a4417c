"""What ``help`` and a notebook's tooltip show of every public name: readable, complete, without internals."""

from __future__ import annotations

import inspect
import pydoc
import re
from importlib import import_module
from typing import Any

import pytest
from pydantic import BaseModel

import surerag
from langchain_surerag import LazyRetrievalChain
from llama_index_surerag import LazyRetrievalQueryEngine, UncertaintyRewriteTransform
from surerag.methods.lazy_rag.options import LazyRAGOptions
from surerag.signatures import field_default, field_summary

PACKAGES = ("surerag", "langchain_surerag", "llama_index_surerag", "surerag.evaluation", "surerag.training")
PUBLIC = {
    f"{package}.{name}": value
    for package in PACKAGES
    for name in import_module(package).__all__
    if callable(value := getattr(import_module(package), name))
}
CLASSES = {
    name: value for name, value in PUBLIC.items() if inspect.isclass(value) and not issubclass(value, tuple)
}
_INTERNALS = re.compile(
    r"0x[0-9a-f]{6,}|__pydantic_(?!config)\w+|__private_attributes__|__class_vars__|_abc_impl|PydanticUndefined"
    r"|BeforeValidator|InstanceOf|SkipValidation|model_construct|<function "
)


def parameters_of(value: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a public name that surerag defines, and not the base class of a framework."""
    fields = value.model_fields if inspect.isclass(value) and issubclass(value, BaseModel) else {}
    ours = {
        name
        for base in (value.__mro__ if fields else ())
        if re.match(r"surerag|langchain_surerag|llama_index_surerag", base.__module__)
        for name in vars(base).get("__annotations__", {})
    }
    return {
        name: parameter
        for name, parameter in inspect.signature(value).parameters.items()
        if name not in fields or name in ours
    }


@pytest.mark.parametrize("name", CLASSES)
def test_help_has_no_addresses_and_no_internals(name: str) -> None:
    text = pydoc.plain(pydoc.render_doc(CLASSES[name]))
    assert sorted(set(_INTERNALS.findall(text))) == []


@pytest.mark.parametrize("name", PUBLIC)
def test_a_tooltip_names_plain_types_and_defaults(name: str) -> None:
    signature = str(inspect.signature(PUBLIC[name]))
    assert not _INTERNALS.search(signature)
    assert not re.search(r"Annotated\[|<class |\bUnion\[", signature)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_docstring_describes_every_parameter(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert re.match(r"\S.*[.:]", text)
    missing = [one for one in parameters_of(PUBLIC[name]) if not re.search(rf"\b{one}\b", text)]
    assert missing == []


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        (LazyRetrievalChain, LazyRetrievalChain.__doc__),
        (LazyRetrievalQueryEngine.from_args, LazyRetrievalQueryEngine.from_args.__doc__),
    ],
)
def test_every_option_of_a_method_stands_with_its_default_and_a_sentence(owner: Any, text: str) -> None:
    parameters, words = inspect.signature(owner).parameters, " ".join(text.split())
    for name, field in surerag.LazyRAGOptions.model_fields.items():
        assert str(parameters[name].default) == field_default(field)
        assert f"{name} ({field_summary(field)}): {' '.join(str(field.description).split())}" in words
    assert "n_tokens (int, at least 1, default 8): " in words


def test_what_users_call_is_listed_and_pydantics_own_names_are_not() -> None:
    names = dir(LazyRetrievalChain)
    assert {"invoke", "ainvoke", "batch", "stream", "with_options", "from_documents", "__init__"} <= set(
        names
    )
    assert not {"model_validate", "parse_obj", "model_fields", "__pydantic_validator__"} & set(names)
    assert {"model_dump", "model_fields_set"} <= set(dir(surerag.LazyRAGOptions()))


@pytest.mark.parametrize("name", [name for name, value in CLASSES.items() if "__init__" in dir(value)])
def test_a_derived_class_shows_the_parameters_of_its_own_constructor(name: str) -> None:
    def __init__(self: object, mine: int) -> None: ...

    try:
        derived = type(CLASSES[name])(
            "Derived", (CLASSES[name],), {"__init__": __init__, "__module__": __name__}
        )
    except TypeError:  # a class that nobody derives from
        return
    assert "mine" in inspect.signature(derived).parameters


def test_an_object_that_is_called_does_not_show_the_parameters_of_its_constructor() -> None:
    transform = object.__new__(UncertaintyRewriteTransform)
    assert [*inspect.signature(transform).parameters] == [
        *inspect.signature(UncertaintyRewriteTransform.__call__).parameters
    ][1:]


def test_types_stay_plain_when_pydantic_rebuilds_a_class() -> None:
    before = str(inspect.signature(LazyRAGOptions))
    LazyRAGOptions.model_rebuild(force=True)
    assert str(inspect.signature(LazyRAGOptions)) == before
