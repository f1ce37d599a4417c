"""Rewriting when uncertain, in LangChain's own retrievers and chains."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import warnings
from typing import Any, ClassVar

import pytest
from langchain_classic.chains import create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import EnsembleRetriever, MultiQueryRetriever
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough
from langchain_core.tools import create_retriever_tool
from langchain_core.tracers import BaseTracer
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import RetrieversIntegrationTests

from langchain_surerag.uncertainty_rewriter import UncertaintyRewriter, UncertaintyRewriteRetriever
from surerag import FakeReader
from surerag import UncertaintyRewriter as CoreRewriter
from surerag.errors import CapabilityError, ConfigurationError, InputError, MissingServiceError, PromptError
from surerag.messages import Generation
from surerag.readers.fake import reply
from tests.decisions.samples import policy
from tests.langchain.conftest import KEY, chat
from tests.methods.dynqr.painter import CLEAR, QUESTIONS, VAGUE, Batches, Library, knowing
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import ToyModel

TEXTS = {
    "ada": "Ada was born in Velm.",
    "common": "Painters are born everywhere.",
    "vague": "The painter left early.",
    "more": "The painter came back.",
}


class Store(BaseRetriever):
    """Finds Ada's passage only for who asks for Ada; counts how often it is asked."""

    k: int = 2
    asked: list[str] = []  # noqa: RUF012 (pydantic copies it)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        self.asked.append(query)
        names = ["ada", "common", "vague", "more"] if "Ada" in query else ["vague", "common", "more"]
        wanted = self.k if k is None else k
        return [Document(TEXTS[name], id=name, metadata={"source": name}) for name in names[:wanted]]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, k: int | None = None
    ) -> list[Document]:
        return self._get_relevant_documents(query, run_manager=run_manager, k=k)


def reader() -> FakeReader:
    return FakeReader(knowing)


def retriever(**settings: Any) -> UncertaintyRewriteRetriever:
    return UncertaintyRewriteRetriever(reader(), Store(), **settings)


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


class TestOfficialSuite(RetrieversIntegrationTests):
    """LangChain's own tests, on a question that is rewritten."""

    retriever_constructor: ClassVar[type[BaseRetriever]] = UncertaintyRewriteRetriever  # type: ignore[assignment]
    retriever_constructor_params: ClassVar[dict[str, Any]] = {"llm": reader(), "retriever": Store()}  # type: ignore[assignment]
    retriever_query_example: ClassVar[str] = VAGUE  # type: ignore[assignment]
    num_results_arg_name: ClassVar[str] = "top_n"  # type: ignore[assignment]


class TestOfficialSuiteExpanded(TestOfficialSuite):
    """The same with documents of both queries."""

    retriever_constructor_params: ClassVar[dict[str, Any]] = {  # type: ignore[assignment]
        "llm": reader(),
        "retriever": Store(),
        "documents": "expand",
    }


# The retriever.


async def test_the_retriever_returns_what_the_less_uncertain_answer_was_given_from() -> None:
    tool = retriever()
    expected = tool.invoke(VAGUE)
    assert ids(expected) == ["ada", "common"]
    decision = expected[0].metadata["uncertainty_rewrite"]
    assert (decision["kept"], decision["query"]) == ("rewritten", CLEAR)
    assert decision["uncertainty"] < decision["original_uncertainty"]
    assert expected[0].metadata["source"] == "ada"
    json.dumps(expected[0].metadata, allow_nan=False)
    assert expected == await tool.ainvoke(VAGUE)
    assert tool.batch([VAGUE] * 2) == await tool.abatch([VAGUE] * 2) == [expected] * 2
    assert tool.invoke(CLEAR)[0].metadata["uncertainty_rewrite"]["kept"] == "original"
    assert list(retriever(decision_key=None).invoke(VAGUE)[0].metadata) == ["source"]


async def test_a_certain_question_costs_one_retrieval_and_one_answer() -> None:
    asked, store = reader(), Store()
    tool = UncertaintyRewriteRetriever(asked, store)
    tool.invoke(CLEAR)
    assert (store.asked, len(asked.prompts)) == ([CLEAR], 1)
    await tool.ainvoke(CLEAR)
    assert (store.asked, len(asked.prompts)) == ([CLEAR] * 2, 2)
    tool.invoke(VAGUE)
    assert (store.asked[2:], len(asked.prompts)) == ([VAGUE, CLEAR], 5)


def test_the_core_and_both_faces_agree() -> None:
    from langchain_surerag import RunnableRetriever

    for documents in ("substitute", "expand"):
        core = CoreRewriter(reader(), RunnableRetriever(Store()), documents=documents, top_n=3)
        expected = core.run(VAGUE)
        settings: dict[str, Any] = {"documents": documents, "top_n": 3}
        runnable = UncertaintyRewriter(reader(), Store(), **settings)
        assert runnable.rewrite(VAGUE).to_dict() == expected.to_dict()
        found = retriever(**settings).invoke(VAGUE)
        assert ids(found) == [passage.id for passage in expected.passages]
        assert dict(found[0].metadata["uncertainty_rewrite"]) == dict(expected.to_dict())


