"""A graph that does only as much as its reader's doubt asks for.

    pip install "surerag[demo,agents]" langchain-huggingface
    python langgraph_agent.py

The reader answers from summaries, and searches if unsure (L-RAG). If what it then says stands in no document
that it was shown, a person is asked: the graph waits, keeps its state in a checkpoint, and goes on with what
the person says.
"""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from langchain_surerag import LazyRetrievalChain, RAGState, lazy_retrieval_node
from surerag.encoders import packaged_minilm_path
from surerag.world import embedded_reader

MODEL = embedded_reader  # yours: lambda: ChatOpenAI(model="gpt-4o")
DOCUMENTS = (
    "Maela was born in Drafstad. Maela works as a sailor. Maela plays the mandolin.",
    "Drafstad exports salt. Drafstad was founded in the year 1867.",
)


def stands_in(state: RAGState) -> bool:
    """Whether some document that was shown has the answer word for word; put a judge of your own here."""
    said = state["answer"].casefold()
    return any(said in document.page_content.casefold() for document in state["context"])


def build() -> Any:
    """Return the compiled graph."""
    documents = [Document(text) for text in DOCUMENTS]
    embeddings = HuggingFaceEmbeddings(model_name=str(packaged_minilm_path()), model_kwargs={"device": "cpu"})
    retriever = InMemoryVectorStore.from_documents(documents, embeddings).as_retriever(search_kwargs={"k": 2})
    model = MODEL()
    chain = LazyRetrievalChain.from_documents(documents, model, retriever, embeddings, max_tokens=16)

    def check(state: RAGState) -> Command[Literal["ask_a_person", "__end__"]]:
        searched = state["decision"]["retrieve"]
        return Command(goto=END if not searched or stands_in(state) else "ask_a_person")

    def ask_a_person(state: RAGState) -> dict[str, Any]:
        said = interrupt({"draft": state["answer"], "shown": [one.page_content for one in state["context"]]})
        return {"answer": said, "messages": [AIMessage(said)]}

    graph = StateGraph(RAGState)
    graph.add_node("answer", lazy_retrieval_node(chain))
    graph.add_node("check", check)
    graph.add_node("ask_a_person", ask_a_person)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", "check")
    graph.add_edge("ask_a_person", END)
    return graph.compile(checkpointer=InMemorySaver())


def main() -> None:
    """Ask what a summary tells, what a search finds, and what nothing tells."""
    app = build()
    for number, question in enumerate(
        ("Where was Maela born?", "Which instrument does Maela play?", "Who is married to Maela?")
    ):
        config = {"configurable": {"thread_id": str(number)}}
        state = app.invoke({"messages": [("user", question)]}, config)
        if "__interrupt__" in state:
            print(f"{question} A person is asked; the draft was {state['answer']!r}.")
            state = app.invoke(Command(resume="nobody knows"), config)
        print(f"{question} {state['answer']} (searched: {state['decision']['retrieve']})")


if __name__ == "__main__":
    main()
