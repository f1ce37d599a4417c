"""Documents: whole files, before they are cut into passages."""

from surerag.documents.document import Document
from surerag.documents.loading import SkippedFilesWarning, load_documents

__all__ = ["Document", "SkippedFilesWarning", "load_documents"]
