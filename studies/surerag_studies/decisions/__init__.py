"""Do decisions hold? Promises, gates, abstention and monitoring on real records and on simulated ones."""
