"""The formatters of a `model.py` beside an engine: their process, and a web worker's view of it."""
