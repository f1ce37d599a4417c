"""The page of questions that people ask in their own words, each with the page that answers it."""

from __future__ import annotations

import re
from pathlib import Path

ASKED = {
    "certainty.md": (
        "Which answers are wrong?",
        "How sure is the model? Confidence and uncertainty of an answer",
    ),
    "how-to/hallucinations.md": ("Hallucination: how do I find and reduce hallucinations?",),
    "how-to/only-sure-answers.md": (
        "How do I make it say I do not know?",
        "Abstain, refuse, do not guess",
    ),
    "how-to/cost.md": (
        "How much does it cost?",
        "Too slow, too expensive: price, tokens, latency, speed",
    ),
    "how-to/ollama.md": (
        "Does it work with Ollama?",
        "Local model on my laptop",
    ),
    "how-to/claude.md": ("Claude, Anthropic, Gemini, Bedrock: no logprobs, no log-probabilities",),
    "how-to/openai.md": ("Does it work with OpenAI, Azure OpenAI, gpt-4o?",),
    "how-to/vllm.md": ("Does it work with vLLM, SGLang, TGI? A server of my own",),
    "how-to/hugging-face.md": (
        "Hugging Face model on my GPU or CPU, quantised, without internet, out of memory",
    ),
    "how-to/thinking.md": ("Reasoning model that thinks before it answers: DeepSeek, Qwen",),
    "models.md": ("Which models work? Which model do I need?",),
    "documents.md": ("Load PDF files, Word, HTML, Markdown, e-mail",),
    "documents-change.md": ("My documents changed, are updated or deleted: how do I keep up?",),
    "how-to/secrets.md": (
        "Is my data sent somewhere? Privacy, telemetry",
        "API key in logs, secrets, passwords",
    ),
    "tenants.md": ("Filter by tenant, user, access rights: can one customer see the documents of another?",),
    "how-to/streaming.md": ("Streaming, SSE: how do I stream an answer token by token?",),
    "how-to/chat-history.md": ("Chat history, follow-up questions, memory, conversation",),
    "how-to/agents.md": ("LangGraph agent, tools, middleware",),
    "how-to/llama-index-agents.md": ("LlamaIndex agent and workflow",),
    "how-to/fastapi.md": ("FastAPI web service, REST API, async, asyncio, deploy, production, Docker",),
    "how-to/timeouts.md": ("Time-out and retry, timeout, rate limit, connection error",),
    "how-to/save-and-load.md": ("Pickle error, serialize, save and load a chain",),
    "how-to/languages.md": ("German, French, Chinese or Japanese documents: other languages",),
    "how-to/faiss.md": ("FAISS index, vector store, vector database",),
    "how-to/chroma.md": ("Chroma vector store",),
    "how-to/qdrant.md": ("Qdrant vector store",),
    "how-to/embeddings.md": ("Which embeddings? sentence-transformers, embedding model",),
    "how-to/monitoring.md": ("Monitoring, tracing, OpenTelemetry, LangSmith, logging",),
    "how-to/ci.md": ("Test in CI: GitHub Actions, continuous integration, unit test without a model",),
    "how-to/ray.md": ("Many machines, Ray, cluster, batch job, a million questions",),
    "how-to/train-rewriter.md": ("Train, fine-tune a rewriter",),
    "how-to/your-own.md": ("Custom reader, custom method, plugin: write my own",),
    "questions.md": ("How many test questions do I need? Write a test set, evaluation data, gold answers",),
    "calibrate.md": ("Choose a threshold: which threshold do I take?",),
    "compare.md": (
        "Is it worth it for me? Does it help? Benchmark, accuracy",
        "Evaluate my RAG pipeline on my own questions",
    ),
    "retrievers.md": ("Compare two retrievers: which retriever is better?",),
    "expect.md": ("Does it really work? Evidence, results, improvement",),
    "glossary.md": ("What is entropy? What is a reader, a gate, calibration, AUROC?",),
    "troubleshooting.md": ("Error, exception, warning, it does not work, help",),
    "quickstart.md": (
        "How do I install it? pip, get started, requirements, Python version, minimal example",
    ),
    "methods/lazy-rag.md": ("L-RAG, lazy retrieval: search only when unsure, adaptive retrieval",),
    "methods/edc2.md": ("Compress a long context, EDC²-RAG, context window too small",),
    "methods/dynqr.md": ("Vague question, query rewriting, DynQR",),
    "methods/dense.md": ("Confusing passages, DENSE-RAG, context quality",),
    "methods/seper.md": ("Was retrieval useful? SePer, retrieval utility",),
    "reference/command-line.md": ("Command line options, CLI, terminal, flags",),
    "reference/surerag.errors.md": (
        "CapabilityError, ConfigurationError, MissingServiceError: what does an error mean?",
    ),
}
"""Pages with the questions that people ask or type to find them."""


def asked_page(folder: Path) -> str:
    """Return the page of questions; each answer is the first paragraph of the page that a link leads to."""
    lines = ["# Questions people ask", "", "Each answer has a link to the page with more.", ""]
    for page, questions in ASKED.items():
        title, _, text = (folder / page).read_text(encoding="utf-8").partition("# ")[2].partition("\n")
        paragraphs = [one for one in re.split(r"\n\s*\n", text) if re.match(r"[A-Z*\"“]", one.strip())]
        first = re.match(r".*?[.:](?=\s|$)", " ".join(paragraphs[0].split())) if paragraphs else None
        answer = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first[0]).rstrip(".:") + "." if first else ""
        for question in questions:
            lines += [f"## {question}", "", f"{answer} Read on: [{title.strip()}]({page}).", ""]
    return "\n".join(lines)
