"""The papers' tables on the closed world, for any seed, and the making of the reader that lives in it.

``surerag reproduce`` imports this package when it is asked to. The library knows nothing of it.
"""
