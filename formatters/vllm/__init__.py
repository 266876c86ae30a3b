"""The formats of vLLM's routes that OpenAI's API does not have."""
