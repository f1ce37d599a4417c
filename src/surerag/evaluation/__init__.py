"""Studies on the closed world: what was run, what it shows, and how sure that is."""
