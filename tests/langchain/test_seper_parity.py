"""One model, three houses: the core, LlamaIndex and LangChain give the same ΔSePer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import transformers
from langchain_core.documents import Document
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from langsmith import aevaluate, evaluate
from langsmith.schemas import Example
from llama_index.core.evaluation import BatchEvalRunner
from llama_index.llms.huggingface import HuggingFaceLLM
from numpy.typing import NDArray

import langchain_surerag
import llama_index_surerag
from surerag import Adaptive, Passage, SePer, SePerCase, SePerResult, TransformersReader
from surerag.messages import Pair
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

TEXTS = {
    "Where does Velm lie?": ["Velm lies on the Orun.", "Tarn is old."],
    "Where was Ada born?": ["Ada was born in Velm."],
    "What is the Orun?": ["The Orun is a river.", "It ends in the sea.", "Bo paints."],
    "Is Tarn old?": ["Tarn is new."],
}


class Overlap:
    """Entailment in degrees: the share of letters that the first statement has in common with the second."""

    name = "overlap"
    local = True

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        shares = [
            len(set(pair.premise) & set(pair.hypothesis)) / max(len(set(pair.premise)), 1) for pair in pairs
        ]
        return np.array([[(1 - share) / 2, (1 - share) / 2, share] for share in shares]).reshape(-1, 3)


def of_core(results: Sequence[SePerResult]) -> list[tuple[float, float, float]]:
    return [(result.before.seper, result.after.seper, result.delta) for result in results]


def of_llama(results: Sequence[Any]) -> list[tuple[float, float, float]]:
    return [(result.before, result.after, result.score) for result in results]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kernel": "hard", "weights": "official", "golds": "mean"},
        {"adaptive": Adaptive(width=1.4, first=2)},
    ],
)
async def test_core_llama_index_and_langchain_agree_sync_async_and_batched(settings: dict[str, Any]) -> None:
    model, tokenizer = tiny_model("llama"), tiny_tokenizer(chat=True)
    pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    settings = {"n_samples": 4, "max_tokens": 5, "seed": 2, **settings}
    core = SePer(TransformersReader(model, tokenizer), Overlap(), **settings)
    llm = HuggingFaceLLM(
        model=model, tokenizer=tokenizer, max_new_tokens=5, is_chat_model=True, context_window=512
    )
    llama = llama_index_surerag.DeltaSePerEvaluator(llm, Overlap(), **settings)
    chat = ChatHuggingFace(llm=HuggingFacePipeline(pipeline=pipeline), tokenizer=tokenizer)
    chain = langchain_surerag.DeltaSePerEvaluator(chat, Overlap(), **settings)

    questions, golds = list(TEXTS), [["Velm", "near Tarn"], ["ba di"], ["a river", "lu"], ["no"]]
    cases = [
        SePerCase(question, gold, [Passage(text) for text in TEXTS[question]])
        for question, gold in zip(questions, golds, strict=True)
    ]
    expected = of_core([core.run(*case) for case in cases])
    assert len({round(delta, 4) for _, _, delta in expected}) > 1, "there is something to agree on"

    given = [
        {"query": q, "contexts": TEXTS[q], "reference": g} for q, g in zip(questions, golds, strict=True)
    ]
    runner = BatchEvalRunner({"delta": llama}, workers=4)
    batched = await runner.aevaluate_response_strs(
        queries=questions, contexts_list=[TEXTS[q] for q in questions], reference=golds
    )
    examples = [
        Example(id=uuid4(), dataset_id=uuid4(), inputs={"question": q}, outputs={"answers": g})
        for q, g in zip(questions, golds, strict=True)
    ]

    def retrieve(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"documents": [Document(text) for text in TEXTS[inputs["question"]]]}

    async def aretrieve(inputs: dict[str, Any]) -> dict[str, Any]:
        return retrieve(inputs)

    def of_chain(rows: Sequence[Any]) -> list[tuple[float, float, float]]:
        found = {row["example"].inputs["question"]: row["evaluation_results"]["results"] for row in rows}
        return [
            (before.score, after.score, delta.score)
            for delta, before, after in (found[question] for question in questions)
        ]

    rows = await aevaluate(
        aretrieve, data=examples, evaluators=[chain.acall], max_concurrency=4, upload_results=False
    )
    ways = {
        "core, async": of_core([await core.arun(*case) for case in cases]),
        "core, batched": of_core(core.run_many(cases)),
        "LlamaIndex": of_llama([llama.evaluate(**item) for item in given]),
        "LlamaIndex, async": of_llama([await llama.aevaluate(**item) for item in given]),
        "LlamaIndex, batched": of_llama(batched["delta"]),
        "LangChain": of_chain(
            list(evaluate(retrieve, data=examples, evaluators=[chain], upload_results=False))
        ),
        "LangChain, batched": of_chain(
            list(
                evaluate(retrieve, data=examples, evaluators=[chain], max_concurrency=4, upload_results=False)
            )
        ),
        "LangChain, async": of_chain([row async for row in rows]),
    }
    for way, found in ways.items():
        assert np.allclose(found, expected, atol=1e-5), way

    drawn = [result.drawn and result.drawn.samples for result in (core.run(*case) for case in cases)]
    assert [result.drawn and result.drawn.samples for result in batched["delta"]] == drawn
    values = {
        row["example"].inputs["question"]: row["evaluation_results"]["results"][0].value
        for row in evaluate(retrieve, data=examples, evaluators=[chain], upload_results=False)
    }
    assert [values[q]["drawn"] and values[q]["drawn"]["samples"] for q in questions] == drawn
