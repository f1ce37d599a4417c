"""DynQR: rewrite the query if the reader is uncertain of its answer, and keep the less uncertain answer."""
