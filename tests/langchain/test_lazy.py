"""LazyRetrievalChain in LangChain's own pipelines."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI
from langchain_tests.unit_tests import ToolsUnitTests

from langchain_surerag import LazyRetrievalChain, create_lazy_retrieval_tool
from surerag import FakeReader, MarginGate
from surerag.calibration import ThresholdPolicy, scope_of
from surerag.documents import load_documents
from surerag.errors import ConfigurationError, InputError, MissingServiceError, PromptError, ServiceError
from surerag.measures.statistics import Estimate, Interval
from tests.langchain.conftest import KEY, SUMMARY, UNSURE, HashEmbeddings, chat, search
from tests.servers.fake_openai import FakeOpenAI

ANSWER = "In Velm on the Orun"


def reader_that_is(entropy: float, answer: str = ANSWER) -> FakeReader:
    return FakeReader(lambda _: answer, entropy=entropy)


sure, unsure = reader_that_is(0.1), reader_that_is(2.0)


@pytest.fixture
def retriever(documents: list[Document]) -> Any:
    return InMemoryVectorStore.from_documents(documents, HashEmbeddings()).as_retriever()


@pytest.mark.parametrize(
    "question", ["Where?", {"question": "Where?"}, {"input": "Where?", "chat_history": []}]
)
async def test_a_sure_reader_answers_without_retrieval(retriever: Any, question: Any) -> None:
    reader = reader_that_is(0.1)
    chain = LazyRetrievalChain(reader, retriever, SUMMARY)
    for output in (chain.invoke(question), await chain.ainvoke(question)):
        assert output["answer"] == ANSWER
        assert [document.page_content for document in output["context"]] == [SUMMARY]
        assert output["finish"] == "stop"
        assert output["decision"] == {
            "retrieve": False,
            "reason": "entropy 0.1 at or below threshold 0.5",
            "gate": "entropy",
            "score": pytest.approx(0.1),
            "interval": pytest.approx((0.1, 0.1)),
            "threshold": 0.5,
        }
    assert [call.verb for call in reader.history] == ["begin", "rest"] * 2


async def test_settings_of_the_model_are_bound_to_it_and_refused_in_a_call(
    server: FakeOpenAI, retriever: Any
) -> None:
    chain = LazyRetrievalChain(sure, retriever, SUMMARY).bind(stop=["."])
    with pytest.raises(ConfigurationError, match=r"takes no stop in a call.*llm\.bind"):
        chain.invoke("Where?")
    with pytest.raises(ConfigurationError, match="takes no stop"):
        await chain.ainvoke("Where?")
    with pytest.raises(ConfigurationError, match="takes no stop"):
        list(chain.stream("Where?"))
    with pytest.raises(ConfigurationError, match="takes no stop"):
        [chunk async for chunk in chain.astream("Where?")]
    LazyRetrievalChain(chat(server).bind(stop=["."]), retriever, SUMMARY).invoke("Where?")
    assert server.requests[-1]["stop"] == ["."]


def test_documents_are_no_summaries(documents: list[Document]) -> None:
    with pytest.raises(ConfigurationError, match=r"summaries must be a vector store.*summaries_of"):
        LazyRetrievalChain(sure, search, documents)


def test_other_documents_are_refused_with_the_way_to_convert_them(tmp_path: Path, retriever: Any) -> None:
    (tmp_path / "ada.md").write_text("Ada was born in Velm.")
    loaded = load_documents(tmp_path)
    for documents, kind in ((loaded.documents, "Document"), (loaded, "LoadedDocuments"), ("docs", "str")):
        with pytest.raises(InputError, match=rf"got \S*{kind}\. .*Document\(item\.text"):
            LazyRetrievalChain.from_documents(documents, sure, retriever, HashEmbeddings())


def test_documents_without_text_are_not_shown() -> None:
    empty = RunnableLambda(lambda _: [Document(" \n"), Document("Ada paints.")])
    output = LazyRetrievalChain(unsure, empty, SUMMARY).invoke("Where?")
    assert [document.page_content for document in output["context"]] == [SUMMARY, "Ada paints."]


async def test_an_unsure_reader_gets_documents(retriever: Any, documents: list[Document]) -> None:
    before = copy.deepcopy(documents)
    reader = reader_that_is(2.0)
    chain = LazyRetrievalChain(reader, retriever, SUMMARY, top_n=2, return_details=True)
    for output in (chain.invoke("Where does Velm lie?"), await chain.ainvoke("Where does Velm lie?")):
        assert output["context"] == output["summaries"] + output["passages"]
        assert output["passages"][0] == documents[0]
        assert len(output["passages"]) == 2
        assert output["decision"]["retrieve"]
        assert output["usage"]["requests"] == 2
        assert not output["abstained"]
        # What comes out is a copy: changing it leaves the store as it was.
        output["context"][1].metadata["source"] = "changed"
    assert documents == before
    assert documents[0].page_content in reader.prompts[-1]


async def test_the_context_tells_summaries_from_passages_and_has_no_text_twice(
    documents: list[Document],
) -> None:
    store = InMemoryVectorStore.from_documents(documents, HashEmbeddings())
    for entropy, passages in ((0.1, 0), (2.0, 4)):
        model = reader_that_is(entropy)
        lazy = LazyRetrievalChain.from_documents(documents, model, store.as_retriever(), HashEmbeddings())
        question = "Where does Velm lie, and is Tarn new?"
        streamed = next(iter(lazy.stream(question)))["context"]
        for context in (
            lazy.invoke(question)["context"],
            (await lazy.ainvoke(question))["context"],
            streamed,
        ):
            texts = [document.page_content for document in context]
            assert len({*texts}) == len(texts) == (passages or 3)
            assert [one.metadata.get("is_summary", False) for one in context] == [not passages] * len(texts)
        assert all(model.prompts[-1].count(text) == 1 for text in texts)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_that_a_server_did_not_come_to_count_is_in_the_usage(
    streamed: bool, server: FakeOpenAI, retriever: Any
) -> None:
    chain = LazyRetrievalChain(chat(server), retriever, SUMMARY, threshold=-1.0, top_n=1, return_details=True)
    chunks = list(chain.stream("Where?")) if streamed else [chain.invoke("Where?")]
    usage = next(chunk["usage"] for chunk in chunks if "usage" in chunk)
    first, second = (len(str(body["messages"][-1]["content"]).split()) for body in server.requests[-2:])
    assert second < usage["prompt_tokens"]
    assert usage["prompt_tokens"] > first + second - 2


def test_without_top_n_the_retriever_decides_how_many(retriever: Any) -> None:
    three = retriever.vectorstore.as_retriever(search_kwargs={"k": 3})
    for source, expected in ((retriever, 4), (three, 3), (RunnableLambda(three.invoke), 3)):
        chain = LazyRetrievalChain(unsure, source, SUMMARY)
        assert len(chain.invoke("Velm")["context"]) == expected + 1
        assert len(chain.with_options(top_n=1).invoke("Velm")["context"]) == 2


@pytest.mark.parametrize("chain_of", [sure, unsure])
async def test_the_chunks_of_a_stream_add_up(retriever: Any, chain_of: FakeReader) -> None:
    chain = LazyRetrievalChain(chain_of, retriever, SUMMARY, top_n=1)
    whole = chain.invoke("Where?")
    assert whole.pop("message").text == ANSWER and whole["usage"].pop("seconds") > 0
    chunks = [*chain.stream("Where?")]
    assert chunks[-1].pop("message").text == ANSWER and chunks[-1]["usage"].pop("seconds") > 0
    assert set(chunks[0]) == {"context", "decision"}
    assert len(chunks) > 4
    added = chunks[0]
    for chunk in chunks[1:]:
        added = added + chunk
    assert dict(added) == whole
    awaited = [chunk async for chunk in chain.astream("Where?")]
    assert awaited[-1].pop("message").text == ANSWER and awaited[-1]["usage"].pop("seconds") > 0
    assert awaited == chunks
    words = [*(chain | RunnableLambda(lambda output: output) | (lambda output: output["answer"])).stream("?")]
    assert words == [ANSWER]
    assert len([*chain.pick("answer").stream("?")]) > 2
    assert len([piece async for piece in chain.pick("answer").astream("?")]) > 2


async def test_whoever_leaves_a_stream_closes_what_was_begun() -> None:
    reader = FakeReader(lambda _: "Velm lies on the long river Orun, far from the sea.", entropy=0.1)
    chain = LazyRetrievalChain(reader, search, SUMMARY)
    pieces = chain.stream("Where?")
    next(pieces)
    assert reader.open_handles == 1
    pieces.close()
    assert reader.open_handles == 0
    awaited = chain.astream("Where?")
    await anext(awaited)
    assert reader.open_handles == 1
    await awaited.aclose()
    assert reader.open_handles == 0


async def test_an_empty_or_cut_answer_is_marked_and_never_the_sure_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with FakeOpenAI([""], logprob=-0.001) as server:
        for output in (
            LazyRetrievalChain(chat(server), search, SUMMARY).invoke("Where?"),
            await LazyRetrievalChain(chat(server), search, SUMMARY).ainvoke("Where?"),
        ):
            assert (output["finish"], output["answer"]) == ("empty", "")
            assert output["decision"]["retrieve"]
    for answer, fault, finish in (
        (ANSWER, "cut", "length"),
        (ANSWER, "withheld", "content_filter"),
        ("", "withheld", "content_filter"),
    ):
        with FakeOpenAI([answer], logprob=-0.001) as server:
            server.fault = fault
            chain = LazyRetrievalChain(chat(server), search, SUMMARY)
            output = chain.invoke("Where?")
            assert output["finish"] == finish
            assert [*chain.stream("Where?")][-1]["finish"] == finish
    for warning in ("lazy_rag.cut_off", "'empty'", "'content_filter'"):
        assert warning in caplog.text


def test_a_stream_that_is_cut_off_is_an_error_and_no_answer(server: FakeOpenAI) -> None:
    server.fault = "no end"
    chain = LazyRetrievalChain(chat(server), search, SUMMARY)
    assert "cut off" in chain.invoke("Where?")["decision"]["reason"]
    with pytest.raises(ServiceError, match="cut off"):
        [*chain.stream("Where?")]


# LCEL.


async def test_in_a_pipeline(retriever: Any) -> None:
    lazy = LazyRetrievalChain(unsure, retriever, SUMMARY, top_n=1)
    llm = FakeListChatModel(responses=["rephrased"])
    prompt = ChatPromptTemplate.from_template("{context} {question}")
    pipeline = (
        {"context": lazy.pick("answer"), "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()
    )
    assert pipeline.invoke("Where?") == await pipeline.ainvoke("Where?") == "rephrased"
    behind = (
        RunnableLambda(str.upper) | lazy | RunnablePassthrough.assign(n=lambda output: len(output["context"]))
    )
    assert behind.invoke("where?")["n"] == 2
    assigned = RunnablePassthrough.assign(result=lazy)
    assert assigned.invoke({"question": "Where?"})["result"]["answer"] == ANSWER
    assert [output["answer"] for output in lazy.batch(["a", "b"])] == [ANSWER] * 2
    assert [output["answer"] for output in await lazy.abatch(["a", "b"])] == [ANSWER] * 2


class TestTool(ToolsUnitTests):
    """The official tests of tools."""

    @property
    def tool_constructor(self) -> Any:
        chain = LazyRetrievalChain(sure, search, SUMMARY)
        return create_lazy_retrieval_tool(chain, "ask", "Answers questions.")

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"question": "Where?"}


async def test_as_a_tool(retriever: Any) -> None:
    chain = LazyRetrievalChain(sure, retriever, SUMMARY)
    tool = create_lazy_retrieval_tool(chain, "ask", "Answers questions.")
    call = {"name": "ask", "args": {"question": "Where?"}, "id": "1", "type": "tool_call"}
    for message in (tool.invoke(call), await tool.ainvoke(call)):
        assert message.content == ANSWER
        assert message.artifact["decision"]["retrieve"] is False
    assert tool.invoke({"question": "Where?"}) == ANSWER
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as_tool is in beta
        own = chain.pick("answer").as_tool(name="ask", description="Answers.")
    assert own.invoke({"question": "Where?"}) == ANSWER


def test_configurable_retry_and_fallbacks(retriever: Any) -> None:
    chain = LazyRetrievalChain(reader_that_is(0.5), retriever, SUMMARY).configurable_fields(
        threshold=ConfigurableField(id="tau"), top_n=ConfigurableField(id="k")
    )
    outputs = [chain.invoke("?", {"configurable": {"tau": tau, "k": 1}}) for tau in (0.4, 0.6)]
    assert [output["decision"]["retrieve"] for output in outputs] == [True, False]
    assert [len(output["context"]) for output in outputs] == [2, 1]
    assert chain.with_retry().invoke("?")["answer"] == ANSWER
    broken = LazyRetrievalChain(sure, RunnableLambda(lambda _: 1 / 0), SUMMARY, threshold=0.01)
    with pytest.raises(ZeroDivisionError):
        broken.invoke("?")
    assert broken.with_fallbacks([chain]).invoke("?")["answer"] == ANSWER


def test_what_the_model_rejects_is_learned_once_for_all_configs(server: FakeOpenAI) -> None:
    server.options["refuses"] = ("temperature",)
    field = ConfigurableField(id="threshold")
    chain = LazyRetrievalChain(chat(server), search, SUMMARY).configurable_fields(threshold=field)
    with pytest.warns(UserWarning, match="temperature"):
        chain.invoke("Where?", {"configurable": {"threshold": 0.4}})
    server.requests.clear()
    chain.invoke("Where?", {"configurable": {"threshold": 0.3}})
    assert ["temperature" in request for request in server.requests] == [False]


def test_config_reaches_the_inner_parts(retriever: Any, server: FakeOpenAI) -> None:
    server.logprob = UNSURE
    inner = retriever.configurable_fields(search_kwargs=ConfigurableField(id="search"))
    model = chat(server).configurable_fields(temperature=ConfigurableField(id="heat"))
    chain = LazyRetrievalChain(model, inner, SUMMARY, threshold=0.5)
    assert sorted(spec.id for spec in chain.config_specs) == ["heat", "search"]
    config: Any = {"configurable": {"search": {"k": 2}, "heat": 0.3}}
    assert len(chain.invoke("Velm", config)["context"]) == 3


# Conversations.


HISTORY = [HumanMessage("Who is Ada?"), AIMessage("A builder of bridges.")]


@pytest.mark.parametrize(
    "value",
    [
        {"question": "Where was she born?", "chat_history": HISTORY},
        [*HISTORY, HumanMessage("Where was she born?")],
        {"messages": [SystemMessage("Be kind."), *HISTORY, HumanMessage("Where was she born?")]},
        ChatPromptTemplate(
            ["placeholder", "{h}"] and [("placeholder", "{h}"), ("human", "Where was she born?")]
        ).invoke({"h": HISTORY}),
        {
            "input": "Where was she born?",
            "chat_history": [("human", "Who is Ada?"), ("ai", "A builder of bridges.")],
        },
        {"input": "Where was she born?", "history": HISTORY},
        {"input": "Where was she born?", "said_before": HISTORY, "chat_history": []},
    ],
)
def test_a_conversation_is_condensed(value: Any) -> None:
    def answer(prompt: str) -> str:
        return "Where was Ada born?" if "Rewrite" in prompt else ANSWER

    reader = FakeReader(answer, entropy=0.1)
    chain = LazyRetrievalChain(reader, search, SUMMARY, return_details=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert chain.invoke(value)["question"] == "Where was Ada born?"
    assert len(reader.history) == 3
    warned = any("system messages" in str(one.message) for one in caught)
    assert warned == ("Be kind" in str(value))


@pytest.mark.parametrize("key", ["chat_history", "history", "past_turns"])
async def test_message_history_of_any_key(key: str) -> None:
    def answer(prompt: str) -> str:
        return "Where was Ada born?" if "Rewrite" in prompt else ANSWER

    chain = LazyRetrievalChain(FakeReader(answer, entropy=0.1), search, SUMMARY, return_details=True)
    histories: dict[str, InMemoryChatMessageHistory] = {}
    remembering = RunnableWithMessageHistory(
        chain,
        lambda session_id: histories.setdefault(session_id, InMemoryChatMessageHistory()),
        input_messages_key="question",
        history_messages_key=key,
        output_messages_key="answer",
    )
    for session, invoke in (("1", remembering.invoke), ("2", remembering.ainvoke)):
        for question, alone in (
            ("Who is Ada?", "Who is Ada?"),
            ("Where was she born?", "Where was Ada born?"),
        ):
            output: Any = invoke({"question": question}, {"configurable": {"session_id": session}})
            output = await output if session == "2" else output
            assert output["question"] == alone
        assert [message.text for message in histories[session].messages] == [
            "Who is Ada?",
            ANSWER,
            "Where was she born?",
            ANSWER,
        ]


@pytest.mark.parametrize("key", ["messages", "chat_history"])
@pytest.mark.parametrize("last", [[], [HumanMessage("And she?")]], ids=["before", "with the question"])
def test_the_messages_beside_a_question_are_its_conversation(key: str, last: list[Any]) -> None:
    reader = FakeReader(lambda _: "Where was Ada born?", entropy=0.1)
    chain = LazyRetrievalChain(reader, search, SUMMARY, return_details=True)
    output = chain.invoke({"question": "And she?", key: [*HISTORY, *last]})
    assert output["question"] == "Where was Ada born?"
    assert reader.prompts[0].count("And she?") == 1
    assert chain.invoke({"question": "And she?", key: last})["question"] == "And she?"


def test_a_condenser_that_fails_leaves_the_question(caplog: pytest.LogCaptureFixture) -> None:
    def answer(prompt: str) -> str:
        if "Rewrite" in prompt:
            raise ServiceError("the server is busy")
        return ANSWER

    chain = LazyRetrievalChain(FakeReader(answer, entropy=0.1), search, SUMMARY, return_details=True)
    assert chain.invoke([*HISTORY, HumanMessage("And she?")])["question"] == "And she?"
    assert "conversation.not_condensed" in caplog.text


@pytest.mark.parametrize(
    "value",
    [
        7,
        {},
        {"nothing": "?"},
        "",
        [],
        [AIMessage("Velm.")],
        [HumanMessage("?"), ToolMessage("Velm", tool_call_id="1"), AIMessage("Velm")],
        {"question": 7},
        {"question": "?", "chat_history": 7},
        {"question": "?", "chat_history": HISTORY, "history": HISTORY},
    ],
)
def test_what_is_no_question_is_refused(value: Any) -> None:
    with pytest.raises(InputError):
        LazyRetrievalChain(sure, search, SUMMARY).invoke(value)


def test_images_are_not_dropped_in_silence() -> None:
    image = {"type": "image", "url": "http://x/y.png"}
    message = HumanMessage([{"type": "text", "text": "What is this?"}, image])
    with pytest.raises(InputError, match="holds image"):
        LazyRetrievalChain(sure, search, SUMMARY).invoke([message])


def test_the_documents_of_a_graphs_state_are_not_read(documents: list[Document]) -> None:
    state = {"question": "Where?", "documents": documents, "generation": "old"}
    assert len(LazyRetrievalChain(sure, search, SUMMARY).invoke(state)["context"]) == 1


# Construction.


def test_prompts_are_texts_or_templates() -> None:
    for prompt, expected in (
        ("C {context} Q {question}", f"C {SUMMARY} Q Where?"),
        (PromptTemplate.from_template("C {context} Q {question}"), f"C {SUMMARY} Q Where?"),
        (
            PromptTemplate.from_template(
                "{rule} C {context} Q {question}", partial_variables={"rule": "{R}"}
            ),
            f"{{R}} C {SUMMARY} Q Where?",
        ),
        ([("system", "Rules."), ("user", "C {context} Q {question}")], f"Rules.\nC {SUMMARY} Q Where?"),
        (
            ChatPromptTemplate([("system", "Rules."), ("human", "C {context} Q {question}")]),
            f"Rules.\nC {SUMMARY} Q Where?",
        ),
    ):
        reader = reader_that_is(0.1)
        chain = LazyRetrievalChain(
            reader, search, SUMMARY, prompts={"from_context": prompt}, abstention=False
        )
        chain.invoke("Where?")
        assert reader.prompts[0] == expected


@pytest.mark.parametrize(
    "prompts",
    [
        {"from_context": "{question}"},
        {"not_there": "{question}"},
        {"from_context": 7},
        {
            "from_context": PromptTemplate.from_template(
                "{{ question }} {{ context }}", template_format="mustache"
            )
        },
    ],
)
def test_prompts_that_do_not_fit_are_refused(prompts: Any) -> None:
    with pytest.raises((PromptError, ConfigurationError)):
        LazyRetrievalChain(sure, search, SUMMARY, prompts=prompts)


def test_construction_says_what_is_wrong() -> None:
    for wrong, match in (
        ({"retriever": None}, "retriever"),
        ({"summaries": None}, "summaries"),
        ({"llm": None}, "model"),
        ({"retriever": InMemoryVectorStore(HashEmbeddings())}, "as_retriever"),
        ({"retriever": lambda query: []}, "RunnableLambda"),
        ({"k": 3}, "top_n"),
        ({"threshold": "high"}, "threshold"),
        ({"n_tokens": 0}, "n_tokens"),
        ({"conversation": "ignore"}, "conversation"),
    ):
        with pytest.raises((ConfigurationError, MissingServiceError), match=match):
            LazyRetrievalChain(**{"llm": sure, "retriever": search, "summaries": SUMMARY, **wrong})
    chain = LazyRetrievalChain(sure, search, SUMMARY)
    with pytest.raises(ConfigurationError, match="n_tokens"):
        chain.n_tokens = 0
    chain.threshold = 0.01
    assert chain.core.threshold == 0.01
    assert chain.invoke("?")["decision"]["retrieve"]
    assert len(LazyRetrievalChain.model_fields) - len({"name"}) <= 19


# Serialisation.


def test_dumps_and_loads(server: FakeOpenAI) -> None:
    chain = LazyRetrievalChain(
        chat(server),
        search,
        SUMMARY,
        gate=MarginGate(n_tokens=3),
        threshold=0.7,
        prompts={"closed_book": [("system", "Brief."), ("human", "{question}")]},
    )
    text = dumps(chain)
    assert KEY not in text
    assert json.loads(text)["kwargs"]["detached"] == ["retriever"]
    loaded: Any = loads(
        text,
        allowed_objects=[LazyRetrievalChain, ChatOpenAI],
        valid_namespaces=["langchain_surerag", "langchain_openai"],
        secrets_map={"OPENAI_API_KEY": KEY},
    )
    with pytest.raises(MissingServiceError, match=r"attach\(retriever=…\)"):
        loaded.invoke("?")
    whole = loaded.attach(retriever=search)
    assert whole.options() == chain.options()
    assert whole.invoke("?")["answer"] == chain.invoke("?")["answer"]
    with pytest.raises(ConfigurationError, match="not_there"):
        loaded.attach(not_there=1)


def test_a_calibrated_threshold_is_checked_and_comes_back(server: FakeOpenAI) -> None:
    model = chat(server)
    scope = scope_of(LazyRetrievalChain(model, search, SUMMARY).core)
    policy = ThresholdPolicy(
        0.4, 0.02, 0.95, 500, 0.3, 0.01, Estimate(0.1, Interval(0.0, 0.2), 500), "holds", scope=scope
    )
    chain = LazyRetrievalChain(model, search, SUMMARY, threshold=policy)
    assert chain.invoke("?")["decision"]["threshold"] == 0.4
    loaded: Any = loads(
        dumps(chain),
        allowed_objects=[LazyRetrievalChain, ChatOpenAI],
        valid_namespaces=["langchain_surerag", "langchain_openai"],
        secrets_map={"OPENAI_API_KEY": KEY},
    )
    assert loaded.attach(retriever=search).threshold == policy
    with pytest.raises(ConfigurationError):
        LazyRetrievalChain(model, search, SUMMARY, threshold=policy, gate="margin")
