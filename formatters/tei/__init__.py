"""The formats of text-embeddings-inference (TEI)."""
