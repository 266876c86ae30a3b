"""Runs the code that comes with a model (`model.py`), in processes of its own."""
