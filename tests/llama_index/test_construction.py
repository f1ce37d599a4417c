"""How parts are built: as LlamaIndex's own are, from what a pipeline has, and without asking anybody."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM, CustomLLM

from llama_index_surerag import (
    AdaptiveSemanticNodeParser,
    ClusterCompressorPostprocessor,
    DeltaSePerEvaluator,
    DenseEvaluator,
    DenseRefinerPostprocessor,
    LazyRetrievalQueryEngine,
    UncertaintyRewriteQueryEngine,
    UncertaintyRewriteTransform,
)
from surerag.errors import ConfigurationError
from tests.llama_index import corpus


class Far(CustomLLM):
    """An LLM that has to connect for whatever it is asked, as Ollama's does for its metadata."""

    model: str = "far"

    @property
    def metadata(self) -> NoReturn:
        raise AssertionError("it was asked for its metadata")

    def complete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("it was asked")

    stream_complete = complete


class FarEmbedding(corpus.HashEmbedding):
    """An embedding model that must not be asked."""

    def _vectors(self, texts: Any) -> NoReturn:
        raise AssertionError("it was asked for vectors")


PARTS: dict[str, Callable[..., Any]] = {
    "lazy": lambda build: build(
        LazyRetrievalQueryEngine, corpus.index(), Far(), embed_model=FarEmbedding(), gate="disagreement"
    ),
    "lazy, its summaries by a model": lambda build: build(
        LazyRetrievalQueryEngine, corpus.index(), Far(), summarize=Far(), gate="disagreement"
    ),
    "lazy, summaries of documents": lambda build: build(
        LazyRetrievalQueryEngine,
        corpus.index(),
        Far(),
        summaries=corpus.documents(),
        embed_model=FarEmbedding(),
        gate="disagreement",
    ),
    "rewriting": lambda build: build(
        UncertaintyRewriteQueryEngine, corpus.index(), Far(), metric="disagreement"
    ),
    "transform": lambda build: build(
        UncertaintyRewriteTransform, corpus.index(), Far(), metric="disagreement"
    ),
    "compressor": lambda build: build(ClusterCompressorPostprocessor, Far(), embed_model=FarEmbedding()),
    "refiner": lambda build: build(DenseRefinerPostprocessor, Far(), embed_model=FarEmbedding()),
    "dense": lambda build: build(DenseEvaluator, Far()),
    "delta": lambda build: build(DeltaSePerEvaluator, Far(), entailer=Far()),
    "parser": lambda build: build(AdaptiveSemanticNodeParser, FarEmbedding()),
}


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_built_from_defaults_and_nothing_is_asked(part: str) -> None:
    made = PARTS[part](lambda kind, *given, **settings: kind.from_defaults(*given, **settings))
    usual = PARTS[part](lambda kind, *given, **settings: getattr(kind, "from_args", kind)(*given, **settings))
    assert type(made) is type(usual)
    told = "to_dict" if hasattr(made, "to_dict") else "model_dump"
    assert getattr(made, told)() == getattr(usual, told)()


def test_from_defaults_refuses_what_a_part_does_not_know() -> None:
    for part in (ClusterCompressorPostprocessor, DenseEvaluator):
        with pytest.raises(ConfigurationError, match="no_such"):
            part.from_defaults(corpus.Knowing(corpus.answer), no_such=1)


@pytest.mark.parametrize(
    "part",
    [ClusterCompressorPostprocessor, DenseRefinerPostprocessor, DenseEvaluator, DeltaSePerEvaluator],
)
def test_models_are_typed_in_fields_and_constructors(part: Any) -> None:
    wanted = {"llm": LLM} | ({"embed_model": BaseEmbedding} if "embed_model" in part.model_fields else {})
    signature = typing.get_type_hints(part.__init__)
    for name, kind in wanted.items():
        assert kind in typing.get_args(part.model_fields[name].annotation)
        assert kind in typing.get_args(signature[name])
    assert not [name for name in wanted if inspect.signature(part).parameters[name].default is not None]


def test_what_is_no_model_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigurationError):
        ClusterCompressorPostprocessor("gpt-5")  # type: ignore[arg-type]  # what a typed field forbids
