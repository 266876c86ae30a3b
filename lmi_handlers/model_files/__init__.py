"""Finds the files of a model, downloads them, and prepares them for an engine."""
