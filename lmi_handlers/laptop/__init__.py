"""What a server on a laptop has in addition: SageMaker's runtime API, and the pages for browsers."""
