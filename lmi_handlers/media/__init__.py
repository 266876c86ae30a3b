"""Fetches and checks the images in requests. Everything here handles untrusted data."""
