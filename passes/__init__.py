"""IR to IR transformations, one per file."""
