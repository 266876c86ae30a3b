"""Chooses the next token from logits, for the engines whose forward pass is ours."""
