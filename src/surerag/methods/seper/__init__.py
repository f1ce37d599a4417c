"""SePer: measure how much retrieval changes a reader's belief in the right answers (Dai et al.)."""
