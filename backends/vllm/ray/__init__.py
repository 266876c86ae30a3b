"""Places vLLM's workers on the nodes of a Ray cluster (`option.distributed_executor_backend=ray`)."""