async def test_options_of_one_call_hold_for_it_and_unknown_ones_raise() -> None:
    tool = retriever()
    assert ids(tool.invoke(VAGUE, top_n=1)) == ids(await tool.ainvoke(VAGUE, k=1)) == ["ada"]
    assert ids(tool.invoke(VAGUE, threshold=99.0)) == ["vague", "common"]
    assert ids(tool.invoke(VAGUE)) == ["ada", "common"]
    with pytest.raises(ConfigurationError, match="Did you mean threshold"):
        tool.invoke(VAGUE, treshold=99.0)
    with pytest.raises(ConfigurationError, match="Did you mean threshold"):
        await tool.ainvoke(VAGUE, treshold=99.0)


async def test_create_retrieval_chain() -> None:
    prompt = ChatPromptTemplate.from_template("{context}\n{input}")
    llm = RunnableLambda(lambda value: value.to_string())
    chain = create_retrieval_chain(retriever(), create_stuff_documents_chain(llm, prompt))
    for output in (chain.invoke({"input": VAGUE}), await chain.ainvoke({"input": VAGUE})):
        assert ids(output["context"]) == ["ada", "common"]
        # The model behind it is asked the question, not the rewrite.
        assert "Ada was born in Velm." in output["answer"]
        assert VAGUE in output["answer"]


HISTORY = [HumanMessage("Do you know Ada the painter?"), AIMessage("I do.")]
REPHRASE = ChatPromptTemplate.from_messages(
    [
        ("system", "Phrase a question that stands alone."),
        MessagesPlaceholder("chat_history"),
        ("human", "{input}"),
    ]
)


def conversing(prompt: str) -> Generation:
    """Rewrites only after a conversation."""
    if "without the conversation above" in prompt:
        assert prompt.startswith("Do you know Ada the painter?\nI do.\n")
        assert "Phrase a question" not in prompt
        return reply(CLEAR)
    return knowing(prompt)


async def test_create_history_aware_retriever() -> None:
    asked = {"input": "Where was she born, the painter?", "chat_history": HISTORY}
    # Around the retriever, another model condenses; in the model's place, the rewriter does.
    condensing = FakeListChatModel(responses=[VAGUE])
    around = create_history_aware_retriever(condensing, retriever(), REPHRASE)
    rewriter = UncertaintyRewriter(FakeReader(conversing), Store())
    within = create_history_aware_retriever(rewriter, Store(), REPHRASE)
    for chain in (around, within, rewriter | Store()):
        assert ids(chain.invoke(asked)) == ids(await chain.ainvoke(asked)) == ["ada", "common"]
    assert ids(within.invoke({"input": CLEAR, "chat_history": []})) == ["ada", "common"]


async def test_multi_query_retriever_around_it_removes_duplicates() -> None:
    llm = FakeListChatModel(responses=[f"{VAGUE}\n{CLEAR}\nWho paints?"])
    multi = MultiQueryRetriever.from_llm(retriever(top_n=1), llm, include_original=True)
    for found in (multi.invoke(VAGUE), await multi.ainvoke(VAGUE)):
        assert ids(found) == ["ada"]
    ensemble = EnsembleRetriever(retrievers=[retriever(), Store()], weights=[0.5, 0.5], id_key="source")
    assert set(ids(ensemble.invoke(VAGUE))) == {"ada", "common", "vague"}


async def test_in_a_pipeline_and_as_a_tool() -> None:
    def shown(documents: list[Document]) -> str:
        return " ".join(document.page_content for document in documents)

    prompt = ChatPromptTemplate.from_template("{context} {question}")
    llm = RunnableLambda(lambda value: value.to_string())
    pipeline = (
        {"context": retriever() | shown, "question": RunnablePassthrough()} | prompt | llm | StrOutputParser()
    )
    assert "Velm" in pipeline.invoke(VAGUE)
    assert "Velm" in await pipeline.ainvoke(VAGUE)
    tool = create_retriever_tool(
        retriever(), "atlas", "Knows painters.", response_format="content_and_artifact"
    )
    message = await tool.ainvoke({"args": {"query": VAGUE}, "id": "1", "name": "atlas", "type": "tool_call"})
    assert ids(message.artifact) == ["ada", "common"]


# The runnable.


