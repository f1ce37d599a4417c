"""Training: the embedded reader, and later the rewriter of DynQR."""
