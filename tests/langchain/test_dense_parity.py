"""One model, in the core and in LangChain: the same entropies, answers and labels, however it is asked."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import transformers
from langchain_core.documents import Document
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from langsmith import aevaluate, evaluate
from langsmith.schemas import Example

from langchain_surerag import DenseEvaluator, DenseRefiner
from surerag import (
    DenseCache,
    Passage,
    TransformersReader,
)
from surerag import (
    DenseEvaluator as Dense,
)
from surerag import (
    DenseRefiner as ContextRefiner,
)
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer, JudgeEntailer
from tests.readers.tiny_models import tiny_model, tiny_tokenizer
from world import World, embedded_reader

TEXTS = {
    "Where does Velm lie?": ["Velm lies on the Orun.", "Tarn is old.", "Bo paints."],
    "Where was Ada born?": ["Ada was born in Velm."],
    "What is the Orun?": ["The Orun is a river.", "It ends in the sea.", "Bo paints.", "Cy sings."],
    "Is Tarn old?": ["Tarn is new.", "It was built late."],
}


def given(texts: list[str]) -> list[Passage]:
    return [Passage(text, id=str(at)) for at, text in enumerate(texts)]


def documents(texts: list[str]) -> list[Document]:
    return [Document(text, id=str(at)) for at, text in enumerate(texts)]


@pytest.fixture(scope="module")
def chat() -> ChatHuggingFace:
    model, tokenizer = tiny_model("llama"), tiny_tokenizer(chat=True)
    pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    return ChatHuggingFace(llm=HuggingFacePipeline(pipeline=pipeline), tokenizer=tokenizer)


@pytest.fixture(scope="module")
def reader() -> TransformersReader:
    return TransformersReader(tiny_model("llama"), tiny_tokenizer(chat=True))


class Known(dict[str, str]):
    """Rephrasings that are all known: a tiny model would never end one."""

    def __contains__(self, key: object) -> bool:
        return True

    def get(self, key: str, default: Any = None) -> str:
        return "Said otherwise."


def known() -> DenseCache:
    return DenseCache(rephrasings=Known())


async def test_the_evaluator_gives_the_core_s_entropies(chat: Any, reader: TransformersReader) -> None:
    core = Dense(reader, ExactEntailer(), max_tokens=2, cache=known())
    expected = {question: core.run(question, given(texts)) for question, texts in TEXTS.items()}
    assert len({round(result.score, 4) for result in expected.values()}) > 1, "there is something to agree on"
    evaluator = DenseEvaluator(chat, ExactEntailer(), max_tokens=2, dense_cache=known())

    def retrieve(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"documents": documents(TEXTS[inputs["question"]])}

    async def aretrieve(inputs: dict[str, Any]) -> dict[str, Any]:
        return retrieve(inputs)

    examples = [Example(id=uuid4(), dataset_id=uuid4(), inputs={"question": question}) for question in TEXTS]
    settings: dict[str, Any] = {"data": examples, "max_concurrency": 4, "upload_results": False}
    rows = list(evaluate(retrieve, evaluators=[evaluator], **settings))
    rows += [row async for row in await aevaluate(aretrieve, evaluators=[evaluator.acall], **settings)]
    assert len(rows) == 2 * len(TEXTS)
    for row in rows:
        of_core = expected[row["example"].inputs["question"]]
        found = row["evaluation_results"]["results"][0]
        assert found.score == pytest.approx(of_core.score, abs=1e-5)
        assert found.value["answers"] == list(of_core.answers)


async def test_the_refiner_gives_the_core_s_contexts(chat: Any, reader: TransformersReader) -> None:
    settings: dict[str, Any] = {"top_n": 2, "rounds": 3, "only_uncertain": False, "max_tokens": 2}
    core = ContextRefiner(reader, ExactEntailer(), HashingEncoder(), **settings, cache=known())
    refiner = DenseRefiner(chat, HashingEncoder(), entailer=ExactEntailer(), **settings, dense_cache=known())
    asked = [{"documents": documents(texts), "query": question} for question, texts in TEXTS.items()]
    batches = [refiner.as_runnable().batch(asked), await refiner.as_runnable().abatch(asked)]
    for at, (question, texts) in enumerate(TEXTS.items()):
        expected = core.run(question, given(texts))
        assert expected.stopped != "failed"
        for one in [
            refiner.refine(documents(texts), question),
            await refiner.arefine(documents(texts), question),
        ]:
            assert [[p.id for p in r.measured.passages] for r in one.rounds] == [
                [p.id for p in r.measured.passages] for r in expected.rounds
            ]
            assert np.allclose(
                [r.measured.score for r in one.rounds], [r.measured.score for r in expected.rounds], atol=1e-5
            )
            assert [r.measured.labels for r in one.rounds] == [r.measured.labels for r in expected.rounds]
        for batch in batches:
            assert [document.id for document in batch[at]] == [passage.id for passage in expected.passages]


async def test_with_the_embedded_reader_who_judges_itself() -> None:
    reader, world = embedded_reader(), World(seed=5, size=60)
    question = next(q for q in world.questions(20) if len(q.gold_passages) == 1)
    passages = world.context(question, 3, noise=0.5)
    core = Dense(reader, JudgeEntailer(reader)).run(question.text, passages)
    found = [Document(passage.text, id=passage.id) for passage in passages]
    feedback = await DenseEvaluator(reader).acall(
        inputs={"question": question.text}, outputs={"documents": found}
    )
    assert feedback["results"][0]["score"] == pytest.approx(core.score, abs=1e-5)
    assert feedback["results"][0]["value"]["answers"] == list(core.answers)
    refiner = DenseRefiner(reader, HashingEncoder(), top_n=2, rounds=2)
    refined = refiner.compress_documents(found, question.text)
    again = ContextRefiner(reader, JudgeEntailer(reader), HashingEncoder(), top_n=2, rounds=2)
    assert [document.id for document in refined] == [
        passage.id for passage in again.run(question.text, passages).passages
    ]