@pytest.mark.parametrize(
    "given",
    [
        VAGUE,
        {"question": VAGUE},
        {"input": VAGUE, "chat_history": []},
        HumanMessage(VAGUE),
        [("human", VAGUE)],
    ],
)
async def test_the_runnable_returns_the_query_to_search_with(given: Any) -> None:
    rewriter = UncertaintyRewriter(reader(), Store())
    assert rewriter.invoke(given) == await rewriter.ainvoke(given) == CLEAR
    assert rewriter.invoke(CLEAR) == CLEAR
    assert ids((rewriter | Store()).invoke(given)) == ["ada", "common"]
    result = await rewriter.arewrite(given)
    assert (result.answer, result.kept) == ("In Velm", "rewritten")


async def test_batches_are_merged_and_equal() -> None:
    local = Batches()
    rewriter = UncertaintyRewriter(local, Store())
    expected = [CLEAR] * 10 + QUESTIONS[10:]
    assert await asyncio.to_thread(rewriter.batch, QUESTIONS) == expected
    assert local.sizes == [16, 10, 10]
    assert await rewriter.abatch(QUESTIONS) == expected
    assert UncertaintyRewriter(reader(), Store()).batch(QUESTIONS) == expected
    good, bad = rewriter.batch([VAGUE, ""], return_exceptions=True)
    assert good == CLEAR
    assert isinstance(bad, InputError)


@pytest.mark.parametrize("given", ["", {}, 3, [], [AIMessage("Hello")], {"question": 3}])
def test_what_is_no_question_is_refused(given: Any) -> None:
    with pytest.raises(InputError):
        UncertaintyRewriter(reader(), Store()).invoke(given)


# Runs, events, failures.


class Runs(BaseTracer):
    """Keeps the tree of runs."""

    def _persist_run(self, run: Any) -> None:
        TREES.append(run)


TREES: list[Any] = []


async def test_calls_hang_under_its_run_and_events_are_seen() -> None:
    with FakeOpenAI(ToyModel(sharpness=0.01)) as server:
        faces: list[Any] = [
            kind(chat(server), Store(), max_tokens=4, threshold=1.0)
            for kind in (UncertaintyRewriter, UncertaintyRewriteRetriever)
        ]
        for face in faces:
            for ask in (face.invoke, face.ainvoke):
                TREES.clear()
                found = ask(VAGUE, {"callbacks": [Runs()]})
                if asyncio.iscoroutine(found):
                    await found
                [tree] = TREES
                kinds = [child.run_type for child in tree.child_runs]
                assert kinds[:3] == ["retriever", "llm", "llm"]
            names = [
                event["name"]
                async for event in face.astream_events(VAGUE, version="v2")
                if event["event"] == "on_custom_event"
            ]
            assert names[0] == "uncertainty_rewriting.gate"
            assert names[-1] == "uncertainty_rewriting.decided"


async def test_a_failing_rewriter_is_an_event_and_the_original_stands() -> None:
    def broken(prompt: str) -> str:
        raise TimeoutError("too slow")

    tool = retriever(rewriter=FakeReader(broken))
    assert ids(tool.invoke(VAGUE)) == ["vague", "common"]
    events = [e async for e in tool.astream_events(VAGUE, version="v2") if e["event"] == "on_custom_event"]
    assert "uncertainty_rewriting.failed" in [event["name"] for event in events]
    with pytest.raises(TimeoutError):
        retriever(rewriter=FakeReader(broken), on_failure="raise").invoke(VAGUE)


async def test_it_is_truly_async() -> None:
    with FakeOpenAI(ToyModel(sharpness=9.0)) as server:
        tool = UncertaintyRewriteRetriever(chat(server), Store(), max_tokens=8)
        server.pause()
        asked = asyncio.gather(*(tool.ainvoke(f"{VAGUE} {at}") for at in range(4)))
        await asyncio.to_thread(server.wait_for, 4)
        server.release()
        await asked
        assert server.peak == 4


# Settings, prompts, serialisation.


def test_prompts_and_settings() -> None:
    asked = reader()
    tool = UncertaintyRewriteRetriever(
        asked,
        Store(),
        prompts={
            "answer": "SEE {passages} SAY {question}",
            "rewrite": PromptTemplate.from_template("X {query}"),
        },
    )
    tool.invoke(VAGUE)
    assert asked.prompts[:2] == [f"SEE [1] {TEXTS['vague']}\n[2] {TEXTS['common']} SAY {VAGUE}", f"X {VAGUE}"]
    for prompts in ({"answer": "{passages}"}, {"reword": "{query}"}):
        with pytest.raises(PromptError):
            retriever(prompts=prompts)
    for settings in ({"documents": "both"}, {"threshold": float("nan")}, {"candidates": 0}):
        with pytest.raises(ConfigurationError, match=r"documents|threshold|candidates"):
            retriever(**settings)
    with pytest.raises(MissingServiceError, match="llm"):
        UncertaintyRewriteRetriever(retriever=Store())
    with pytest.raises(CapabilityError, match="FakeListChatModel"):
        UncertaintyRewriteRetriever(FakeListChatModel(responses=["x"]), Store())
    with pytest.raises(ConfigurationError):
        UncertaintyRewriter(reader(), 3)
    assert UncertaintyRewriter(reader(), Library()).invoke(VAGUE) == CLEAR


