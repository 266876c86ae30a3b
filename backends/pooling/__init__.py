"""Pooling by a model's own files, which makes an embedding or scores of an engine's result for a prompt."""
