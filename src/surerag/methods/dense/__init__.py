"""DENSE-RAG: measure whether a reader understood its context, and mend the context until it does.

"DENSE-RAG: Measuring and Improving Context Understanding for Consistent Retrieval-Augmented Generation". The
measure is section 4 (``algorithm``), adaptive chunking is Algorithm 2 (``chunking``), refinement is
Algorithm 3 (``refinement``).
"""
