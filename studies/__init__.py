"""The papers' tables, printed anew: ``python -m studies.lazy_rag --seed 3 -n 200``, and so on."""
