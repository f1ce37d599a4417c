"""DynQR on the closed world: does rewriting pay where, and only where, the reader is uncertain?"""

from surerag_studies.dynqr.study import dynqr_study

__all__ = ["dynqr_study"]
