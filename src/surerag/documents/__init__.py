"""Documents: whole files, before they are cut into passages."""

from surerag.documents.document import Document
from surerag.documents.loading import LoadedDocuments, SkippedFile, SkippedFilesWarning, load_documents

__all__ = ["Document", "LoadedDocuments", "SkippedFile", "SkippedFilesWarning", "load_documents"]
