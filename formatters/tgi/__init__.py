"""Formatters of TGI's API."""
