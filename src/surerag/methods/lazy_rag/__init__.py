"""L-RAG: answer from summaries; retrieve passages only if the reader is unsure (Voloshyn, section III)."""
