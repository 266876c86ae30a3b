"""LMI's API: the rolling-batch and the dynamic-batch schema."""
