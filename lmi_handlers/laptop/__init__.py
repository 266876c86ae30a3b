"""Additions for a server on a laptop: SageMaker's runtime API, and the pages for browsers."""
