"""EDC²-RAG: cluster similar documents, and compress each cluster for the question (Li et al., section 4)."""
