"""LangChain's own chains and retrievers, as systems that ``surerag.compare`` asks."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from langchain_surerag.systems import as_system
from surerag import FakeReader, compare

QUESTIONS = [(f"Where was P{n} born?", ["Velm"]) for n in range(4)]


def model(answer: str = "Velm") -> GenericFakeChatModel:
    usage = {
        "input_tokens": 40,
        "output_tokens": 3,
        "total_tokens": 43,
        "input_token_details": {"cache_read": 20},
    }
    said = [AIMessage(answer, usage_metadata=usage) for _ in range(8)]  # type: ignore[arg-type]  # a mapping of it
    return GenericFakeChatModel(messages=iter(said))


class Found(BaseRetriever):
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document("All were born in Velm.", id="a")]


def test_chains_of_texts_of_mappings_and_with_their_context_are_systems():
    prompt = ChatPromptTemplate.from_template("Answer: {question}")
    texts = {"question": RunnablePassthrough()} | prompt | model() | StrOutputParser()
    mappings = prompt | model("Orun")

    def answers(given: dict[str, Any]) -> dict[str, Any]:
        return {"answer": f"Velm, {given['ask']}", "context": [Document("Velm.", id="v")]}

    odd = as_system(RunnableLambda(answers), input_key="ask")
    report = compare({"texts": texts, "mappings": mappings, "odd": odd}, QUESTIONS)
    right = {one.name: one.measures["accuracy"].value for one in report.systems}
    assert right == {"texts": 1.0, "mappings": 0.0, "odd": 1.0}
    costs = report.system("texts").costs
    assert (costs["prompt_tokens"], costs["completion_tokens"], costs["calls"]) == (40, 3, 1)
    assert report.system("texts").cached == 0.5
    assert odd("Where?").contexts[0].id == "v"


def test_retrievers_answer_through_a_reader():
    reader = FakeReader(lambda prompt: "Velm" if "born in Velm" in prompt else "?")
    report = compare({"found": Found()}, QUESTIONS, reader=reader)
    assert report.system("found").measures["accuracy"].value == 1.0
