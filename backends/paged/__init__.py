"""Continuous batching over a paged KV cache, for engines whose forward pass is ours: scheduler, block pool, backend."""
