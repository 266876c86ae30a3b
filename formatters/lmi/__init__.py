"""Formatters of LMI's API."""
