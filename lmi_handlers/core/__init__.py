"""Shared types: requests, outputs, sampling parameters, limits and errors. Imports no other folder of this package."""
