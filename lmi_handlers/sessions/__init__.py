"""SageMaker's stateful sessions: what a server remembers from one request of a client to the next."""
