"""SageMaker's runtime API on the container's own port, for boto3 on a laptop."""
