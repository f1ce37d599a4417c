"""Everything at once, for a long time, over a server that misbehaves; see ``__main__``."""
