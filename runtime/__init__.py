"""Loading, calling, memory, threads and caches: what runs after a graph has been compiled."""
