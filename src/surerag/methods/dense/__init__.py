"""DENSE-RAG: whether a reader understands its context, how to mend it, and where to cut documents."""
