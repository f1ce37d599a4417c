"""LlamaIndex's own engines, as systems that ``surerag.compare`` asks."""

from __future__ import annotations

from typing import Any

from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.schema import TextNode

from surerag import FakeReader, compare

QUESTIONS = [(f"Where was P{n} born?", ["Velm"]) for n in range(4)]


class Says(CustomLLM):
    """Answers the same to all, and tells its tokens."""

    answer: str = "Velm"

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="says")

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        usage = {"prompt_tokens": 50, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 30}}
        return CompletionResponse(text=self.answer, raw={"usage": usage})

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


def index() -> VectorStoreIndex:
    nodes = [TextNode(text=f"P{n} was born in Velm.", id_=f"n{n}") for n in range(4)]
    return VectorStoreIndex(nodes, embed_model=MockEmbedding(8))


def test_query_engines_are_systems_and_their_models_tell_what_they_cost():
    engine = index().as_query_engine(llm=Says())
    wrong = index().as_query_engine(llm=Says(answer="Orun"))
    report = compare({"plain": engine, "wrong": wrong}, QUESTIONS)
    plain = report.system("plain")
    assert plain.measures["accuracy"].value == 1.0
    assert report.system("wrong").measures["accuracy"].value == 0.0
    assert (plain.costs["prompt_tokens"], plain.costs["completion_tokens"], plain.costs["calls"]) == (
        50,
        2,
        1,
    )
    assert plain.cached == 0.6


def test_retrievers_answer_through_a_reader():
    reader = FakeReader(lambda prompt: "Velm" if "born in Velm" in prompt else "?")
    report = compare({"found": index().as_retriever(similarity_top_k=2)}, QUESTIONS, reader=reader)
    assert report.system("found").measures["accuracy"].value == 1.0
