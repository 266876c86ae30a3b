# curl: one question in five APIs.
#
#     lmi serve --model-dir examples/tasks/chat
#     bash examples/clients/curl.sh
set -euo pipefail
url=${SERVER_URL:-http://127.0.0.1:8080}

ask() {
    echo "$1"
    curl --silent --show-error --fail-with-body "$url$1" -H 'Content-Type: application/json' -d "$2"
    echo
}

ask /invocations '{"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}}'
ask /generate '{"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}}'
ask /v1/chat/completions '{"messages": [{"role": "user", "content": "What is the capital of Japan?"}], "max_tokens": 8}'
ask /complete '{"model": "any", "prompt": "The capital of France is", "maximum_tokens": 8}'
ask /v1/responses '{"input": "What is the capital of Japan?", "max_output_tokens": 8}'
