"""Models that turn texts into vectors; importing this room loads none of them."""

from surerag.encoders.hashing import HashingEncoder
from surerag.encoders.sentence_transformer import (
    SentenceTransformerEncoder,
    packaged_minilm,
    packaged_minilm_path,
)

__all__ = ["HashingEncoder", "SentenceTransformerEncoder", "packaged_minilm", "packaged_minilm_path"]
