"""EDC²-RAG: the passages that help, or clusters of similar ones, each compressed (Li et al.)."""
