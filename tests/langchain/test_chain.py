"""LazyRetrievalChain in LangChain's own pipelines."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_surerag import LazyRetrievalChain, create_lazy_retrieval_tool, summaries_of
from surerag import FakeReader
from surerag.decisions.policy import Identity
from surerag.errors import CapabilityError, ConfigurationError, InputError, MissingServiceError, PromptError
from surerag.messages import Generation
from surerag.readers.fake import reply
from surerag.retrieval import LeadSummaries, PassageIndex
from tests.decisions.samples import policy
from tests.drivers.local_reader import LocalReader
from tests.langchain.conftest import HashEmbeddings, chat
from tests.servers.fake_openai import FakeOpenAI

SURE, UNSURE = 0.1, 2.0
SUMMARY = "Ada was born in Velm."


def reader_that_is(entropy: float, answer: str = "In Velm on the Orun") -> FakeReader:
    return FakeReader(lambda _: answer, entropy=entropy)


@pytest.fixture
def retriever(documents: list[Document]) -> Any:
    return InMemoryVectorStore.from_documents(documents, HashEmbeddings()).as_retriever()


@pytest.mark.parametrize("given", ["Where?", {"question": "Where?"}, {"input": "Where?", "chat_history": []}])
async def test_a_sure_reader_answers_without_retrieval(retriever: Any, given: Any) -> None:
    reader = reader_that_is(SURE)
    chain = LazyRetrievalChain(reader, retriever, SUMMARY)
    for output in (chain.invoke(given), await chain.ainvoke(given)):
        assert output["answer"] == "In Velm on the Orun"
        assert [document.page_content for document in output["context"]] == [SUMMARY]
        assert output["decision"] == {
            "retrieve": False,
            "reason": "entropy at or below threshold",
            "gate": "entropy",
            "signal": pytest.approx(SURE),
            "unit": "nats",
            "lower": pytest.approx(SURE),
            "upper": pytest.approx(SURE),
            "exact": True,
            "threshold": 1.0,
            "calls": 1,
            "tokens": 5,
        }
    assert [call.verb for call in reader.history] == ["begin", "finish"] * 2
    assert all("Where?" in prompt and SUMMARY in prompt for prompt in reader.prompts)


async def test_an_unsure_reader_gets_documents(retriever: Any, documents: list[Document]) -> None:
    before = copy.deepcopy(documents)
    reader = reader_that_is(UNSURE)
    chain = LazyRetrievalChain(reader, retriever, SUMMARY, top_n=2, return_details=True)
    for output in (chain.invoke("Where does Velm lie?"), await chain.ainvoke("Where does Velm lie?")):
        assert [document.page_content for document in output["context"][:1]] == [SUMMARY]
        assert len(output["passages"]) == 2
        assert output["context"] == output["summaries"] + output["passages"]
        assert output["passages"][0] == documents[0]
        assert output["decision"]["retrieve"]
        assert output["summaries"][0].page_content == SUMMARY
        assert output["usage"]["retrievals"] == 1
        assert output["usage"]["cached_tokens"] == 0
        assert set(output["timings"]) == {"summaries", "first_pass", "retrieval", "answer"}
        # What comes out is a copy: changing it leaves the store as it was.
        output["context"][1].metadata["source"] = "changed"
    assert documents == before
    assert reader.open_handles == 0
    assert documents[0].page_content in reader.prompts[-1]


def test_without_k_the_retriever_decides_how_many(retriever: Any) -> None:
    three = retriever.vectorstore.as_retriever(search_kwargs={"k": 3})
    for source, expected in ((retriever, 4), (three, 3), (RunnableLambda(three.invoke), 3)):
        chain = LazyRetrievalChain(reader_that_is(UNSURE), source, SUMMARY)
        assert len(chain.invoke("Velm")["context"]) == expected + 1
        assert (
            len(
                chain.configurable_fields(top_n=ConfigurableField(id="k")).invoke("Velm", {"k": 1})["context"]
            )
            == 2
        )


@pytest.mark.parametrize(
    ("mode", "retrievals", "verbs"),
    [("none", 0, ["generate"]), ("standard", 1, ["generate"]), ("strong", 1, ["generate"])],
)
def test_modes(retriever: Any, mode: str, retrievals: int, verbs: list[str]) -> None:
    reader = FakeReader(["Velm"], logprob=None)
    output = LazyRetrievalChain(reader, retriever, SUMMARY, mode=mode, return_details=True).invoke("Where?")
    assert output["usage"]["retrievals"] == retrievals
    assert output["mode"] == mode
    assert [call.verb for call in reader.history] == verbs


def test_the_oracle_mode_is_given_its_documents(documents: list[Document]) -> None:
    reader = reader_that_is(SURE)
    chain = LazyRetrievalChain(reader, mode="oracle")
    output = chain.invoke({"question": "Where?", "documents": documents[:1]})
    assert output["context"] == documents[:1]
    assert documents[0].page_content in reader.prompts[0]


async def test_nothing_found_is_an_answer_all_the_same() -> None:
    chain = LazyRetrievalChain(reader_that_is(UNSURE), RunnableLambda(lambda _: []), SUMMARY)
    assert len(chain.invoke("Where?")["context"]) == 1
    assert (await chain.ainvoke("Where?"))["answer"]


# LCEL.


async def test_in_a_pipeline(retriever: Any) -> None:
    lazy = LazyRetrievalChain(reader_that_is(UNSURE), retriever, SUMMARY, top_n=1)
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
    assert assigned.invoke({"question": "Where?"})["result"]["answer"] == "In Velm on the Orun"


async def test_as_a_tool(retriever: Any) -> None:
    chain = LazyRetrievalChain(reader_that_is(SURE), retriever, SUMMARY)
    tool = create_lazy_retrieval_tool(chain, "ask", "Answers questions.")
    call = {"name": "ask", "args": {"question": "Where?"}, "id": "1", "type": "tool_call"}
    for message in (tool.invoke(call), await tool.ainvoke(call)):
        assert message.content == "In Velm on the Orun"
        assert message.artifact["decision"]["retrieve"] is False
    plain = create_lazy_retrieval_tool(chain, "ask", "Answers.", response_format="content")
    assert plain.invoke({"question": "Where?"}) == "In Velm on the Orun"
    with warnings.catch_warnings():
        # as_tool is in beta.
        warnings.simplefilter("ignore")
        own = chain.pick("answer").as_tool(name="ask", description="Answers.")
    assert own.invoke({"question": "Where?"}) == "In Velm on the Orun"


def test_configurable_retry_and_fallbacks(retriever: Any) -> None:
    chain = LazyRetrievalChain(reader_that_is(0.5), retriever, SUMMARY).configurable_fields(
        threshold=ConfigurableField(id="tau"), mode=ConfigurableField(id="mode")
    )
    decided = [
        chain.invoke("?", {"configurable": {"tau": tau}})["decision"]["retrieve"] for tau in (0.4, 0.6)
    ]
    assert decided == [True, False]
    assert chain.invoke("?", {"configurable": {"mode": "none"}})["decision"]["reason"] == "mode none"
    broken = LazyRetrievalChain(FakeReader([RuntimeError("down"), "Velm"], entropy=SURE), retriever, SUMMARY)
    assert broken.with_retry(wait_exponential_jitter=False).invoke("?")["answer"] == "Velm"
    failing = LazyRetrievalChain(FakeReader([RuntimeError("down")], entropy=SURE), retriever, SUMMARY)
    assert failing.with_fallbacks([chain]).invoke("?")["answer"] == "In Velm on the Orun"


def test_config_reaches_the_inner_retriever(retriever: Any) -> None:
    inner = retriever.configurable_fields(search_kwargs=ConfigurableField(id="search"))
    chain = LazyRetrievalChain(reader_that_is(UNSURE), inner, SUMMARY)
    assert [spec.id for spec in chain.config_specs] == ["search"]
    assert len(chain.invoke("Velm", {"configurable": {"search": {"k": 2}}})["context"]) == 3


def test_copies_share_the_reader(server: FakeOpenAI, retriever: Any) -> None:
    chain = LazyRetrievalChain(chat(server), retriever, SUMMARY)
    made = []
    configured = chain.configurable_fields(threshold=ConfigurableField(id="tau"))
    for tau in (0.5, 5.0):
        other, _ = configured.prepare({"configurable": {"tau": tau}})
        made.append(other.core.reader)
    assert made[0] is made[1] is chain.core.reader
    assert chain.attach(llm=chat(server)).core.reader is not chain.core.reader


# Prompts, summaries, calibration.


def test_prompts_are_texts_or_templates(retriever: Any) -> None:
    reader = reader_that_is(UNSURE)
    template = PromptTemplate.from_template("{tone}! {{x}} C: {context} D: {details} Q: {question}").partial(
        tone="{Be} brief"
    )
    chain = LazyRetrievalChain(
        reader,
        retriever,
        SUMMARY,
        prompts={"from_context": "{context}?{question}", "from_context_and_details": template},
    )
    chain.invoke("Where {is} it?")
    assert reader.prompts[0] == f"{SUMMARY}?Where {{is}} it?"
    assert reader.prompts[1].startswith("{Be} brief! {x} C: Ada was born in Velm. D: [1] ")
    for wrong in (
        "{question}",
        "{context} {question} {more}",
        PromptTemplate.from_template("{{context}}", template_format="mustache"),
    ):
        with pytest.raises(PromptError):
            LazyRetrievalChain(reader, retriever, SUMMARY, prompts={"from_context": wrong})


def test_summaries_of_documents(retriever: Any, documents: list[Document]) -> None:
    reader = reader_that_is(SURE)
    embeddings = HashEmbeddings()
    chain = LazyRetrievalChain.from_documents(
        documents, reader, retriever, embeddings, summarize=1, n_summaries=1, return_details=True
    )
    output = chain.invoke("Where does Velm lie?")
    assert [item.page_content for item in output["summaries"]] == ["Velm lies on the river Orun."]
    assert output["summaries"][0].metadata == documents[0].metadata
    model = FakeListChatModel(responses=["a summary"])
    german = LeadSummaries(1, language="de", max_characters=9)
    for how, expected in (
        ("source", "velm"),
        (lambda d: d.page_content[:4], "Velm"),
        (model, "a summary"),
        (german, "Velm lies"),
    ):
        index = summaries_of(documents, summarize=how, embeddings=embeddings)
        assert isinstance(index, PassageIndex)
        assert index.passages[0].text == expected
    given = LazyRetrievalChain(reader, retriever, retriever, n_summaries=1, return_details=True)
    assert given.invoke("Where was Ada born?")["summaries"] == [documents[1]]


@pytest.mark.parametrize(
    ("source", "error"),
    [([], InputError), ([Document("  ")], InputError), ([1], ConfigurationError), (3, ConfigurationError)],
)
def test_what_cannot_be_summarized(source: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        summaries_of(source, embeddings=HashEmbeddings())


def test_documents_need_embeddings(documents: list[Document]) -> None:
    with pytest.raises(ConfigurationError, match="embeddings"):
        LazyRetrievalChain(reader_that_is(SURE), RunnableLambda(lambda _: []), documents)


def test_a_calibration_takes_the_place_of_tau(retriever: Any) -> None:
    reader = reader_that_is(0.5)
    chain = LazyRetrievalChain(reader, retriever, SUMMARY)
    mine = policy(0.7, chain.core.identity)
    assert (
        LazyRetrievalChain(reader, retriever, SUMMARY, threshold=mine).invoke("?")["decision"]["threshold"]
        == 0.7
    )
    other = policy(0.7, Identity("another", chain.core.signal, chain.core.identity.prompts))
    with pytest.raises(ConfigurationError, match="another"):
        LazyRetrievalChain(reader, retriever, SUMMARY, threshold=other)


# What cannot work fails when it is built, and says how to mend it.


def test_what_is_missing_is_said_at_construction(retriever: Any) -> None:
    with pytest.raises(MissingServiceError, match="llm"):
        LazyRetrievalChain()
    with pytest.raises(MissingServiceError, match="retriever"):
        LazyRetrievalChain(reader_that_is(SURE), None, SUMMARY)
    with pytest.raises(MissingServiceError, match="summaries"):
        LazyRetrievalChain(reader_that_is(SURE), retriever)
    with pytest.raises(CapabilityError, match="FakeListChatModel"):
        LazyRetrievalChain(FakeListChatModel(responses=["x"]), retriever, SUMMARY)
    with pytest.raises(ConfigurationError, match="prompt or output parser"):
        LazyRetrievalChain(RunnableLambda(str) | RunnableLambda(str), retriever, SUMMARY)
    with pytest.raises(ConfigurationError, match="retriever"):
        LazyRetrievalChain(reader_that_is(SURE), 3, SUMMARY)
    with pytest.raises(ConfigurationError, match="threshold"):
        LazyRetrievalChain(reader_that_is(SURE), retriever, SUMMARY, threshold=-1)
    with pytest.raises(ConfigurationError, match="treshold"):
        LazyRetrievalChain(reader_that_is(SURE), retriever, SUMMARY, treshold=1)


@pytest.mark.parametrize("given", ["", "  ", {}, {"text": "Where?"}, {"question": 3}, 3, {"question": ""}])
async def test_bad_questions(retriever: Any, given: Any) -> None:
    chain = LazyRetrievalChain(reader_that_is(SURE), retriever, SUMMARY)
    with pytest.raises(InputError):
        chain.invoke(given)
    with pytest.raises(InputError):
        await chain.ainvoke(given)
    with pytest.raises(InputError):
        list(chain.stream(given))
    with pytest.raises(InputError):
        [chunk async for chunk in chain.astream(given)]


def test_a_batch_keeps_failures_apart(retriever: Any) -> None:
    chain = LazyRetrievalChain(reader_that_is(SURE), retriever, SUMMARY)
    good, bad = chain.batch(["Where?", ""], return_exceptions=True)
    assert good["answer"]
    assert isinstance(bad, InputError)
    with pytest.raises(InputError):
        chain.batch(["Where?", ""])
    assert chain.batch([]) == []


def test_a_merged_batch_keeps_failures_apart(retriever: Any) -> None:
    chain = LazyRetrievalChain(LocalReader(lambda _: "Velm"), retriever, SUMMARY)
    good, bad, oddity = chain.batch(["Where?", "", {"text": 1}], return_exceptions=True)
    assert good["answer"] == "Velm"
    assert isinstance(bad, InputError)
    assert isinstance(oddity, InputError)
    with pytest.raises(InputError):
        chain.batch(["Where?", ""])
    assert chain.batch([]) == []


def test_a_retriever_of_something_else_is_found_out() -> None:
    for strange in (RunnableLambda(lambda _: ["text"]), RunnableLambda(lambda _: "text")):
        with pytest.raises(Exception, match="documents"):
            LazyRetrievalChain(reader_that_is(UNSURE), strange, SUMMARY).invoke("Where?")


async def test_a_gate_before_each_hop() -> None:
    """The second search is for what the reader says of the first fact (section VI-F)."""
    first, second = (Document(text) for text in ("Orun was founded by Ada.", "Ada was born in Velm."))
    searched: list[str] = []

    def search(query: str) -> list[Document]:
        searched.append(query)
        return [first, second] if "founded by Ada" in query else [first]

    def reading(prompt: str) -> Generation:
        if second.page_content in prompt:
            return reply("Velm", entropy=SURE)
        return reply("It was founded by Ada" if first.page_content in prompt else "Hm", entropy=UNSURE)

    chain = LazyRetrievalChain(
        FakeReader(reading), RunnableLambda(search), "Orun makes tin.", max_hops=2, return_details=True
    )
    asked = "Where was the founder of Orun born?"
    for output in (chain.invoke(asked), await chain.ainvoke(asked), chain.batch([asked])[0]):
        assert output["answer"] == "Velm"
        assert [one.page_content for one in output["passages"]] == [first.page_content, second.page_content]
    assert searched == [asked, f"{asked} It was founded by Ada"] * 3
