"""A workflow that answers, and asks whether the reader understood what it read.

    pip install "surerag[demo]" llama-index-embeddings-huggingface
    python llama_index_workflow.py

What the parts decide goes to the workflow's event stream while it happens, and so does the answer, in pieces.
"""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.response.schema import Response
from llama_index.core.workflow import Context, Event, StartEvent, StopEvent, Workflow, step
from llama_index.embeddings.huggingface import HuggingFaceEmbedding

from llama_index_surerag import (
    AdaptiveSemanticNodeParser,
    AnswerStreamEvent,
    DenseEvaluator,
    LazyRetrievalQueryEngine,
    MethodStreamEvent,
    answer_in,
    streamed_to,
)
from surerag.encoders import packaged_minilm_path
from surerag.world import embedded_reader

MODEL = embedded_reader  # yours: lambda: OpenAI("gpt-4o")
DOCUMENTS = (
    "Maela was born in Drafstad. Maela works as a sailor. Maela plays the mandolin. Maela keeps a hamster.",
    "Drafstad exports salt. Drafstad was founded in the year 1867.",
)


class Answered(Event):
    """An answer, and what it was given from."""

    question: str
    response: Any


class AskAndCheck(Workflow):
    """Answers lazily, and says whether the reader understood.

    Args:
        engine: Answers.
        judge: Says whether what was read was understood.
        arguments: Of any workflow.
    """

    def __init__(self, engine: LazyRetrievalQueryEngine, judge: DenseEvaluator, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._engine, self._judge = engine, judge

    @step
    async def answer(self, ctx: Context, event: StartEvent) -> Answered:
        """Answer; search if unsure."""
        response = await answer_in(ctx, self._engine, event.question)
        return Answered(question=event.question, response=response)

    @step
    async def check(self, ctx: Context, event: Answered) -> StopEvent:
        """Ask whether the answer survives other wordings of what was read."""
        with streamed_to(ctx):
            judged = await self._judge.aevaluate_response(event.question, event.response)
        return StopEvent(result=(event.response, judged))


def build() -> AskAndCheck:
    """Return the workflow over an index of its own."""
    model = MODEL()
    embed_model = HuggingFaceEmbedding(str(packaged_minilm_path()), device="cpu")
    splitter = AdaptiveSemanticNodeParser(embed_model, chunk_size=20)
    index = VectorStoreIndex.from_documents(
        [Document(text=text) for text in DOCUMENTS], embed_model=embed_model, transformations=[splitter]
    )
    engine = LazyRetrievalQueryEngine.from_args(
        index, model, embed_model=embed_model, streaming=True, max_tokens=16
    )
    return AskAndCheck(engine, DenseEvaluator(model, max_tokens=16, rephrase_tokens=32), timeout=120)


async def ask(workflow: AskAndCheck, question: str) -> tuple[Response, Any]:
    """Run the workflow, and print its stream."""
    run = workflow.run(question=question)
    print(question)
    async for event in run.stream_events():
        if isinstance(event, MethodStreamEvent) and event.name == "lazy_rag.gate":
            print(f"  gate: {event.data['reason']} ({event.data['signal']:.2f} nats)")
        elif isinstance(event, AnswerStreamEvent):
            print(f"  + {event.delta}")
    found: tuple[Response, Any] = await run
    return found


async def main() -> None:
    """Ask what a summary tells, and what a search finds."""
    workflow = build()
    for question in ("Where was Maela born?", "Which instrument does Maela play?"):
        response, judged = await ask(workflow, question)
        print(f"  {response} (searched: {response.metadata['retrieve']}; understood: {judged.passing})")


if __name__ == "__main__":
    asyncio.run(main())
