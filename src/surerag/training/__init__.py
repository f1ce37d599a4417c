"""Training: the rewriter of DynQR."""
