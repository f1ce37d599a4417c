"""DynQR: rewrite the query where the reader is uncertain, and keep the less uncertain answer."""
