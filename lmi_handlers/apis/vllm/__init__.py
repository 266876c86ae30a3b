"""The routes of vLLM's server that OpenAI's API does not have: scores, vectors and tokens."""
