"""Adapters that come and go while the server runs: the management routes of DJL, SageMaker and vLLM."""
