"""Reads the configuration and checks it, before any process starts."""
