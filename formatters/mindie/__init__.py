"""Formatters of MindIE's API."""
