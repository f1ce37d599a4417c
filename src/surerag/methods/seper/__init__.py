"""SePer: what retrieval was worth, as the change of a reader's belief in the right answers (Dai et al.)."""