@pytest.mark.parametrize("kind", [UncertaintyRewriter, UncertaintyRewriteRetriever])
def test_unknown_names_raise_and_the_near_ones_are_told(kind: Any) -> None:
    for name, near in (("treshold", "threshold"), ("n_sample", "n_samples"), ("topn", "top_n")):
        with pytest.raises(ConfigurationError, match=f"Did you mean .*{near}"):
            kind(reader(), Store(), **{name: 1})
        with pytest.raises(ConfigurationError, match=f"Did you mean .*{near}"):
            kind(reader(), Store()).model_copy(update={name: 1})


@pytest.mark.parametrize("kind", [UncertaintyRewriter, UncertaintyRewriteRetriever])
def test_what_is_set_or_copied_is_in_force_and_copies_share_services(kind: Any) -> None:
    tool = kind(reader(), Store())
    other = tool.model_copy(update={"threshold": 99.0})
    assert (tool.core.run(VAGUE).acted, other.core.run(VAGUE).acted) == (True, False)
    tool.threshold = 99.0
    assert not tool.core.run(VAGUE).acted
    with pytest.raises(ConfigurationError, match="top_n must be at least 1"):
        tool.top_n = 0
    assert (tool.top_n, tool.core.top_n) == (None, None)
    deep = copy.deepcopy(tool)
    assert deep.core.reader is tool.core.reader
    assert deep.core.chosen() == tool.core.chosen()
    again = pickle.loads(pickle.dumps(kind(FakeReader(["Velm"]), Store(), threshold=1.3, top_n=1)))
    assert (again.core.threshold, again.core.top_n) == (1.3, 1)
    assert again.core.run(CLEAR).answer == "Velm"


def test_options_fields_and_help_are_those_of_the_core() -> None:
    for kind in (UncertaintyRewriter, UncertaintyRewriteRetriever):
        for name, option in CoreRewriter.OPTIONS.items():
            assert kind.model_fields[name].default == option.default
            assert kind.model_fields[name].description == option.doc


def test_fields_are_configurable_and_a_calibration_takes_the_thresholds_place() -> None:
    tool = UncertaintyRewriter(reader(), Store()).configurable_fields(
        threshold=ConfigurableField(id="threshold")
    )
    assert tool.invoke(VAGUE, {"configurable": {"threshold": 99.0}}) == VAGUE
    core = CoreRewriter(reader(), Library())
    mine = policy(99.0, core.identity)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert UncertaintyRewriter(reader(), Store(), threshold=mine).invoke(VAGUE) == VAGUE
    with pytest.raises(ConfigurationError, match="for the reader 'scripted'"):
        UncertaintyRewriter(FakeReader(knowing, name="another"), Store(), threshold=mine)
    assert retriever().with_fallbacks([Store()]).with_retry().invoke(VAGUE)


@pytest.mark.filterwarnings("ignore:.*is in beta")
@pytest.mark.parametrize("kind", [UncertaintyRewriter, UncertaintyRewriteRetriever])
def test_written_down_without_secrets_and_loaded(server: FakeOpenAI, kind: Any) -> None:
    first = kind(chat(server), Store(), threshold=1.1, documents="expand", prompts={"rewrite": "X {query}"})
    text = dumps(first)
    assert KEY not in text
    assert KEY not in repr(first)
    loaded = loads(
        text,
        allowed_objects=[kind, ChatOpenAI],
        valid_namespaces=["langchain_surerag"],
        secrets_map={"OPENAI_API_KEY": KEY},
    )
    assert loaded.detached == ("retriever",)
    with pytest.raises(MissingServiceError, match="retriever"):
        loaded.invoke(VAGUE)
    again = loaded.attach(retriever=Store())
    assert again.invoke(VAGUE) == first.invoke(VAGUE)
    assert dumps(again) == text
    found = policy(1.3, first.core.identity)
    kept = loads(
        dumps(first.with_options(threshold=found)),
        allowed_objects=[kind, ChatOpenAI],
        valid_namespaces=["langchain_surerag"],
        secrets_map={"OPENAI_API_KEY": KEY},
    )
    assert kept.attach(retriever=Store()).core.boundary() == 1.3
    own = kind(reader(), Store(), metric=lambda answer: float("perhaps" in answer.text), threshold=0.5)
    living = loads(dumps(own), allowed_objects=[kind], valid_namespaces=["langchain_surerag"])
    assert set(living.detached) == {"llm", "retriever", "metric"}
    assert living.attach(llm=reader(), retriever=Store(), metric=own.metric).invoke(VAGUE) == own.invoke(
        VAGUE
    )
