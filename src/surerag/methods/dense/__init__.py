"""DENSE-RAG: measure whether a reader understands its context, refine the context, and chunk documents."""
