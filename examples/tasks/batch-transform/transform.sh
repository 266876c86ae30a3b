# Send the records of a file through a model, and keep their ids. The third record is wrong, and only that fails.
#
#     bash examples/tasks/batch-transform/transform.sh
set -euo pipefail
here=$(dirname "$0")
lmi transform --model-dir "$here/../chat" --input "$here/records.jsonl" --output transformed/ \
    --input-filter "\$['inputs','parameters']" --join-source Input --output-filter "\$['id','SageMakerOutput']"
cat transformed/records.jsonl.out
