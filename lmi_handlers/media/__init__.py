"""Fetches and checks the images and sounds in requests. Everything here handles untrusted data."""
