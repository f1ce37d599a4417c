"""Scripts that run a peer in an environment of its own; they import nothing of this project."""
