"""EDC²-RAG: selects the passages that help, or compresses clusters of similar passages (Li et al.)."""
