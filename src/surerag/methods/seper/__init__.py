"""SePer: what retrieval was worth, as the change of a reader's belief in the gold answers (Dai et al.)."""
