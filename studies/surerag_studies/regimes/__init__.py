"""The reader's records in worlds that mislead it, beside those of a real reader."""

from surerag_studies.regimes.rows import regime_rows

__all__ = ["regime_rows"]
