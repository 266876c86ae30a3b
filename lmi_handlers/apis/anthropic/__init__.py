"""Anthropic's Messages API: messages, and their tokens counted."""
