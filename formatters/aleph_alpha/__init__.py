"""Formatters of Aleph Alpha's API."""
