# What a deployment would do, in AWS's own calls. Without --dry-run, and with names of yours, it does that.
#
#     bash examples/tasks/deploy/deploy.sh
set -euo pipefail
lmi deploy --name example --region us-east-1 --instance-type ml.g5.xlarge \
    --image 123456789012.dkr.ecr.us-east-1.amazonaws.com/lmi-handlers:latest \
    --role arn:aws:iam::123456789012:role/sagemaker \
    --model-dir "$(dirname "$0")/../chat" --upload-to s3://my-bucket/models \
    --autoscale queue --autoscale-target 4 --max-capacity 4 --dry-run
