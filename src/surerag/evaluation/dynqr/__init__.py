"""The DynQR study: does rewriting pay where, and only where, the reader is uncertain?"""

from surerag.evaluation.dynqr.results import DynQRStudy

__all__ = ["DynQRStudy"]
