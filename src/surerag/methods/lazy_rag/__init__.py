"""L-RAG: answer from summaries, and retrieve only when the reader is unsure (Voloshyn, section III)."""
