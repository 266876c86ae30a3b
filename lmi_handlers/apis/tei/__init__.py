"""The API of text-embeddings-inference (TEI)."""
