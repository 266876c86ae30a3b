# Call the code of model.py: once without a server, then on one.
#
#     lmi check --model-dir examples/tasks/custom-code
#     lmi run --model-dir examples/tasks/custom-code --input examples/tasks/custom-code/numbers.json
#     lmi serve --model-dir examples/tasks/custom-code
#     bash examples/tasks/custom-code/ask.sh
set -euo pipefail
url=${SERVER_URL:-http://127.0.0.1:8080}
curl --silent --show-error --fail-with-body "$url/invocations" -H 'Content-Type: application/json' -d '[1, 2, 3, 4]'
