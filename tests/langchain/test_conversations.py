"""Follow-up questions, what a chain takes, and what of a provider reaches who calls it."""

from __future__ import annotations

import pickle
from typing import Any

import openai
import pytest
from langchain.chat_models import init_chat_model
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import ValidationError

from langchain_surerag import LazyRetrievalChain
from surerag import FakeReader
from surerag.errors import ConfigurationError, PromptError, ServiceError
from tests.langchain.conftest import KEY, SUMMARY, HashEmbeddings, chat, search
from tests.servers.fake_openai import FakeOpenAI

ANSWER = "In Velm on the Orun"
HISTORY = [HumanMessage("Who is Ada?"), AIMessage("A builder of bridges.")]
ASKED = "And where was she born?"
FOLLOW_UP: dict[str, Any] = {"question": ASKED, "chat_history": HISTORY}
ALONE = "Where was Ada born?"
LONG = " ".join(f"clause{number}" for number in range(400))


def chain_over(answer: Any, **options: Any) -> LazyRetrievalChain:
    return LazyRetrievalChain(
        FakeReader(answer, entropy=0.1), search, SUMMARY, **{"return_details": True, **options}
    )


async def test_a_rewritten_question_that_was_cut_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    chain = chain_over(lambda prompt: LONG if "Rewrite" in prompt else ANSWER)
    for output in (chain.invoke(FOLLOW_UP), await chain.ainvoke(FOLLOW_UP)):
        assert output["question"] == ASKED
    assert caplog.text.count("conversation.not_condensed") == 2


def test_a_long_question_is_rewritten_whole() -> None:
    alone = LONG.replace("clause7 ", "Velm ")
    chain = chain_over(lambda prompt: alone if "Rewrite" in prompt else ANSWER)
    assert chain.invoke([*HISTORY, HumanMessage(LONG)])["question"] == alone


def condensing(**options: Any) -> tuple[FakeReader, list[str], LazyRetrievalChain]:
    searched: list[str] = []

    def find(question: str) -> list[Document]:
        searched.append(question)
        return [Document("Ada was born in Velm.")]

    model = FakeReader(lambda prompt: ALONE if "Rewrite" in prompt else ANSWER, entropy=2.0)
    settings = {"return_details": True, **options}
    return model, searched, LazyRetrievalChain(model, RunnableLambda(find), SUMMARY, **settings)


async def test_the_step_that_makes_a_follow_up_stand_alone_can_be_skipped() -> None:
    model, searched, chain = condensing(rewrite_follow_ups=False)
    for output in (chain.invoke(FOLLOW_UP), await chain.ainvoke(FOLLOW_UP)):
        assert output["question"] == ASKED
    assert searched == [ASKED] * 2
    assert len(model.prompts) == 4
    assert "builder of bridges" not in str(model.prompts)


def test_a_follow_up_is_rewritten_by_another_model_and_another_prompt() -> None:
    other = FakeReader(lambda _: ALONE)
    prompts = {"rewrite_in_conversation": ChatPromptTemplate([("human", "Alone: {query}")])}
    model, searched, chain = condensing(rewriter=other, prompts=prompts)
    assert chain.invoke(FOLLOW_UP)["question"] == ALONE
    [asked] = map(str, other.prompts)
    assert f"Alone: {ASKED}" in asked
    assert "A builder of bridges." in asked
    assert (searched, len(model.prompts)) == ([ALONE], 2)
    with pytest.raises(PromptError, match="query"):
        condensing(prompts={"rewrite_in_conversation": "Alone: {question}"})
    with pytest.raises(ConfigurationError, match="chat model"):
        condensing(rewriter=RunnableLambda(str))
    again: Any = loads(
        dumps(chain), allowed_objects=[LazyRetrievalChain], valid_namespaces=["langchain_surerag"]
    )
    assert again.detached == ("llm", "retriever", "rewriter")
    assert again.prompts == chain.prompts


@pytest.mark.parametrize("rewrite", [False, True])
async def test_the_answer_may_see_the_conversation(rewrite: bool) -> None:
    model, searched, chain = condensing(show_conversation=True, rewrite_follow_ups=rewrite)
    alone = ALONE if rewrite else ASKED
    outputs = [chain.invoke(FOLLOW_UP), await chain.ainvoke(FOLLOW_UP), [*chain.stream(FOLLOW_UP)][-1]]
    assert [output["question"] for output in outputs] == searched == [alone] * 3
    for prompt in map(str, model.prompts[-2:]):
        assert "A builder of bridges." in prompt
        assert f"Question: {ASKED}" in prompt
    count = len(model.prompts)
    assert chain.invoke("Who is Ada?")["question"] == "Who is Ada?"
    assert "builder" not in str(model.prompts[count:])


