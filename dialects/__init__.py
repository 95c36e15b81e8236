"""Ops of our own, and the one place where the MLIR bindings are imported."""
