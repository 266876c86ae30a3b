"""Splits what a model writes into content, tool calls and reasoning. Works on text only, piece by piece."""
