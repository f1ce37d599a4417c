"""Training: the embedded readers, and the rewriter of DynQR."""
