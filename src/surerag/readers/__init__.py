"""Readers: the models that answer, behind one protocol."""

from surerag.readers.protocol import BaseReader, Capabilities, Reader

__all__ = ["BaseReader", "Capabilities", "Reader"]
