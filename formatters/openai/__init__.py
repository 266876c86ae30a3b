"""Formatters of OpenAI's API."""
