"""Formatters of Anthropic's API."""