INPUTS: list[Any] = [
    "Where?",
    {"question": "Where?"},
    {"input": "Where?"},
    {"query": "Where?"},
    HumanMessage("Where?"),
    [*HISTORY, HumanMessage("Where?")],
    {"messages": [*HISTORY, HumanMessage("Where?")]},
    {"input": "Where?", "chat_history": HISTORY},
    {"input": "Where?", "history": [("human", "Who is Ada?"), ("ai", "A builder.")]},
    {"question": "Where?", "chat_history": [{"type": "human", "content": "Who?"}]},
    {"question": "Where?", "said_before": HISTORY},
    ChatPromptTemplate([("human", "Where?")]).invoke({}),
]


@pytest.mark.parametrize("value", INPUTS)
def test_the_input_schema_takes_what_the_chain_takes(value: Any) -> None:
    """A server such as LangServe validates an input, and passes the model, or all of its fields."""
    chain = chain_over(lambda _: ANSWER)
    for schema in (chain.get_input_schema(), chain.pick("answer").get_input_schema()):
        validated: Any = schema.model_validate(value)
        fields = {name: getattr(validated, name) for name in type(validated).model_fields}
        asked = []
        for one in (value, validated, fields | validated.model_extra):
            chain.core.reader.history.clear()
            chain.invoke(one)
            asked.append([str(prompt) for prompt in chain.core.reader.prompts])
        assert asked[0] == asked[1] == asked[2]
    assert {"question", "input", "chat_history"} <= chain.get_input_jsonschema()["properties"].keys()


@pytest.mark.parametrize("value", [3, {}, {"topic": "?"}, [AIMessage("Hi.")], None])
def test_the_input_schema_refuses_what_the_chain_refuses(value: Any) -> None:
    with pytest.raises(ValidationError, match="question"):
        chain_over(lambda _: ANSWER).get_input_schema().model_validate(value)


KINDS: dict[str, type[openai.APIStatusError]] = {
    "429": openai.RateLimitError,
    "500": openai.InternalServerError,
    "401": openai.AuthenticationError,
}


@pytest.mark.parametrize("fault", KINDS)
async def test_a_providers_error_is_caught_by_its_own_class(fault: Any, server: FakeOpenAI) -> None:
    server.fail(fault, times=1000)
    kind, spare = KINDS[fault], chain_over(lambda _: ANSWER)
    chain = LazyRetrievalChain(chat(server), search, SUMMARY)
    with pytest.raises(kind) as caught:
        chain.invoke("Where?")
    error: Any = caught.value
    assert isinstance(error, ServiceError)
    assert (error.status_code, error.retryable) == (int(fault), fault != "401")
    assert KEY not in str(error)
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.hint) == (str(error), error.hint)
    with pytest.raises(kind):
        await chain.ainvoke("Where?")
    with pytest.raises(kind):
        [*chain.stream("Where?")]
    with pytest.raises(kind):
        [piece async for piece in chain.astream("Where?")]
    assert chain.with_fallbacks([spare], exceptions_to_handle=(kind,)).invoke("?")["answer"] == ANSWER
    others = tuple(one for one in KINDS.values() if one is not kind)
    with pytest.raises(kind):
        chain.with_fallbacks([spare], exceptions_to_handle=others).invoke("?")


@pytest.mark.parametrize(
    "model",
    [
        InMemoryVectorStore(HashEmbeddings()).as_retriever(),
        StrOutputParser(),
        ChatPromptTemplate([("human", "{question}")]),
        RunnablePassthrough(),
        RunnableLambda(lambda prompt: "x"),
        FakeListChatModel(responses=["x"]) | StrOutputParser(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_only_models_are_models(model: Any) -> None:
    for wrapped in (model, model.with_retry(), FakeListChatModel(responses=["x"]).with_fallbacks([model])):
        with pytest.raises(ConfigurationError, match="expected a chat model or an LLM"):
            LazyRetrievalChain(wrapped, search, SUMMARY)


def test_a_model_that_the_config_names_is_one(server: FakeOpenAI) -> None:
    model = init_chat_model(
        "toy", model_provider="openai", configurable_fields=("model",), base_url=server.base_url, api_key=KEY
    )
    assert LazyRetrievalChain(model, search, SUMMARY).invoke("Where?")["answer"]
