"""EDC²-RAG: similar passages in clusters, each of which is compressed for the question (Li et al.)."""
