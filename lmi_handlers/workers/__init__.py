"""Processes that the server and its tools keep: how they are started, watched and ended."""
