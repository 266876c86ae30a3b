# Ask in the format of model.py.
#
#     lmi check --model-dir examples/tasks/custom-formatter
#     lmi serve --model-dir examples/tasks/custom-formatter
#     bash examples/tasks/custom-formatter/ask.sh
set -euo pipefail
url=${SERVER_URL:-http://127.0.0.1:8080}
curl --silent --show-error --fail-with-body "$url/invocations" -H 'Content-Type: application/json' \
    -d '{"question": "What is Deep Learning?", "limit": 7}'
