"""What Anthropic's API writes."""
