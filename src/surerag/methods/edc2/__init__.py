"""EDC²-RAG: keep the passages that help, or compress clusters of similar passages (Li et al.)."""
