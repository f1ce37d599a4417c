"""The making of the embedded reader: its tasks, its training from scratch, and its model card."""
