"""EDC²-RAG: keep the passages that help to answer, or compress clusters of similar passages (Li et al.)."""
