"""I do not know: asked for, recognised in any script, and never taken for a sure answer."""

from __future__ import annotations

import pytest

from surerag import AnswerPolicy, LazyRAG, Passage, SelectiveAnswer, UncertaintyRewriter
from surerag.errors import ConfigurationError
from surerag.messages import Message, as_messages
from surerag.readers.fake import FakeReader, reply
from surerag.refusal import REFUSAL, begins_to_refuse, refuses, worded

BORN = Passage("Ada was born in Velm.", id="born")
CHINESE = "我不知道。"
THAI = "ฉันไม่ทราบ"


class Corpus:
    """Finds the first passage with the question, and the second with anything else."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [BORN if "Ada" in query else Passage("Tin melts.", id="tin")]


@pytest.mark.parametrize(
    ("answer", "refusal", "is_one"),
    [
        ("I do not know", REFUSAL, True),
        ("i do not know!", REFUSAL, True),
        ("I do not know. The context says nothing of it.", REFUSAL, True),
        ("I do not know the man, but he was born in Velm.", REFUSAL, False),
        ("", REFUSAL, False),
        ("我 不知道", CHINESE, True),
        ("我不知道。文中没有提到。", CHINESE, True),
        ("我不知道他", CHINESE, False),
        ("ฉันไม่ทราบ", THAI, True),
        ("ฉันไม่ทราบ เพราะไม่มีข้อมูล", THAI, True),
        ("ฉันไม่ทราบชื่อ แต่เธอเล่นพิณ", THAI, False),
        ("لا أعرف، فلا شيء يقول ذلك", "لا أعرف.", True),
        ("Das wei\u00df ich nicht, scho\u0308n.", "Das weiß ich nicht, schön.", True),
        ("I do not know", None, False),
    ],
)
def test_a_refusal_is_known_by_its_letters(answer: str, refusal: str | None, is_one: bool) -> None:
    assert refuses(answer, refusal) is is_one


def test_a_beginning_is_one_from_half_of_it_on() -> None:
    assert begins_to_refuse("I do no", REFUSAL)
    assert begins_to_refuse("我不知", CHINESE)
    assert not begins_to_refuse("I", REFUSAL)
    assert not begins_to_refuse("I do nothing", REFUSAL)
    assert not begins_to_refuse("", REFUSAL)


@pytest.mark.parametrize("refusal", ["", " ", "…"])
def test_a_refusal_has_words(refusal: str) -> None:
    for part in (
        lambda: LazyRAG(FakeReader(), Corpus(), "Ada.", refusal=refusal),
        lambda: UncertaintyRewriter(FakeReader(), Corpus(), refusal=refusal),
        lambda: SelectiveAnswer(POLICY, refusal),
    ):
        with pytest.raises(ConfigurationError, match="the refusal is empty"):
            part()


def test_wishes_stand_before_the_prompt_and_only_when_wished() -> None:
    reader = FakeReader(["Velm"] * 3)
    plain = LazyRAG(reader, Corpus(), "Ada was born in Velm.")
    plain.run("Where was Ada born?")
    plain.with_options(refusal=CHINESE, same_language=True).run("艾达在哪里出生?")
    first, second = reader.prompts
    assert first.startswith("Context: ")
    assert second.startswith(
        "Answer in the language of the question.\nWhere nothing supports an answer, reply only: "
        f"{CHINESE}\nContext: "
    )


def test_in_a_conversation_they_stand_before_the_last_turn() -> None:
    turns = (Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Where?"))
    options = LazyRAG(FakeReader(), Corpus(), "x", same_language=True)
    *earlier, last = as_messages(worded(turns, options))
    assert tuple(earlier) == turns[:2]
    assert last == Message("user", "Answer in the language of the question.\nWhere?")


@pytest.mark.parametrize("gate_tokens", [3, 8])
def test_a_reader_that_is_sure_that_it_does_not_know_retrieves(gate_tokens: int) -> None:
    def read(prompt: str):
        return reply("Velm" if "Velm" in prompt else REFUSAL, entropy=0.01)

    rag = LazyRAG(FakeReader(read), Corpus(), "Tin melts.", refusal=REFUSAL, gate_tokens=gate_tokens)
    result = rag.run("Where was Ada born?")
    assert (result.answer, result.abstained, result.decision.retrieve) == ("Velm", False, True)
    assert result.decision.reason == "the first pass says that it does not know"
    without = rag.with_options(refusal=None).run("Where was Ada born?")
    assert (without.answer, without.decision.retrieve) == (REFUSAL, False)
    shut = rag.with_options(threshold=float("inf")).run("Where was Ada born?")
    assert (shut.abstained, shut.decision.retrieve) == (True, False)


def test_so_does_one_whose_samples_agree_that_they_do_not_know() -> None:
    rag = LazyRAG(
        FakeReader(lambda prompt: "Velm" if "Velm" in prompt else REFUSAL),
        Corpus(), "Tin melts.", refusal=REFUSAL, gate="disagreement",
    )  # fmt: skip
    assert rag.run("Where was Ada born?").answer == "Velm"


def test_where_nothing_found_supports_an_answer_the_result_says_so() -> None:
    rag = LazyRAG(FakeReader(lambda _: CHINESE), Corpus(), "Tin melts.", refusal=CHINESE)
    result = rag.run("Where was Bo born?")
    assert (result.answer, result.abstained, result.retrievals) == (CHINESE, True, 1)


def test_a_sure_refusal_is_rewritten_and_loses_to_any_answer() -> None:
    def read(prompt: str):
        if prompt.startswith("Rewrite"):
            return reply("Where was Ada born?")
        return reply("Velm", logprobs=-2.0) if "Velm" in prompt else reply(REFUSAL, logprobs=-0.001)

    part = UncertaintyRewriter(FakeReader(read), Corpus(), refusal=REFUSAL)
    result = part.run("Where was she born?")
    assert (result.answer, result.kept, result.abstained) == ("Velm", "rewritten", False)
    assert result.steps[0].reason == "the first answer is that it does not know"
    assert part.with_options(refusal=None).run("Where was she born?").answer == REFUSAL


def test_an_answer_policy_never_shows_a_refusal_as_an_answer() -> None:
    chosen = SelectiveAnswer(POLICY, CHINESE).select("我不知道", 0.0)
    assert (chosen.text, chosen.abstained) == (CHINESE, True)


POLICY = AnswerPolicy(0.5, 0.1, 0.95, 100, 0.6, 0.05, True, None, (0.0, 1.0), (0.9, 0.1))


def test_engines_and_chains_take_the_options_over() -> None:
    from llama_index.core import Document, SummaryIndex

    from langchain_surerag import LazyRetrievalChain, UncertaintyRewriteRetriever
    from llama_index_surerag import LazyRetrievalQueryEngine

    for part in (LazyRetrievalChain, UncertaintyRewriteRetriever):
        assert {"refusal", "same_language"} <= set(part.model_fields)
    index = SummaryIndex.from_documents([Document(text="Tin melts.")])
    reader = FakeReader(lambda _: REFUSAL)
    engine = LazyRetrievalQueryEngine.from_args(index, reader, summaries="Tin melts.", refusal=REFUSAL)
    response = engine.query("Where was Bo born?")
    assert str(response) == REFUSAL
    assert response.metadata["abstained"] is True
