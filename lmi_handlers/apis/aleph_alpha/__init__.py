"""Aleph Alpha's API: chat completions and completions."""
