"""What OpenAI's API writes."""
