"""`lmi transform`: what a batch transform job of SageMaker does, on this machine."""
