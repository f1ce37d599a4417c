"""SePer: measures retrieval by the change of a reader's belief in the right answers (Dai et al.)."""
