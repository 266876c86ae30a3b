"""Formatters of llama.cpp's API."""
