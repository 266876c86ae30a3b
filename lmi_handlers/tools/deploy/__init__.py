"""From a model directory to an endpoint on SageMaker and back: `lmi deploy`, `undeploy`, `status`, `logs` and `invoke`.

Uses boto3, which is imported when a command needs it. The server imports nothing from here.
"""
