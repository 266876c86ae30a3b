"""From a model directory to an endpoint on SageMaker and back: `lmi deploy`, `undeploy`, `status` and `logs`.

Uses boto3, which is imported when a command needs it. The server imports nothing from here.
"""
