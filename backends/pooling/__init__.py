"""How a model's own files turn what an engine computes for a prompt into its embedding or its scores."""
